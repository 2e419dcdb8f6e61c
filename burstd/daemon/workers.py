"""Where calls to clouds and machines run, and how their results come back to the one thread that decides."""

from __future__ import annotations

import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

T = TypeVar("T")

log = structlog.get_logger(__name__)


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


class ThreadWorkers:
    """A bounded pool of threads for each lane (a provider, its listings, the nodes): a slow cloud holds up itself.

    So does a user, whose file systems, nodes and hands may stand still.
    """

    def __init__(self, wake: Callable[[], None], width: int) -> None:
        self._wake = wake
        self._width = width
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._results: queue.SimpleQueue[tuple[str, Callable[[], None], bool]] = queue.SimpleQueue()
        """Each with its lane, and whether it is news."""
        self._closing = threading.Event()
        self._counting = threading.Lock()
        self._under_way: Counter[str] = Counter()
        self._of_user: Counter[tuple[str, int]] = Counter()
        """What a user has in the pool of a lane ..."""
        self._waiting: defaultdict[tuple[str, int], deque[Callable[[], None]]] = defaultdict(deque)
        """... and what waits until some of that has ended."""

    def submit(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | Exception], None],
        quiet: Callable[[T], bool] | None = None,
        user: int | None = None,
    ) -> None:
        """See Workers."""
        pool = self._pools.get(lane)
        if pool is None:
            pool = self._pools[lane] = ThreadPoolExecutor(self._width, thread_name_prefix=lane)

        def run() -> None:
            news = True
            try:
                result: T | Exception = (answer := work())
                news = quiet is None or not quiet(answer)
            except Exception as error:  # noqa: BLE001  it goes to ``done``, which must deal with it
                result = error
            with self._counting:
                self._under_way[lane] -= 1
                then = self._next(lane, user)
            self._back(lane, lambda: done(result), news=news)
            if then is not None and not self._closing.is_set():
                pool.submit(then)

        with self._counting:
            self._under_way[lane] += 1
            if user is not None:
                if self._of_user[lane, user] >= max(1, self._width // 2):
                    self._waiting[lane, user].append(run)
                    return
                self._of_user[lane, user] += 1
        pool.submit(run)

    def _next(self, lane: str, user: int | None) -> Callable[[], None] | None:
        """What runs in the place of a user's work that has ended."""
        if user is None:
            return None
        if waiting := self._waiting.get((lane, user)):
            return waiting.popleft()
        self._waiting.pop((lane, user), None)
        self._of_user[lane, user] -= 1
        if not self._of_user[lane, user]:
            del self._of_user[lane, user]
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
        while True:
            try:
                lane, done, news = self._results.get_nowait()
            except queue.Empty:
                return count
            finish(lane, done, broke)
            count += news

    def under_way(self) -> dict[str, int]:
        """Calls that were begun or wait, by lane; from any thread."""
        with self._counting:
            return dict(+self._under_way)

    def close(self) -> None:
        """Takes no more work and drops what waits; what is under way is repeated after the next start."""
        self._closing.set()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
