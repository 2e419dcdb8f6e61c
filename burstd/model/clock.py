"""burstd's time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time as burstd counts it: seconds since 1970, never going backwards, unmoved by jumps of the system clock."""

    def now(self) -> float:
        """burstd's own time, in seconds since 1970: starts at the system's time, then runs steadily."""
        ...

    def wall(self) -> float:
        """The system's time, in seconds since 1970, for translating what other programs say."""
        ...
