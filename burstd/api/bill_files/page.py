"""The bill as one HTML page that prints well. Its style and charts are in it: it loads nothing and has no script."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from burstd.api.answers.base import Money
from burstd.api.answers.plan import BillLineView, BillSheetView
from burstd.api.answers.text import bill_parts_text, converted_text, money_sums_text, money_text, utc_date_text
from burstd.api.bill_files.bars import Bars, bars_svg

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
MEANINGS: Mapping[str, str] = {
    "work": "ran jobs",
    "boot": "started, until it was in service",
    "idle": "was in service, or a part of it was free",
    "end": "was being ended",
    "failed": "never came into service, or left it for a fault",
    "storage": "was a storage node",
    "traffic": "output that came home",
    "shared": "ended before use was recorded",
    "volume": "a disk of its own that outlives machines",
}
"""By kind of use, in the order of the page."""


@dataclass(frozen=True, slots=True)
class _Chart:
    unit: str
    currency: str
    svg: Markup


def bill_page(sheet: BillSheetView) -> str:
    """The whole document."""
    folder = files("burstd.api.bill_files")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_without_controls
    )
    environment.filters |= {
        "money": money_text, "money_sums": money_sums_text, "converted": converted_text,
        "bill_parts": bill_parts_text, "utc_date": utc_date_text,
    }  # fmt: skip
    bill = sheet.users
    last = bill.until - timedelta(milliseconds=1)
    return environment.from_string((folder / "page.html.j2").read_text("utf-8")).render(
        sheet=sheet,
        bill=bill,
        period=f"{bill.since:%d %B %Y} to {last:%d %B %Y}",
        whole=bill.until < bill.now,
        charts=[*_charts(sheet.days.lines)],
        kinds=[*_kinds(sheet.days.lines)],
        style=Markup((folder / "page.css").read_text("utf-8")),  # noqa: S704  # a file of this package
    )


def _without_controls(value: object) -> object:
    return _CONTROL.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _kinds(days: Sequence[BillLineView]) -> Iterator[tuple[str, Money, str]]:
    sums: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for line in days:
        for part in line.parts:
            sums[part.kind, part.cost.currency] += part.cost.amount
    order = {kind: place for place, kind in enumerate(MEANINGS)}
    for (kind, currency), amount in sorted(sums.items(), key=lambda one: (order.get(one[0][0], len(order)), one[0])):
        yield kind, Money(amount=amount, currency=currency), MEANINGS.get(kind, "")


def _charts(days: Sequence[BillLineView]) -> Iterator[_Chart]:
    """A chart a currency. Volumes, whose cost by day is not in the lines, are in none."""
    lines = [line for line in days if not line.volumes]
    for currency in sorted({line.cost.currency for line in lines}):
        bars: Bars = defaultdict(lambda: defaultdict(Decimal))
        for line in lines:
            if line.cost.currency == currency:
                for part in line.parts:
                    bars[date.fromisoformat(line.key)][part.kind] += part.cost.amount
        unit, svg = bars_svg(bars)
        yield _Chart(unit, currency, svg)
