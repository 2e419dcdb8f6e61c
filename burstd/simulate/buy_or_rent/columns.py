"""The table of alternatives: its columns, for a terminal and for a page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from burstd.simulate.buy_or_rent.report import AlternativeReport, BuyOrRentReport, hour_text, money_text
from burstd.simulate.report.wording import format_duration, format_share

_NOTHING = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class AlternativeColumn:
    """A figure of each alternative, for people."""

    head: str
    description: str
    cell: Callable[[AlternativeReport], str]


def alternative_columns(report: BuyOrRentReport) -> list[AlternativeColumn]:
    """All that follow the name."""
    unit, one_unit, currency = report.unit, report.unit[:-1], report.currency
    rows: list[tuple[str, str, Callable[[AlternativeReport], str]]] = [
        ("median wait", "half of the jobs waited at most so long", lambda a: format_duration(a.p50_wait_s)),
        ("p90", "90 % of the jobs waited at most so long", lambda a: format_duration(a.p90_wait_s)),
        ("to end", "from submission to end, mean of all jobs", lambda a: format_duration(a.mean_completion_s)),
        (
            "used",
            f"share of the window's hours in which jobs ran on the added {unit}",
            lambda a: _share(a.utilisation),
        ),
        (
            "for cloud",
            f"share of the hours paid for in place of clouds': their {unit} worked so much less than with none added",
            lambda a: _share(a.replaced),
        ),
        (
            f"full ({currency})",
            f"all hours of the added {unit}, used or not, what their use adds, and machines of clouds",
            lambda a: f"{money_text(a.cost)}{'*' if a.cheapest else ' '}",
        ),
        (
            f"marginal ({currency})",
            f"what use adds: energy of bought {unit}, and machines of clouds",
            lambda a: _NOTHING if a.marginal is None else money_text(a.marginal),
        ),
        (
            "full/h",
            f"full cost of an hour in which a job ran on an added {one_unit} or on one of a cloud",
            lambda a: _hour(a.cost_per_used),
        ),
        ("marginal/h", "marginal cost of such an hour", lambda a: _hour(a.marginal_per_used)),
    ]
    if any(one.unfinished for one in report.alternatives):
        rows.append(("unfinished", "jobs that had not ended when the replay was stopped", lambda a: str(a.unfinished)))
    return [AlternativeColumn(*row) for row in rows]


def alternative_rows(report: BuyOrRentReport) -> Iterator[tuple[str, ...]]:
    """Of the table for a terminal; a star marks the cheapest."""
    for one in report.alternatives:
        yield (f"+{one.added}", one.name, *(column.cell(one) for column in alternative_columns(report)))


def _share(share: float | None) -> str:
    return _NOTHING if share is None else format_share(share)


def _hour(amount: Decimal | None) -> str:
    return _NOTHING if amount is None else hour_text(amount)
