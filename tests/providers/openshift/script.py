"""Calls whose lists and streams a test says, word by word."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from burstd.domain.errors import CloudUnavailable, ProviderError
from providers.openshift.client.calls import KubeObject, OpenShiftCalls, Query
from providers.openshift.settings import OpenShiftSettings
from tests.providers.openshift.things import BORN_S

PATIENCE_S = 10.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class ScriptedStream:
    """A watch that says what it is told to say; ``tell`` returns when that was taken in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._said: list[Any] = []
        self._idle = False
        self.closed = False

    def send_event(self, kind: str, thing: Any) -> None:
        with self._changed:
            self._said.append({"type": kind, "object": thing})
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.closed or (self._idle and not self._said), PATIENCE_S)

    def bookmark(self, version: int) -> None:
        self.send_event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})

    def end(self, error: ProviderError | None = None) -> None:
        with self._changed:
            self._said.append(error)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.closed, PATIENCE_S)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self.closed or bool(self._said), PATIENCE_S)
                if self.closed:
                    return
                one = self._said.pop(0)
                self._idle = False
            if isinstance(one, ProviderError):
                raise one
            if one is None:
                return
            yield one


class ScriptedCalls(OpenShiftCalls):
    """``lists`` are answered one after another; each watch waits until the test gives it its stream, or an error."""

    def __init__(self, settings: OpenShiftSettings) -> None:
        super().__init__(settings, clock=lambda: 0.0, date=lambda: BORN_S)
        self.lists: list[tuple[list[KubeObject], int] | ProviderError] = []
        self.asked: list[str] = []
        self.watched: queue.Queue[Query] = queue.Queue()
        self.during: Callable[[], object] = lambda: None
        """Called while a list is under way."""
        self._over = False
        self._streams: queue.Queue[ScriptedStream | ProviderError] = queue.Queue()

    def says(self, *pods: KubeObject, at: int) -> None:
        self.lists.append((list(pods), at))

    def list_objects(self, path: str, query: Query | None = None, *, what: str) -> tuple[list[KubeObject], str]:  # noqa: ARG002
        self.asked.append(f"LIST {path} {(query or {})['labelSelector']}")
        answer = self.lists.pop(0)
        self.during()
        if isinstance(answer, ProviderError):
            raise answer
        return answer[0], str(answer[1])

    def watch(self, path: str, query: Query, *, what: str, quiet_s: float) -> Any:  # noqa: ARG002
        self.asked.append(f"WATCH {path} {query['labelSelector']}")
        self.watched.put(query)
        if self._over:
            raise CloudUnavailable("the test is over")
        try:
            got = self._streams.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise CloudUnavailable("the test gave no stream") from None
        if isinstance(got, ProviderError):
            raise got
        return got

    def opens(self) -> tuple[ScriptedStream, str]:
        """A stream for the next watch, and from where that was asked to go on; the watch has taken it."""
        query = self.watched.get(timeout=PATIENCE_S)
        stream = ScriptedStream()
        self._streams.put(stream)
        with stream._changed:
            assert stream._changed.wait_for(lambda: stream._idle or stream.closed, PATIENCE_S)
        return stream, str(query["resourceVersion"])

    def refuses(self, error: ProviderError) -> str:
        """The next watch fails."""
        query = self.watched.get(timeout=PATIENCE_S)
        self._streams.put(error)
        return str(query["resourceVersion"])

    def let_go(self) -> None:
        """Whatever waits for a stream gets none."""
        self._over = True
        for _ in range(8):
            self._streams.put(CloudUnavailable("the test is over"))
