"""burstd's time, and how long a failed call pauses before it is made again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol

_CALENDAR_END = 253_402_300_800.0
"""The end of year 9999, where calendars end."""


def until_text(time: float) -> str:
    """``until 2026-11-21 22:00 UTC``, so that a sentence stays the same until then; without an end: ``for ever``."""
    return (
        datetime.fromtimestamp(time, UTC).strftime("until %Y-%m-%d %H:%M UTC") if time < _CALENDAR_END else "for ever"
    )


def utc_clock_text(time: float, now: float, form: str = "%H:%M:%S") -> str:
    """Of seconds since 1970, ``14:13:08 UTC``, with the date where it is another day's than ``now``."""
    then, today = datetime.fromtimestamp(time, UTC), datetime.fromtimestamp(now, UTC)
    return f"{then:{form if then.date() == today.date() else f'%Y-%m-%d {form}'}} UTC"


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """``first_s`` after the first failure, doubling with each failure in a row to ``most_s``."""
    return min(first_s * 2.0 ** min(failures - 1, 30), most_s)


class Clock(Protocol):
    """Time as burstd counts it: seconds since 1970, never going backwards, unmoved by jumps of the system clock."""

    def now(self) -> float:
        """burstd's own time, in seconds since 1970: starts at the system's time, then runs steadily."""
        ...

    def wall(self) -> float:
        """The system's time, in seconds since 1970, for translating what other programs say."""
        ...
