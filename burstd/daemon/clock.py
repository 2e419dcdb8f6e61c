"""The real clock."""

from __future__ import annotations

import time

JUMP_S = 5.0
"""How far the system clock must move against the steady one to be called a jump."""


class SteadyClock:
    """Starts at the system's time, then runs with the monotonic clock: jumps do not reach the timeouts."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._known = self._offset

    def not_before(self, known: float) -> None:
        """Goes on from ``known``, the last time on record, where the system's time has been set back since.

        Else what was written down then would lie in the future, and everything that waits for a later listing, or for
        the end of a pause, would wait for as long.
        """
        self._offset += max(0.0, known - self.now())

    def now(self) -> float:
        """burstd's time, in seconds since 1970."""
        return time.monotonic() + self._offset

    def wall(self) -> float:
        """The system's time, in seconds since 1970."""
        return time.time()

    def jumped(self) -> float:
        """Seconds by which the system clock has jumped since the last call; 0: not, or by less than JUMP_S."""
        offset = time.time() - time.monotonic()
        jump = offset - self._known
        self._known = offset if abs(jump) >= JUMP_S else self._known
        return jump if abs(jump) >= JUMP_S else 0.0
