"""What machines and volumes will have cost at the end of a month. It is shown, and nothing is decided by it.

A day that comes is expected to cost the mean of the same weekday in the four weeks before, or as much as in the last
week where that came clearly nearer so far, or what machines that run are known to cost in it, where that is more. How
far off that was in the past, each time by what was known then, gives a range. Volumes go on to cost what they do. Days
are UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import quantiles

from burstd.domain.billing.closing import days_of
from burstd.domain.billing.costs import MICRO, month_of
from burstd.domain.billing.use import DAY_S
from burstd.domain.billing.volumes import volume_charges
from burstd.domain.volume import Volume

WEEKS = 4
CLEARLY = 0.9
"""The last week is taken alone where it was off by less than this part of what the mean of ``WEEKS`` was."""
MIN_DAYS = 60
"""With less history than that nothing is expected."""
MIN_WINDOWS = 5
"""With fewer past windows there is no range, and none is tried."""
MAX_DAYS = 180
"""Older days count no more."""


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """What the month will have cost, in one currency: the sum of the three."""

    currency: str
    spent: Decimal
    """So far."""
    committed: Decimal
    """By machines that run, until the time limits of their jobs, and by volumes."""
    expected: Decimal | None
    """Beyond that; None: there is too little history."""
    low: Decimal | None = None
    """Of the sum, as the tenth percentile of past errors has it; None: there are too few past windows."""
    high: Decimal | None = None
    """As the 90th has it."""
    held: int = 0
    """In so many of ``tried`` past windows the cost was within the range that was known before them."""
    tried: int = 0
    days: int = 0
    """Of history."""
    capped: bool = False
    """It would be more than the budget of the month."""

    @property
    def total(self) -> Decimal:
        """At the end of the month; without what is expected where that is not known."""
        return self.spent + self.committed + (self.expected or 0)


def committed_days(running: Iterable[tuple[Decimal, float]], now: float) -> Counter[int]:
    """By day, what machines will cost from now on, in millionths: prices an hour, and for how many seconds more."""
    found: Counter[int] = Counter()
    for price, seconds in running:
        at, end = now, now + seconds
        while at < end:
            to = min(end, (at // DAY_S + 1) * DAY_S)
            found[int(at // DAY_S)] += round(price * Decimal(to - at) / 3600 / MICRO)
            at = to
    return found


def volumes_to_come(volumes: Iterable[Volume], now: float) -> int:
    """What volumes that are there will still cost in the month, in millionths."""
    month, some = days_of(month_of(now)), [*volumes]
    by_now, whole = (
        sum(charge.amount for volume in some for charge in volume_charges(volume, until, month.start))
        for until in (now, month.stop * DAY_S)
    )
    return whole - by_now


def month_forecast(
    currency: str,
    costs: Mapping[int, int],
    committed: Mapping[int, int],
    now: float,
    limit: Decimal | None = None,
    volumes: tuple[int, int] = (0, 0),
) -> MonthForecast:
    """The forecast for the month of ``now``.

    ``costs``: of machines by day, in millionths, up to now. ``committed``: see ``committed_days``. ``limit``: the
    budget of the month, above which no machine is started. ``volumes``: what they have cost in the month, and what they
    will (``volumes_to_come``), in millionths.
    """
    today, month = int(now // DAY_S), days_of(month_of(now))
    rest = range(today, month.stop)
    spent = sum(cost for day, cost in costs.items() if day in month) + volumes[0]
    bound = {day: committed.get(day, 0) for day in rest}
    days = today - min(costs, default=today)
    least, sure = sum(bound.values()), spent + volumes[1]
    known = MonthForecast(currency, spent * MICRO, (least + volumes[1]) * MICRO, None, days=days)
    if days < MIN_DAYS:
        return known
    weeks = _weeks_to_take(costs, today)
    usual = {day: _weekday_mean(costs, today, day, weeks[today]) for day in rest}
    usual[today] = round(usual[today] * (today + 1 - now / DAY_S))
    likely = sum(max(usual[day], bound[day]) for day in rest)
    ratios = _past_ratios(costs, weeks, today, len(rest))
    most = None if limit is None else max(0, int(limit / MICRO) - sure, least)

    def cut(amount: int) -> int:
        return amount if most is None else min(amount, most)

    low = high = None
    if (span := _span([ratio for _, ratio in ratios])) is not None:
        scaled = [round(sum(usual.values()) * ratio) for ratio in span]
        low, high = (
            (sure + cut(amount)) * MICRO for amount in (max(least, min(scaled[0], likely)), max(scaled[1], likely))
        )
    held = [start <= ratio <= end for ratio, (start, end) in _tried(ratios, len(rest))]
    return MonthForecast(
        currency, known.spent, known.committed, (cut(likely) - least) * MICRO, low, high, sum(held), len(held), days,
        capped=cut(likely) < likely,
    )  # fmt: skip


def _weeks_to_take(costs: Mapping[int, int], today: int) -> dict[int, int]:
    """Of how many weeks the mean was to be taken on each day, by the weeks of seven days that were over before it."""
    begin, forecast_from = min(costs), min(costs) + 7 * WEEKS
    week = {day: sum(costs.get(day + n, 0) for n in range(7)) for day in range(begin, today - 6)}
    off, off_by_last, found = 0.0, 0.0, {}
    for day in range(forecast_from, today + 1):
        if (first := day - 7) >= forecast_from:
            off += abs(week[first] - sum(week[first - 7 * n] for n in range(1, WEEKS + 1)) / WEEKS)
            off_by_last += abs(week[first] - week[first - 7])
        found[day] = 1 if off_by_last < CLEARLY * off else WEEKS
    return found


def _weekday_mean(costs: Mapping[int, int], before: int, day: int, weeks: int) -> int:
    """Of the last days of the same weekday that end before the day ``before``."""
    last = day - 7 * -(-(day - before + 1) // 7)
    return round(sum(costs.get(last - 7 * week, 0) for week in range(weeks)) / weeks)


def _past_ratios(
    costs: Mapping[int, int], weeks: Mapping[int, int], today: int, length: int
) -> list[tuple[int, float]]:
    """First days of past windows of this length, and what each cost in proportion to what was expected before it."""
    found = []
    for first in range(min(weeks), today - length + 1):
        window = range(first, first + length)
        if expected := sum(_weekday_mean(costs, first, day, weeks[first]) for day in window):
            found.append((first, sum(costs.get(day, 0) for day in window) / expected))
    return found


def _span(ratios: Sequence[float]) -> tuple[float, float] | None:
    """From the tenth percentile to the 90th, and to 1: what is expected is always within."""
    if len(ratios) < MIN_WINDOWS:
        return None
    tenths = quantiles(ratios, n=10, method="inclusive")
    return min(1.0, tenths[0]), max(1.0, tenths[-1])


def _tried(ratios: Sequence[tuple[int, float]], length: int) -> list[tuple[float, tuple[float, float]]]:
    """The ratio of each past window that had a range, and that range: from windows that were over before it."""
    found = []
    for first, ratio in ratios:
        if (span := _span([past for start, past in ratios if start + length <= first])) is not None:
            found.append((ratio, span))
    return found
