"""Scales of axes, with ticks at numbers that people like."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from burstd.simulate.plots.wording import format_amount

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_WHOLE_STEPS = (1.0, 2.0, 5.0, 10.0)
_HOUR, _DAY = 3600, 86400
_TIME_STEPS = (_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 4 * _DAY, 7 * _DAY, 14 * _DAY)
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120)
_WAITS = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (6 * 3600.0, "6 h"),
    (86400.0, "1 d"), (7 * 86400.0, "1 week"), (30 * 86400.0, "30 d"), (365 * 86400.0, "1 year"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis and what stands beside it."""

    value: float
    text: str


def from_zero(largest: float, wanted: int = 5, steps: Sequence[float] = _STEPS) -> list[Tick]:
    """A linear axis that begins at 0: the last tick is at the largest value or above it."""
    most = largest if math.isfinite(largest) and largest > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(most / wanted))
    step = next(s * power for s in steps if s * power >= most / wanted * (1 - 1e-9))
    return [Tick(n * step, format_amount(round(n * step, 10))) for n in range(math.ceil(most / step - 1e-9) + 1)]


def whole_from_zero(largest: int, wanted: int = 3) -> list[Tick]:
    """The same for things that are counted."""
    return from_zero(max(largest, wanted), wanted, _WHOLE_STEPS)


def waits(largest_s: float) -> list[Tick]:
    """A logarithmic axis of waits from 1 s on: the last tick is at the largest wait or above it."""
    count = next((n for n, (value, _) in enumerate(_WAITS, start=1) if value >= largest_s), len(_WAITS))
    return [Tick(*pair) for pair in _WAITS[: max(3, count)]]


def powers(largest: int) -> list[Tick]:
    """For ``squeezed`` numbers: 0, 10, 100 up to the largest or above; 1 too where there is room for it."""
    top = max(1, math.ceil(math.log10(max(1, largest)) - 1e-9))
    return [Tick(0.0, "0"), *(Tick(float(10**n), f"{10**n:,}") for n in range(top >= 3, top + 1))]


def logarithmic(value: float) -> float:
    """A logarithm that has a zero: near 0 it is linear."""
    return math.log10(1 + value)


def dates(start: float, end: float, wanted: int) -> list[Tick]:
    """Midnights, hours or firsts of months, UTC, about as many as wanted."""
    span = max(end - start, 1.0)
    step = next((s for s in _TIME_STEPS if span / s <= wanted), 0)
    form = "%-d %b" if step >= _DAY else "%-d %b %H:%M"
    moments = _steady(start, end, step) if step else _months(start, end, span, wanted)
    if not step:
        form = "%b %Y"
    return [Tick(when.timestamp(), when.strftime(form)) for when in moments]


def _steady(start: float, end: float, step: int) -> Iterator[datetime]:
    """From the first midnight of the axis where steps are days, so that ticks are at midnights."""
    first = datetime.fromtimestamp(start, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while first.timestamp() <= end:
        if first.timestamp() >= start:
            yield first
        first += timedelta(seconds=step)


def _months(start: float, end: float, span: float, wanted: int) -> Iterator[datetime]:
    step = next((m for m in _MONTH_STEPS if span / (m * 30 * _DAY) <= wanted), _MONTH_STEPS[-1])
    first = datetime.fromtimestamp(start, UTC)
    month = first.year * 12 + (first.month - 1) // step * step
    while (when := datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)).timestamp() <= end:
        if when.timestamp() >= start:
            yield when
        month += step
