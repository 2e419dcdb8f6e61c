"""burstd's time."""

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


class Clock(Protocol):
    """Time as burstd counts it: seconds since 1970, never going backwards, unmoved by jumps of the system clock."""

    def now(self) -> float:
        """burstd's own time, in seconds since 1970: starts at the system's time, then runs steadily."""
        ...

    def wall(self) -> float:
        """The system's time, in seconds since 1970, for translating what other programs say."""
        ...
