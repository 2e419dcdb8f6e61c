"""The bill as CSV, which spreadsheets open."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from burstd.api.answers.plan import BillLineView, BillView, SiteBillLineView

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class _Line:
    """What csv writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text = text


def csv_lines(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a CSV file. A spreadsheet runs no name as a formula: a quote goes before it, as OWASP advises."""
    line = _Line()
    writer = csv.writer(line, lineterminator="\n")
    for row in rows:
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) and not _is_amount(cell) else cell for cell in row])
        yield line.text


def _is_amount(cell: str) -> bool:
    return cell.removeprefix("-").replace(".", "", 1).isdecimal() and not cell.startswith("+")


def bill_rows(bill: BillView) -> Iterator[Sequence[str]]:
    """A head, then a row for each line and kind of use; they add up to the bill's total.

    Days are UTC, the last one included; amounts are to a millionth, ``machine_s`` in seconds.
    """
    yield ("since", "until", bill.group, "kind", "cause", "cost", "currency", "machine_s", "corrects")
    since, until = _days(bill)
    for line in bill.lines:
        for part in line.parts:
            yield (
                since, until, _key(line), part.kind, part.cause, f"{part.cost.amount:f}", part.cost.currency,
                f"{part.machine_s:.3f}", part.corrects,
            )  # fmt: skip


def site_rows(bill: BillView) -> Iterator[Sequence[str]]:
    """The same of nodes of the site, a row for each line, which no file has beside what clouds charge."""
    yield ("since", "until", bill.group, "site_cost", "currency", "node_s")
    for line in bill.site_lines:
        yield (*_days(bill), _key(line), f"{line.cost.amount:f}", line.cost.currency, f"{line.node_s:.3f}")


def _days(bill: BillView) -> tuple[str, str]:
    return f"{bill.since:%Y-%m-%d}", f"{bill.until - timedelta(milliseconds=1):%Y-%m-%d}"


def _key(line: BillLineView | SiteBillLineView) -> str:
    return f"({line.others} others)" if line.others else line.key
