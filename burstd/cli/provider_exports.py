"""What providers say that they charged: FOCUS (any 1.x), AWS' Cost and Usage Reports, hours of OpenStack.

Files come from others. Each is read once, row by row; what cannot be meant is refused with its line and column.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

from burstd.domain.billing.reconcile import ProviderUse

MAX_LINE = 1 << 20
MAX_JSON = 64 << 20
MAX_RESOURCES = 500_000
_MAX_SORTS = 100
_MAX_NUMBER, _MIN_NUMBER = Decimal(10) ** 12, Decimal(10) ** -30
"""Others, but for 0, are no amounts, and sums of them no decimals."""
_SECONDS = re.compile(r"([0-9]{1,9} )?(hrs?|hours?|minutes?|mins?|seconds?|secs?)", re.IGNORECASE)
_UNIT_HOURS = {"h": Decimal(1), "m": Decimal(1) / 60, "s": Decimal(1) / 3600}
_MACHINE_TIME = re.compile(r"(?:Box|Spot|Dedicated|HostBox|Reserved\w*|Unused\w*)Usage")
"""Of AWS' usage types: other types of an instance (EBSOptimized) are of the same hours."""
_USAGE = frozenset({"usage", "discountedusage", "savingsplancoveredusage"})
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|/")


class ExportError(Exception):
    """A file that cannot be read as what it should be; the message names the place and the remedy."""


@dataclass(slots=True)
class ProviderExport:
    """A month of an export."""

    format: str
    uses: dict[str, ProviderUse] = field(default_factory=dict)
    """By the provider's id of the resource."""
    apart: defaultdict[tuple[str, str], Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    """By sort (``Tax``, ``Credit``) and currency: what is of no resource, or no use."""
    outside: int = 0
    """Rows of other months."""

    def use_of(self, resource: str, currency: str) -> ProviderUse:
        """Of this resource. Raises ValueError."""
        name = re.split(r"[/:]", resource)[-1] if resource.startswith(("arn:", "/")) else resource
        use = self.uses.get(name)
        if use is None:
            if len(self.uses) >= MAX_RESOURCES:
                raise ValueError(f"the file has more than {MAX_RESOURCES} resources; export one account or project")
            use = self.uses[name] = ProviderUse(currency)
        if use.currency != currency:
            raise ValueError(f"{name[:100]} has a charge in {use.currency} before, and here one in {currency[:10]}")
        return use


@dataclass(frozen=True, slots=True)
class _Columns:
    """Names of columns; of several the first that has a value counts."""

    resource: str
    cost: str
    currency: str
    start: str
    category: str
    quantities: tuple[tuple[str, str], ...]
    """Quantity and unit."""
    usage_type: str = ""


_FORMATS: Mapping[str, _Columns] = {
    "FOCUS": _Columns(
        "resource_id", "billed_cost", "billing_currency", "charge_period_start", "charge_category",
        (("pricing_quantity", "pricing_unit"), ("consumed_quantity", "consumed_unit")),
    ),
    "CUR": _Columns(
        "line_item_resource_id", "line_item_unblended_cost", "line_item_currency_code", "line_item_usage_start_date",
        "line_item_line_item_type", (("line_item_usage_amount", "pricing_unit"),), "line_item_usage_type",
    ),
}  # fmt: skip


def read_export(path: Path, since: float, until: float, now: float) -> ProviderExport:
    """The rows of [since, until), in seconds since 1970, of a file, gzipped or not. Raises ExportError.

    ``now``: up to when a server of OpenStack that has not ended has run.
    """
    with _opened(path) as file:
        head = _line(file, path, 1)
        if head.lstrip()[:1] in ("{", "["):
            text = head + file.read(MAX_JSON)
            if file.read(1):
                raise ExportError(f"{path} is longer than {MAX_JSON >> 20} MiB; ask for one project.")
            return _read_openstack(path, text, since, min(until, now))
        export = _read_table(path, head, file, since, until)
    if export.outside and not export.uses and not export.apart:
        raise ExportError(f"{path} has no row of this month, and {export.outside} of others: name theirs with --month.")
    return export


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("rb") as raw:
            start = raw.read(4)
            raw.seek(0)
            if start == b"PAR1":
                raise ExportError(f"{path} is Parquet; export it as CSV.")
            stream: Any = gzip.GzipFile(fileobj=raw) if start[:2] == b"\x1f\x8b" else raw
            with TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
                yield text
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is no text in UTF-8 ({error.reason}); export it as CSV.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ExportError(f"{path} cannot be read: {error}.") from None


def _line(file: TextIO, path: Path, number: int) -> str:
    line = file.readline(MAX_LINE + 1)
    if len(line) > MAX_LINE:
        raise ExportError(f"{path}, line {number} is longer than {MAX_LINE} characters: is it CSV?")
    return line


class _Lines:
    """The lines of a table. A row may go over several in quotes, and is kept whole until it ends."""

    def __init__(self, head: str, file: TextIO, path: Path) -> None:
        self._next, self._file, self._path, self._number = head, file, path, 0
        self.row_length = 0
        """Characters since it was last set to 0."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._number += 1
        line, self._next = self._next or _line(self._file, self._path, self._number), ""
        self.row_length += len(line)
        if self.row_length > MAX_LINE:
            raise ExportError(
                f"{self._path}, line {self._number}: a row is longer than {MAX_LINE} characters: is it CSV?"
            )
        if not line:
            raise StopIteration
        return line


def _read_table(path: Path, head: str, file: TextIO, since: float, until: float) -> ProviderExport:
    lines = _Lines(head, file, path)
    rows = csv.reader(lines, strict=True)
    try:
        names = [_WORD.sub("_", name.strip()).lower() for name in next(rows, [])]
        table = _Table(names, *_format_of(path, names))
        for row in rows:
            lines.row_length = 0
            if not row:
                continue
            try:
                table.add(row, since, until)
            except ValueError as error:
                raise ExportError(f"{path}, line {rows.line_num}: {error}.") from None
    except csv.Error as error:
        raise ExportError(f"{path}, line {rows.line_num}: {error}; is it CSV?") from None
    return table.export


def _format_of(path: Path, names: Sequence[str]) -> tuple[str, _Columns]:
    for name, columns in _FORMATS.items():
        if columns.resource in names:
            needed = (columns.cost, columns.currency, columns.start, columns.category)
            missing = [one for one in needed if one not in names]
            if missing or not any(pair[0] in names for pair in columns.quantities):
                lacks = ", ".join(missing) or " or ".join(pair[0] for pair in columns.quantities)
                raise ExportError(f"{path}, line 1: {name} without column {lacks}; export all columns.")
            return name, columns
    raise ExportError(
        f"{path}, line 1: no column ResourceId (FOCUS), lineItem/ResourceId or line_item_resource_id (CUR); export "
        "FOCUS or CUR with resource ids as CSV, or the answer of os-simple-tenant-usage with detailed=1 as JSON."
    )


class _Table:
    """Adds up rows of one format."""

    def __init__(self, names: Sequence[str], name: str, columns: _Columns) -> None:
        self.export = ProviderExport(name)
        self._columns, self._width = columns, len(names)
        self._place = {column: number for number, column in reversed([*enumerate(names)])}
        self._tags = [(n, "burstd" in column) for n, column in enumerate(names) if "tag" in column]

    def add(self, row: Sequence[str], since: float, until: float) -> None:
        """Raises ValueError where it cannot be meant."""
        if len(row) != self._width:
            raise ValueError(f"{len(row)} columns, and {self._width} in line 1")
        columns = self._columns
        start = _time(self._cell(row, columns.start), columns.start)
        if not since <= start < until:
            self.export.outside += 1
            return
        cost = _number(self._cell(row, columns.cost), columns.cost)
        currency, resource = self._cell(row, columns.currency), self._cell(row, columns.resource)
        category = self._cell(row, columns.category)
        if not resource or category.lower() not in _USAGE:
            sort = category if category.lower() not in _USAGE else f"{category} of no resource"
            known = (sort, currency) in self.export.apart or len(self.export.apart) < _MAX_SORTS
            self.export.apart[sort[:60] if known else "other", currency[:10]] += cost
            return
        use = self.export.use_of(resource[:1000], currency)
        hours = self._hours(row)
        if hours is None:
            use.other_cost += cost
        else:
            use.cost += cost
            use.hours += hours
        use.tagged |= any(row[n] and (named or "burstd" in row[n]) for n, named in self._tags)

    def _cell(self, row: Sequence[str], column: str) -> str:
        place = self._place.get(column)
        return "" if place is None else row[place].strip()

    def _hours(self, row: Sequence[str]) -> Decimal | None:
        """None: it is not the time of a machine."""
        usage_type = self._cell(row, self._columns.usage_type)
        if usage_type and not _MACHINE_TIME.search(usage_type):
            return None
        for quantity, unit in self._columns.quantities:
            text, named = self._cell(row, quantity), self._cell(row, unit)
            if not text:
                continue
            if not named and usage_type:
                return _number(text, quantity)
            if match := _SECONDS.fullmatch(named):
                return _number(text, quantity) * int(match[1] or 1) * _UNIT_HOURS[match[2][0].lower()]
        return None


def _number(text: str, column: str) -> Decimal:
    try:
        value = Decimal(text or "0")
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or abs(value) > _MAX_NUMBER or 0 < abs(value) < _MIN_NUMBER:
        raise ValueError(f"column {column} has {text[:40]!r}, which is no number")
    return value


def _time(text: str, column: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=found.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"column {column} has {text[:40]!r}, which is no time such as 2026-10-01T00:00:00Z") from None


def _read_openstack(path: Path, text: str, since: float, until: float) -> ProviderExport:
    """os-simple-tenant-usage: each server's part of the period, from its beginning and end."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path} is no JSON: {str(error)[:100]}.") from None
    usages = answer.get("tenant_usages", [answer.get("tenant_usage")]) if isinstance(answer, dict) else []
    servers: list[Any] = (
        [usage.get("server_usages") for usage in usages if isinstance(usage, dict)] if isinstance(usages, list) else []
    )
    if not servers or not all(isinstance(some, list) for some in servers):
        raise ExportError(
            f"{path} has no server_usages: what 'openstack usage' prints has sums of projects only. Ask Nova for "
            "/os-simple-tenant-usage/PROJECT?detailed=1, with start and end of the month."
        )
    export = ProviderExport("OpenStack usage")
    for number, server in enumerate(server for some in servers for server in some):
        try:
            begin = max(since, _time(str(server["started_at"]), "started_at"))
            ended = server.get("ended_at")
            end = until if ended is None else min(until, _time(str(ended), "ended_at"))
            if end > begin:
                export.use_of(str(server["instance_id"])[:1000], "").hours += Decimal(f"{end - begin:.3f}") / 3600
            else:
                export.outside += 1
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ExportError(f"{path}, server {number + 1} of server_usages: {str(error)[:200]}.") from None
    return export
