"""What the month will have cost: patterns with a known end, and hit rates worked out a second time, in another way."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from statistics import median

import pytest

from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.forecast import MIN_WINDOWS, MonthForecast, committed_days, month_forecast, volumes_to_come
from burstd.domain.billing.use import DAY_S
from burstd.domain.volume import Volume, VolumeState

WEEK = (900, 1000, 1100, 1000, 800, 200, 100)
"""Units a day, from the Thursday that 1 January 1970 was."""
UNIT = 1_000_000


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def weekly(first: int, end: int, noise: float = 0.0, seed: int = 1, growth: float = 1.0) -> dict[int, int]:
    """``growth``: from each day to the next."""
    dice = random.Random(seed)  # noqa: S311
    level = {day: WEEK[day % 7] * UNIT * growth ** (day - first) for day in range(first, end)}
    return {day: round(cost * dice.uniform(1 - noise, 1 + noise)) for day, cost in level.items()}


def until(costs: dict[int, int], now: float) -> dict[int, int]:
    """What is on record at this time: of today a part, as spent evenly."""
    today = int(now // DAY_S)
    part = now / DAY_S - today
    known = {day: cost for day, cost in costs.items() if day < today}
    return known | {today: round(costs[today] * part)} if part else known


@pytest.mark.parametrize(
    ("now", "first", "last"),
    [
        ("2026-02-10T00:00", "2026-02-01", "2026-02-28"),
        ("2028-02-29T12:00", "2028-02-01", "2028-02-29"),
        ("2026-03-28T18:00", "2026-03-01", "2026-03-31"),  # In Europe the 29th has 23 hours.
        ("2026-10-25T01:30", "2026-10-01", "2026-10-31"),  # ... and this day 25.
        ("2026-12-31T23:59", "2026-12-01", "2026-12-31"),
    ],
)
def test_a_week_that_repeats_is_known_to_its_end(now: str, first: str, last: str) -> None:
    time = at(now)
    costs = weekly(int(time // DAY_S) - 120, int(time // DAY_S) + 40)
    month = range(int(at(first) // DAY_S), int(at(last) // DAY_S) + 1)
    found = month_forecast("EUR", until(costs, time), {}, time)
    whole = sum(costs[day] for day in month) * MICRO
    assert abs(found.total - whole) < Decimal("0.01")
    assert found.low == found.high == found.total
    assert (found.committed, found.capped, found.days) == (Decimal(0), False, 120)
    assert found.held == found.tried > MIN_WINDOWS


def test_what_is_committed_is_not_expected_once_more() -> None:
    time = at("2026-11-10T00:00")
    today = int(time // DAY_S)
    costs = until(weekly(today - 80, today), time)
    plain = month_forecast("EUR", costs, {}, time)
    assert plain.expected is not None
    low = month_forecast("EUR", costs, {today: 50 * UNIT}, time)
    assert (low.total, low.committed) == (plain.total, Decimal(50))
    high = month_forecast("EUR", costs, {today + 1: 5000 * UNIT, today + 60: UNIT}, time)
    assert (high.committed, high.total - plain.total) == (Decimal(5000), Decimal(5000 - WEEK[(today + 1) % 7]))
    # The budget of the month ends what is expected, never what is committed.
    capped = month_forecast("EUR", costs, {}, time, plain.spent + 1000)
    assert (capped.expected, capped.high, capped.capped) == (Decimal(1000), plain.spent + 1000, True)
    assert month_forecast("EUR", costs, {today: 99 * UNIT}, time, Decimal(1)).total == plain.spent + 99


def test_volumes_go_on_to_cost_what_they_do() -> None:
    time, begun = at("2026-11-11T00:00"), at("2026-10-20T00:00")
    today = int(time // DAY_S)
    kept = Volume("v1", "data", "ada", 1, 1, "atlas", 1, VolumeState.AVAILABLE, begun, begun, price=Decimal(1),
                  currency="EUR", billed_from=begun)  # fmt: skip
    removed = replace(kept, id="v2", billed_until=at("2026-11-02T12:00"))
    volumes = 276 * UNIT, volumes_to_come([kept, removed, replace(kept, billed_from=None)], time)
    assert volumes[1] == 480 * UNIT
    costs = until(weekly(today - 100, today, 0.6), time)
    plain, found = (month_forecast("EUR", costs, {}, time, volumes=some) for some in ((0, 0), volumes))
    assert plain.low is not None
    assert plain.high is not None
    assert (found.spent - plain.spent, found.committed, found.expected) == (Decimal(276), Decimal(480), plain.expected)
    assert (found.low, found.high) == (plain.low + 756, plain.high + 756)
    capped = month_forecast("EUR", costs, {}, time, found.spent + 500, volumes)
    assert (capped.expected, capped.high, capped.capped) == (Decimal(20), found.spent + 500, True)
    assert month_forecast("EUR", {}, {}, time, volumes=volumes).total == 756


def test_hours_to_come_fall_on_their_days() -> None:
    now = at("2026-11-10T22:00")
    today = int(now // DAY_S)
    found = committed_days([(Decimal(3), 3 * 3600.0), (Decimal("0.5"), 2 * 3600.0), (Decimal(9), 0.0)], now)
    assert found == {today: 7 * UNIT, today + 1: 3 * UNIT}


def test_too_little_history_is_no_forecast() -> None:
    time = at("2026-11-10T00:00")
    today = int(time // DAY_S)
    for days, known in ((0, False), (59, False), (60, True)):
        found = month_forecast("EUR", weekly(today - days, today), {today: UNIT}, time)
        assert (found.days, found.expected is not None) == (days, known)
        assert found.committed == 1
        assert (found.low, found.tried) == (None if days < 60 else found.low, 0)


def naive_hits(costs: dict[int, int], today: int, length: int) -> tuple[int, int]:
    """Hit rate with dates and lists, from what is written of it only."""

    def day(number: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(number)

    amounts = {day(number): amount for number, amount in costs.items() if number < today}

    def guess_of(dates: list[datetime], weeks: int) -> float:
        before = [dates[0] - timedelta(number) for number in range(1, 7 * weeks + 1)]
        return sum(sum(amounts[one] for one in before if one.weekday() == date.weekday()) / weeks for date in dates)

    errors = []
    for start in sorted(amounts)[28:]:
        dates = [start + timedelta(number) for number in range(length)]
        if dates[-1] not in amounts:
            break
        off = {1: 0.0, 4: 0.0}
        for first in [one for one in sorted(amounts)[28:] if one + timedelta(7) <= start]:
            seven = [first + timedelta(number) for number in range(7)]
            for weeks in off:
                off[weeks] += abs(guess_of(seven, weeks) - sum(amounts[one] for one in seven))
        guess = guess_of(dates, 1 if off[1] < 0.9 * off[4] else 4)
        errors.append((start, sum(amounts[date] for date in dates) / guess))
    held = tried = 0
    for start, error in errors:
        past = sorted(e for s, e in errors if s + timedelta(length) <= start)
        if len(past) < MIN_WINDOWS:
            continue
        tried += 1

        def percentile(part: float, past: list[float] = past) -> float:
            place = part * (len(past) - 1)
            low = int(place)
            return past[low] + (place - low) * (past[min(low + 1, len(past) - 1)] - past[low])

        held += min(1, percentile(0.1)) <= error <= max(1, percentile(0.9))
    return held, tried


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("growth", [1.0, 1.01, 0.99])
def test_the_hit_rate_is_what_it_says(seed: int, growth: float) -> None:
    time = at("2026-11-11T00:00")
    today = int(time // DAY_S)
    costs = weekly(today - 120, today, 0.6, seed, growth)
    found = month_forecast("EUR", costs, {}, time)
    assert (found.held, found.tried) == naive_hits(costs, today, 20)
    assert 0 < found.held < found.tried
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.total <= found.high > found.low


@pytest.mark.parametrize("growth", [1.0, 1.01, 0.99])
def test_held_back_ends_of_months_are_met_within_15_percent(growth: float) -> None:
    """Also where demand rises or falls by 30 percent a month."""
    begin, end = (int(at(text) // DAY_S) for text in ("2025-01-01T00:00", "2026-12-01T00:00"))
    costs = weekly(begin, end, 0.5, growth=growth)
    errors = []
    for number in range(6, 23):
        first = datetime(2025 + number // 12, number % 12 + 1, 1, tzinfo=UTC)
        month = range(int(first.timestamp() // DAY_S), int((first + timedelta(32)).replace(day=1).timestamp() // DAY_S))
        time = first.timestamp() + 10 * DAY_S
        found: MonthForecast = month_forecast("EUR", until(costs, time), {}, time)
        whole = sum(costs[day] for day in month) * MICRO
        errors.append(abs(found.total / whole - 1))
    assert median(errors) < 0.15
    assert Counter(error < 0.3 for error in errors)[False] == 0


def test_only_a_last_week_that_came_clearly_nearer_is_taken_alone() -> None:
    time = at("2026-11-11T00:00")
    today = int(time // DAY_S)
    rest = range(today, today + 20)

    def expected(costs: dict[int, int]) -> Decimal | None:
        return month_forecast("EUR", costs, {}, time).expected

    steady = weekly(today - 100, today, 0.6)
    means = {day: sum(steady[day - 7 * n] for n in range(1, 5)) / 4 for day in range(today, today + 7)}
    assert expected(steady) == pytest.approx(
        sum(Decimal(round(means[today + (day - today) % 7])) for day in rest) * MICRO
    )
    rising = weekly(today - 100, today, 0.1, growth=1.02)
    assert expected(rising) == sum(rising[today - 7 + (day - today) % 7] for day in rest) * MICRO
