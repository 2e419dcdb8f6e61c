"""Where calls to clouds and machines run, and how their results come back to the one thread that decides."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_USER_WAIT_S = 60.0
"""Seconds that a user's work waits at most before some of it runs, besides the time until the loop's next step."""
MAX_EXTRA_THREADS = 64
"""Threads that a lane may add to its width for such users."""


def reraise(queue_name: str, error: Exception) -> None:
    """Raises an error of a ``done`` out of ``run_callbacks``."""
    del queue_name
    raise error


def run_callback(queue_name: str, done: Callable[[], None], on_error: Callable[[str, Exception], None]) -> None:
    """Runs one ``done``; an error goes to ``on_error`` with the name of the lane."""
    try:
        done()
    except Exception as error:  # noqa: BLE001  whoever drains makes an alarm of it, or raises it
        on_error(queue_name, error)


class Workers(Protocol):
    """Runs blocking work in threads. ``done`` runs later in the deciding thread, from ``run_callbacks``."""

    def submit(
        self,
        queue_name: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """Runs ``work`` in the lane; ``done`` gets what it returned or raised.

        ``user``: whose it is, by uid. The work of one user never takes more than half of a lane.

        ``quiet``, called in the lane: whether what ``work`` returned is no news. It wakes no loop then, and
        ``run_callbacks`` does not count it: ``done`` runs at the next call that something else brings about.
        """
        ...

    def post(self, done: Callable[[], None]) -> None:
        """Has ``done`` run in the deciding thread; called from any thread."""
        ...

    def run_callbacks(self, on_error: Callable[[str, Exception], None] = reraise) -> int:
        """Runs what has come back so far, in the caller's thread; returns how much of it was news.

        ``on_error`` gets the lane and the error of each ``done`` that raises; the others run all the same.
        """
        ...


@dataclass(slots=True)
class _WorkQueue:
    """``running`` and ``waiting`` are by user; None: burstd's own work. Whose turn was last stands last."""

    width: int
    threads: ThreadPoolExecutor
    running: Counter[int | None] = field(default_factory=Counter)
    waiting: dict[int | None, deque[tuple[float, Callable[[], None]]]] = field(default_factory=dict)
    """Each with the time since when."""


class ThreadWorkers:
    """A bounded pool of threads for each lane (a provider, its listings, the nodes): a slow cloud holds up itself.

    So does a user, whose file systems, nodes and workers may hang: users take turns, and no user has more than half of
    a lane. A user whose work has waited for MAX_USER_WAIT_S while none of it runs gets a thread beyond the lane's width
    at the next ``run_callbacks``. Only more than MAX_EXTRA_THREADS users that hang together hold up another.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        width: int,
        now: Callable[[], float] = time.monotonic,
        widths: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """``width``: how much of a lane runs at once, ``widths`` of lanes by name; ``now``: seconds."""
        self._wake = wake
        self._width, self._widths = width, widths
        self._now = now
        self._queues: dict[str, _WorkQueue] = {}
        self._results: queue.SimpleQueue[tuple[str, Callable[[], None], bool]] = queue.SimpleQueue()
        """Each with its lane, and whether it is news."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        """Of the lanes."""

    def submit(
        self,
        queue_name: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """Queues ``work`` in its lane and starts it at once where a thread and the user's share are free."""

        def run() -> None:
            news = True
            try:
                result: T | Exception = (answer := work())
                news = quiet is None or not quiet(answer)
            except Exception as error:  # noqa: BLE001  it goes to ``done``, which must deal with it
                result = error
            with self._lock:
                work_queue.running[user] -= 1
                if not work_queue.running[user]:
                    del work_queue.running[user]
            self._deliver(queue_name, lambda: done(result), news=news)
            self._start_due(work_queue)

        with self._lock:
            width = self._widths.get(queue_name, self._width)
            work_queue = self._queues.get(queue_name) or _WorkQueue(
                width, ThreadPoolExecutor(width + MAX_EXTRA_THREADS, thread_name_prefix=queue_name)
            )
            self._queues[queue_name] = work_queue
            work_queue.waiting.setdefault(user, deque()).append((self._now(), run))
        self._start_due(work_queue)

    def _start_due(self, work_queue: _WorkQueue) -> None:
        """Begins what may be begun."""
        with self._lock:
            while not self._closing.is_set() and (run := self._next(work_queue)):
                work_queue.threads.submit(run)

    def _next(self, work_queue: _WorkQueue) -> Callable[[], None] | None:
        """Of the first whose turn it may be."""
        busy = work_queue.running.total()
        for user, waiting in work_queue.waiting.items():
            most = work_queue.width if user is None else max(1, work_queue.width // 2)
            late = user is not None and not work_queue.running[user] and self._now() - waiting[0][0] >= MAX_USER_WAIT_S
            if (busy < work_queue.width and work_queue.running[user] < most) or (
                late and busy < work_queue.width + MAX_EXTRA_THREADS
            ):
                work_queue.running[user] += 1
                _, run = waiting.popleft()
                del work_queue.waiting[user]
                if waiting:
                    work_queue.waiting[user] = waiting
                return run
        return None

    def post(self, done: Callable[[], None]) -> None:
        """Has ``done`` run in the deciding thread; dropped once ``close`` was called."""
        self._deliver("", done, news=True)

    def _deliver(self, queue_name: str, done: Callable[[], None], *, news: bool) -> None:
        if not self._closing.is_set():
            self._results.put((queue_name, done, news))
            if news:
                self._wake()

    def run_callbacks(self, on_error: Callable[[str, Exception], None] = reraise) -> int:
        """Starts work that is due, then runs the callbacks of finished work; returns how much of it was news.

        What is finished meanwhile is left to the next call: each writes to the record, and they may come as fast.
        """
        count = 0
        for work_queue in tuple(self._queues.values()):
            self._start_due(work_queue)
        for _ in range(self._results.qsize()):
            queue_name, done, news = self._results.get_nowait()
            run_callback(queue_name, done, on_error)
            count += news
        return count

    def calls_under_way(self) -> dict[str, int]:
        """Calls that were begun or wait, by lane; from any thread."""
        with self._lock:
            counts = {
                n: work_queue.running.total() + sum(map(len, work_queue.waiting.values()))
                for n, work_queue in self._queues.items()
            }
        return {name: count for name, count in counts.items() if count}

    def close(self) -> None:
        """Takes no more work and drops what waits; what is under way is repeated after the next start."""
        with self._lock:
            self._closing.set()
        for work_queue in tuple(self._queues.values()):
            work_queue.threads.shutdown(wait=False, cancel_futures=True)
