"""One watch of the pods, in a thread of its own: it keeps the cache as the API server says, from a list on.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes. A stream that ends or
breaks is taken up where it was; one that cannot be, because what came since is no longer kept (410, as an answer or as
an event inside one of 200), waits for another list. Whoever lists holds the watch still first, so that nothing older
than the list comes after it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from burstd.domain.errors import CloudUnavailable, ProviderError
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.client.watch_stream import WatchEvent, WatchStream
from providers.openshift.errors import ResourceVersionExpired, error_for_watch_event
from providers.openshift.pods.cache import PodCache, resource_version

_QUIET_S = 90.0
"""Bookmarks come every minute, from a server that sends any."""
_LONG_S = 1800
"""After that the server ends a stream."""
_PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_OPENING_S = 5.0
_WHAT = "watch pods"


class PodWatch:
    """Held still until ``go``. ``clock`` need not know the date; ``pauses`` are between tries, in seconds."""

    def __init__(
        self,
        calls: OpenShiftCalls,
        selector: str,
        cluster: str,
        cache: PodCache,
        clock: Callable[[], float] = time.monotonic,
        pauses: Sequence[float] = _PAUSES_S,
    ) -> None:
        self._calls = calls
        self._selector = selector
        self._cluster = cluster
        self._cache = cache
        self._clock = clock
        self._pauses = pauses
        self._changed = threading.Condition()
        self._turn = 0
        """Whoever is of an earlier turn is told nothing and tells nothing."""
        self._from: int | None = None
        self._since: float | None = None
        """When ``go`` was, until the stream is open or did not open."""
        self._open = False
        self._closed = False
        self._stream: WatchStream | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive(self) -> bool:
        """What happens comes in: the stream is open, or is about to be for the first time since the list."""
        with self._changed:
            return self._open or (self._since is not None and self._clock() - self._since < _OPENING_S)

    def pause(self) -> None:
        """From now on nothing is told to the cache."""
        with self._changed:
            self._turn += 1
            self._from, self._since, self._open = None, None, False
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def resume_from(self, at: int) -> None:
        """Goes on from a list's resourceVersion."""
        with self._changed:
            if self._closed:
                return
            self._turn += 1
            self._from, self._since = at, self._clock()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="burstd-watch-pods", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread, which may have a call under way that it does not wait for the answer of."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self.pause()
        if thread is not None:
            thread.join(_OPENING_S)

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            tries = 0
            while self._is_turn(turn):
                self._wait(turn, self._pauses[min(tries, len(self._pauses) - 1)])
                tries = 0 if self._follow(turn) else tries + 1

    def _next(self) -> int | None:
        """Waits for somewhere to go on from; None: closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._from is not None)
            return None if self._closed else self._turn

    def _is_turn(self, turn: int) -> bool:
        with self._changed:
            return not self._closed and self._turn == turn and self._from is not None

    def _wait(self, turn: int, pause_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._turn != turn, pause_s)

    def _follow(self, turn: int) -> bool:
        """One stream from its beginning to its end; whether anything came by it."""
        received = False
        try:
            stream = self._begin(turn)
            for event in stream or ():
                if not self._apply(turn, event):
                    break
                received = True
        except ResourceVersionExpired:
            self._lose(turn)
        except ProviderError:
            pass  # Whoever lists meets the same trouble, and can say so.
        finally:
            self._end(turn)
        return received

    def _begin(self, turn: int) -> WatchStream | None:
        with self._changed:
            if self._turn != turn or self._from is None:
                return None
            at = self._from
        query = {
            "labelSelector": self._selector, "resourceVersion": str(at), "allowWatchBookmarks": "true",
            "timeoutSeconds": _LONG_S,
        }  # fmt: skip
        stream = self._calls.watch(self._calls.path_of("pods"), query, what=_WHAT, quiet_s=_QUIET_S)
        with self._changed:
            if self._turn == turn and not self._closed:
                self._stream, self._open, self._since = stream, True, None
                return stream
        stream.close()
        return None

    def _apply(self, turn: int, event: WatchEvent) -> bool:
        """To the cache, unless it is no longer this stream's turn. Raises Expired, CloudUnavailable."""
        kind, thing = event.get("type"), event["object"]
        if kind == "ERROR":
            raise error_for_watch_event(thing, _WHAT)
        at = resource_version(thing)
        with self._changed:
            if self._turn != turn or self._closed:
                return False
            if self._from is not None and at < self._from:
                raise ResourceVersionExpired(
                    f"cannot {_WHAT}: the API server's counter went back: was it restored from a backup?"
                )
            if kind == "BOOKMARK":
                self._cache.advance_to(at)
            elif kind in ("ADDED", "MODIFIED", "DELETED"):
                self._pod(kind, thing)
            else:
                raise CloudUnavailable(f"the API server's watch says {kind!r}: is there a proxy in between?")
            self._from = at
        return True

    def _pod(self, kind: str, pod: WatchEvent) -> None:
        if kind == "DELETED" or not labels.belongs_to_cluster(pod, self._cluster):
            self._cache.apply_removal(pod)
        else:
            self._cache.apply_change(pod)

    def _lose(self, turn: int) -> None:
        with self._changed:
            if self._turn == turn:
                self._from = None

    def _end(self, turn: int) -> None:
        with self._changed:
            if self._turn == turn:
                stream, self._stream = self._stream, None
                self._open, self._since = False, None
            else:
                stream = None
        if stream is not None:
            stream.close()
