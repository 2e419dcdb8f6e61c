"""Calls that are made again and again: when the next one is due, and how failures put it off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

import structlog

from burstd.domain.clock import Clock, backoff_s
from burstd.domain.errors import BurstdError
from burstd.runtime.workers import Workers

_T = TypeVar("_T")

log = structlog.get_logger(__name__)

FETCH_S = 1.0
RETRY_MAX_S = 60.0
"""Longest pause after failures, unless the caller names another."""


@dataclass(slots=True)
class RepeatedCall:
    """One call: in flight, or not to be made before ``due`` (burstd's time)."""

    in_flight: bool = False
    due: float = float("-inf")
    failures: int = 0
    """In a row."""

    def is_busy(self, now: float) -> bool:
        """True while the call is in flight or paused."""
        return self.in_flight or now < self.due

    def succeed(self, due: float = float("-inf")) -> None:
        """The call ended well: the next failure starts from the short pause again."""
        self.in_flight, self.failures, self.due = False, 0, due

    def fail(
        self, now: float, first_s: float, most_s: float = RETRY_MAX_S, *, at_least_s: float = 0.0, spread: str = ""
    ) -> None:
        """The call failed: the pause doubles from ``first_s`` to ``most_s`` seconds, and is never under ``at_least_s``.

        ``spread`` varies it by a quarter, equally for equal words, so that not all come back at once.
        """
        self.in_flight = False
        self.failures += 1
        pause = backoff_s(self.failures, first_s, most_s)
        if spread:
            pause *= 0.75 + 0.5 * (crc32(f"{spread} {self.failures}".encode()) / 2**32)
        self.due = now + max(at_least_s, pause)


class Poller:
    """Reads one thing again and again in a lane of the workers; what it finds out comes to the deciding thread.

    Used in the deciding thread. After a failure the pause doubles from ``retry_s`` to ``most_s``.
    """

    def __init__(
        self,
        workers: Workers,
        clock: Clock,
        queue_name: str,
        what: str,
        *,
        interval_s: Callable[[], float],
        retry_s: Callable[[], float],
        most_s: Callable[[], float] = lambda: RETRY_MAX_S,
        from_end: bool = False,
    ) -> None:
        """``what``: the thing that is read, for the log; the times in seconds, looked up anew each time.

        The interval runs from the beginning of a call; ``from_end``: from its end, for calls that may take longer.
        """
        self._workers, self._clock = workers, clock
        self._queue_name, self.what = queue_name, what
        self._interval_s, self._retry_s, self._most_s, self._from_end = interval_s, retry_s, most_s, from_end
        self._call = RepeatedCall()
        self._wakes = True
        self.begun = float("-inf")
        """When the last call began, in burstd's time."""
        self.error = ""
        """Why the last call failed; empty: it did not."""

    @property
    def failures(self) -> int:
        """In a row."""
        return self._call.failures

    @property
    def is_due(self) -> bool:
        """True where ``poll`` would make the call."""
        return not self._call.is_busy(self._clock.now())

    def hasten(self, due: float) -> None:
        """The next call is due at this time at the latest, unless the last one failed."""
        if not self.failures:
            self._call.due = min(self._call.due, due)

    def make_due(self) -> None:
        """The next call is due at once, even after a failure."""
        self._call.due = float("-inf")

    def skip(self) -> None:
        """Leaves the call that is due out."""
        self._call.due = self._clock.now() + self._interval_s()

    def rest(self, seconds: float) -> None:
        """No call is due for so long."""
        self._call.due = max(self._call.due, self._clock.now() + seconds)

    def next_due(self) -> float:
        """When ``poll`` is to be called again, in burstd's time; infinite where the answer wakes the loop."""
        if not self._call.in_flight:
            return self._call.due
        # An answer without news wakes nobody: it is fetched when the next call is due, or once a second after that.
        return float("inf") if self._wakes else max(self._call.due, self._clock.now() + FETCH_S)

    def poll(
        self,
        read: Callable[[], _T],
        on_answer: Callable[[_T], None],
        on_failure: Callable[[Exception], None] | None = None,
        quiet: Callable[[_T], bool] | None = None,
    ) -> None:
        """Makes the call if it is due. ``quiet`` as in Workers.submit."""
        if not self.is_due:
            return
        self.begun = begun = self._clock.now()
        self._call.in_flight, self._call.due, self._wakes = True, begun + self._interval_s(), quiet is None

        def done(result: _T | Exception) -> None:
            if isinstance(result, Exception):
                self._fail(result)
                if on_failure is not None:
                    on_failure(result)
                return
            if self.failures:
                log.info("can be read again", what=self.what)
            self.error = ""
            self._call.succeed((self._clock.now() if self._from_end else begun) + self._interval_s())
            on_answer(result)

        self._workers.submit(self._queue_name, read, done, quiet)

    def _fail(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if not isinstance(error, BurstdError):
            log.error("reading failed unexpectedly", what=self.what, exc_info=error)
        elif not self.failures:
            log.warning("cannot be read", what=self.what, error=text)
        self.error = text
        self._call.fail(self._clock.now(), self._retry_s(), self._most_s())
