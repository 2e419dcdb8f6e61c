"""Where calls to clouds and machines run, and how their results come back to the one thread that decides."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)

TURN_S = 60.0
"""How long the work of a user waits at most before some of it runs, whoever fills its lane; and until the loop's next
step."""
BEYOND = 64
"""Threads that a lane may have for that, besides its width."""


def raised(lane: str, error: Exception) -> None:
    """Lets an error of a ``done`` out of ``drain``."""
    del lane
    raise error


def finish(lane: str, done: Callable[[], None], broke: Callable[[str, Exception], None]) -> None:
    """Runs one ``done``; see Workers.drain."""
    try:
        done()
    except Exception as error:  # noqa: BLE001  whoever drains makes an alarm of it, or raises it
        broke(lane, error)


class Workers(Protocol):
    """Runs blocking work elsewhere. ``done`` runs later in the deciding thread, from ``drain``."""

    def submit(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """Runs ``work`` in the lane; ``done`` gets what it returned or raised.

        ``user``: whose it is, by uid. The work of one user never takes more than half of a lane.

        ``quiet``, called in the lane: whether what ``work`` returned is no news. Nobody is woken for it then, and
        ``drain`` does not count it: ``done`` runs when something else brings about the next ``drain``.
        """
        ...

    def post(self, done: Callable[[], None]) -> None:
        """Has ``done`` run in the deciding thread; called from any thread."""
        ...

    def drain(self, broke: Callable[[str, Exception], None] = raised) -> int:
        """Runs what has come back so far, in the caller's thread; returns how much of it was news.

        ``broke`` gets the lane and the error of a ``done`` that raised one; the others run all the same.
        """
        ...


@dataclass(slots=True)
class _Lane:
    """``running`` and ``waiting`` are by user; None: burstd's own work. Whose turn was last stands last."""

    pool: ThreadPoolExecutor
    running: Counter[int | None] = field(default_factory=Counter)
    waiting: dict[int | None, deque[tuple[float, Callable[[], None]]]] = field(default_factory=dict)
    """Each with the time since when."""


class ThreadWorkers:
    """A bounded pool of threads for each lane (a provider, its listings, the nodes): a slow cloud holds up itself.

    So does a user, whose file systems, nodes and hands may stand still: users have turns, no user has more than half of
    a lane, and one of whose work nothing runs while some has waited for TURN_S has a thread beyond the lane's width
    when ``drain`` is called next. It takes more users than BEYOND, standing still together, to hold up another.
    """

    def __init__(self, wake: Callable[[], None], width: int, now: Callable[[], float] = time.monotonic) -> None:
        """``now``: seconds."""
        self._wake = wake
        self._width = width
        self._now = now
        self._lanes: dict[str, _Lane] = {}
        self._results: queue.SimpleQueue[tuple[str, Callable[[], None], bool]] = queue.SimpleQueue()
        """Each with its lane, and whether it is news."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        """Of the lanes."""

    def submit(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """See Workers."""

        def run() -> None:
            news = True
            try:
                result: T | Exception = (answer := work())
                news = quiet is None or not quiet(answer)
            except Exception as error:  # noqa: BLE001  it goes to ``done``, which must deal with it
                result = error
            with self._lock:
                found.running[user] -= 1
                if not found.running[user]:
                    del found.running[user]
            self._back(lane, lambda: done(result), news=news)
            self._begin(found)

        with self._lock:
            found = self._lanes.get(lane) or _Lane(ThreadPoolExecutor(self._width + BEYOND, thread_name_prefix=lane))
            self._lanes[lane] = found
            found.waiting.setdefault(user, deque()).append((self._now(), run))
        self._begin(found)

    def _begin(self, lane: _Lane) -> None:
        """Begins what may be begun."""
        with self._lock:
            while not self._closing.is_set() and (run := self._next(lane)):
                lane.pool.submit(run)

    def _next(self, lane: _Lane) -> Callable[[], None] | None:
        """Of the first whose turn it may be."""
        busy = lane.running.total()
        for user, waiting in lane.waiting.items():
            most = self._width if user is None else max(1, self._width // 2)
            late = user is not None and not lane.running[user] and self._now() - waiting[0][0] >= TURN_S
            if (busy < self._width and lane.running[user] < most) or (late and busy < self._width + BEYOND):
                lane.running[user] += 1
                _, run = waiting.popleft()
                del lane.waiting[user]
                if waiting:
                    lane.waiting[user] = waiting
                return run
        return None

    def post(self, done: Callable[[], None]) -> None:
        """See Workers."""
        self._back("", done, news=True)

    def _back(self, lane: str, done: Callable[[], None], *, news: bool) -> None:
        if not self._closing.is_set():
            self._results.put((lane, done, news))
            if news:
                self._wake()

    def drain(self, broke: Callable[[str, Exception], None] = raised) -> int:
        """See Workers."""
        count = 0
        for late in tuple(self._lanes.values()):
            self._begin(late)
        while True:
            try:
                lane, done, news = self._results.get_nowait()
            except queue.Empty:
                return count
            finish(lane, done, broke)
            count += news

    def under_way(self) -> dict[str, int]:
        """Calls that were begun or wait, by lane; from any thread."""
        with self._lock:
            counts = {n: lane.running.total() + sum(map(len, lane.waiting.values())) for n, lane in self._lanes.items()}
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """Takes no more work and drops what waits; what is under way is repeated after the next start."""
        with self._lock:
            self._closing.set()
        for lane in tuple(self._lanes.values()):
            lane.pool.shutdown(wait=False, cancel_futures=True)
