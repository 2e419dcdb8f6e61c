"""Workers whose work is done when a test says so, in any order, by slow lines where it says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from burstd.runtime.workers import reraise, run_callback
from tests.virtual.clock import VirtualClock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delay:
    """How slow a lane is, in seconds: until a call is carried out, and from then until its answer is here."""

    before_s: float = 0.0
    after_s: float = 0.0


_NONE = Delay()
_Call = tuple[float, str, Callable[[], Any], Callable[[Any], None], Callable[[Any], bool] | None]
"""When it may run, its lane, the work, and what gets its result and tells whether that is news."""


@dataclass(slots=True)
class QueuedWorkers:
    """See burstd.runtime.workers.Workers. Everything runs in the caller's thread."""

    clock: VirtualClock
    delays: dict[str, Delay]
    """By lane."""
    _queued: list[_Call] = field(default_factory=list)
    _results: list[tuple[float, Callable[[], None], str]] = field(default_factory=list)
    _quiet_results: list[tuple[float, Callable[[], None], str]] = field(default_factory=list)
    """Results that are no news."""

    def submit(
        self,
        queue_name: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,  # noqa: ARG002  there is no lane to fill
    ) -> None:
        """See Workers."""
        due = self.clock.now() + self.delays.get(queue_name, _NONE).before_s
        self._queued.append((due, queue_name, work, done, quiet))

    def post(self, done: Callable[[], None]) -> None:
        """See Workers."""
        self._results.append((self.clock.now(), done, ""))

    def run_callbacks(self, on_error: Callable[[str, Exception], None] = reraise) -> int:
        """See Workers."""
        come = [one for one in self._quiet_results if one[0] <= self.clock.now()]
        self._quiet_results = [one for one in self._quiet_results if one[0] > self.clock.now()]
        for _, done, queue_name in come:
            run_callback(queue_name, done, on_error)
        count = 0
        while True:
            index = next((i for i, (due, _, _) in enumerate(self._results) if due <= self.clock.now()), None)
            if index is None:
                return count
            _, done, queue_name = self._results.pop(index)
            run_callback(queue_name, done, on_error)
            count += 1

    @property
    def has_work(self) -> bool:
        """True while something is queued, or has come back and was not drained."""
        return bool(self._queued or self._results or self._quiet_results)

    @property
    def has_results(self) -> bool:
        """True while an answer is here that was not drained: the daemon is woken by it."""
        return any(one[0] <= self.clock.now() for one in self._results)

    def next_due(self) -> float:
        """When there is something to do next, or an answer is here; infinite: nothing is under way."""
        return min([item[0] for item in self._queued] + [item[0] for item in self._results], default=float("inf"))

    def run_one(self, which: int = 0) -> bool:
        """Does one piece of queued work that is due, any of them; False: there is none."""
        ready = [i for i, item in enumerate(self._queued) if item[0] <= self.clock.now()]
        if not ready:
            return False
        _, lane, work, done, quiet = self._queued.pop(ready[which % len(ready)])
        try:
            result: Any = work()
            news = quiet is None or not quiet(result)
        except Exception as error:  # noqa: BLE001  as in ThreadWorkers
            result, news = error, True
        back = self._results if news else self._quiet_results
        back.append((self.clock.now() + self.delays.get(lane, _NONE).after_s, lambda: done(result), lane))
        return True
