"""Workers whose work is done when a test says so, in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class QueuedWorkers:
    """See burstd.daemon.workers.Workers. Everything runs in the caller's thread."""

    queued: list[tuple[str, Callable[[], Any], Callable[[Any], None]]] = field(default_factory=list)
    _results: deque[Callable[[], None]] = field(default_factory=deque)

    def submit(self, lane: str, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        """See Workers."""
        self.queued.append((lane, work, done))

    def post(self, done: Callable[[], None]) -> None:
        """See Workers."""
        self._results.append(done)

    def drain(self) -> int:
        """See Workers."""
        count = 0
        while self._results:
            self._results.popleft()()
            count += 1
        return count

    @property
    def waiting(self) -> bool:
        """True while something is queued, or has come back and was not drained."""
        return bool(self.queued or self._results)

    def run(self, index: int = 0) -> None:
        """Does one piece of queued work, any of them; its result comes with the next drain."""
        _, work, done = self.queued.pop(index % len(self.queued))
        try:
            result: Any = work()
        except Exception as error:  # noqa: BLE001  as in ThreadWorkers
            result = error
        self.post(lambda: done(result))

    def run_all(self) -> None:
        """Does all of it, first come first served."""
        while self.queued:
            self.run()
