"""One watch of the pods, in a thread of its own: it keeps the cache as the API server says, from a list on.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes. A stream that ends or
breaks is taken up where it was. A watch that cannot be, because what came since is no longer kept (410, as an answer or
as an event inside one of 200), ends. Whoever lists closes the watch first, so that nothing older than the list comes
after it, and starts another from the list.
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
PAUSES_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_OPENING_S = 5.0
_WHAT = "watch pods"


class PodWatch:
    """Follows the pods from resourceVersion ``at`` on, until it is closed or has lost its place.

    ``clock`` need not know the date; ``pauses`` are between tries, in seconds.
    """

    def __init__(
        self,
        calls: OpenShiftCalls,
        cluster: str,
        cache: PodCache,
        at: int,
        clock: Callable[[], float] = time.monotonic,
        pauses: Sequence[float] = PAUSES_S,
    ) -> None:
        self._calls = calls
        self._cluster = cluster
        self._cache = cache
        self._from = at
        self._clock = clock
        self._pauses = pauses
        self._began: float | None = clock()
        """None: the first stream was opened, or could not be."""
        self._lock = threading.Lock()
        self._stream: WatchStream | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="burstd-watch-pods", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """What happens comes in: the stream is open, or is about to be for the first time since the list."""
        with self._lock:
            return self._stream is not None or (self._began is not None and self._clock() - self._began < _OPENING_S)

    def close(self, *, wait: bool = False) -> None:
        """From now on nothing is told to the cache. The thread ends, but for a call under way, which is not waited
        for long; ``wait``: for what can end at once.
        """
        with self._lock:
            self._closed.set()
        self._hang_up()
        if wait:
            self._thread.join(_OPENING_S)

    def _run(self) -> None:
        tries = 0
        while not self._closed.wait(self._pauses[min(tries, len(self._pauses) - 1)]):
            tries += 1
            try:
                for event in self._open() or ():
                    self._apply(event)
                    tries = 0
            except ResourceVersionExpired:
                return
            except ProviderError:
                pass  # Whoever lists meets the same trouble, and can say so.
            finally:
                self._hang_up()

    def _open(self) -> WatchStream | None:
        query = {
            "labelSelector": labels.claim_selector(self._cluster), "resourceVersion": str(self._from),
            "allowWatchBookmarks": "true", "timeoutSeconds": _LONG_S,
        }  # fmt: skip
        stream = self._calls.watch(self._calls.path_of("pods"), query, what=_WHAT, quiet_s=_QUIET_S)
        with self._lock:
            if not self._closed.is_set():
                self._stream, self._began = stream, None
                return stream
        stream.close()
        return None

    def _apply(self, event: WatchEvent) -> None:
        """To the cache, unless the watch is closed. Raises ResourceVersionExpired, CloudUnavailable."""
        kind, thing = event.get("type"), event["object"]
        if kind == "ERROR":
            raise error_for_watch_event(thing, _WHAT)
        at = resource_version(thing)
        with self._lock:
            if self._closed.is_set():
                return
            if at < self._from:
                raise ResourceVersionExpired(
                    f"cannot {_WHAT}: the API server's counter went back: was it restored from a backup?"
                )
            if kind == "BOOKMARK":
                self._cache.advance_to(at)
            elif kind not in ("ADDED", "MODIFIED", "DELETED"):
                raise CloudUnavailable(f"the API server's watch says {kind!r}: is there a proxy in between?")
            elif kind == "DELETED" or not labels.belongs_to_cluster(thing, self._cluster):
                self._cache.apply_removal(thing)
            else:
                self._cache.apply_change(thing)
            self._from = at

    def _hang_up(self) -> None:
        with self._lock:
            stream, self._stream, self._began = self._stream, None, None
        if stream is not None:
            stream.close()
