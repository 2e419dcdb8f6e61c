"""What has been spent, and what a machine may cost at most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal

MICRO = Decimal("0.000001")
"""Amounts of money are kept to a millionth of the currency."""
SHUTDOWN_S = 120.0
"""How long a machine may be paid for after the time limit of its last job: Slurm's KillWait (30 s), the epilog, the
node's powering down and the cloud's call."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What machines that are gone, and traffic, have cost somebody in one calendar month (UTC)."""

    kind: str
    """``project`` (a Slurm account), ``user``, or empty: all together."""
    name: str
    month: str
    """``2026-11``."""
    currency: str
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Reserve:
    """What a budget holds back for a machine before its launch: the most that it may cost, in the offer's currency."""

    offer: str
    """Offer.id."""
    amount: Decimal
    egress: Decimal = Decimal(0)
    """Of ``amount``, what sending its jobs' output home may cost."""


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """How one budget stands. ``left`` is what may still be promised; less than nothing where it was lowered."""

    kind: str
    """As in Spent."""
    name: str
    period: str
    """``month``, ``year`` or ``total``."""
    currency: str
    limit: Decimal
    spent: Decimal
    """On machines that are gone."""
    committed: Decimal
    """What machines that are there, or coming, may cost at most in this period."""
    fault: str = ""
    """Why it cannot be reckoned, and nothing is started on it; empty: it can."""
    stops: tuple[str, ...] = ()
    """Jobs that wait now because it has too little left for them."""

    @property
    def left(self) -> Decimal:
        """Of the limit."""
        return self.limit - self.spent - self.committed


def worst_case(price: Decimal, seconds: float, egress: Decimal = Decimal(0)) -> Decimal:
    """The most that a machine may cost: price of an hour times hours, and what its output costs; rounded up.

    ``seconds`` is the longest time limit of its jobs and all the time around them.
    """
    return (price * Decimal(f"{seconds:.3f}") / 3600 + egress).quantize(MICRO, ROUND_CEILING)


def cost_of(price: Decimal, seconds: float) -> Decimal:
    """Price of an hour times hours, to a millionth; seconds to a thousandth, so that it is the same everywhere."""
    return (price * Decimal(f"{seconds:.3f}") / 3600).quantize(MICRO, ROUND_HALF_EVEN)


def month_of(time: float) -> str:
    """The calendar month (UTC) of a moment, ``2026-11``."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m")


def month_start(month: str) -> float:
    """When a month began, in seconds since 1970."""
    return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).timestamp()


def next_month(month: str) -> str:
    """The one after it."""
    year, number = int(month[:4]), int(month[5:])
    return f"{year + number // 12:04}-{number % 12 + 1:02}"


def by_month(since: float, until: float) -> Iterable[tuple[str, float]]:
    """The calendar months (UTC) of a stretch of time, each with its seconds in it; none where it is empty."""
    while since < until:
        month = month_of(since)
        end = min(month_start(next_month(month)), until)
        yield month, end - since
        since = end
