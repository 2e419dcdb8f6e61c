"""What may hang, such as the program that a kubeconfig names for its tokens, is waited for, but not for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")

_ABANDON_FACTOR = 20
"""After so many times its limit a call that has not returned is left behind, and made anew."""


class TimeLimitedCall(Generic[T]):
    """One call at a time, in a thread of its own; all who ask meanwhile wait for that one, ``limit_s`` at most."""

    def __init__(self, call: Callable[[], T], limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._call = call
        self._limit_s = limit_s
        self._clock = clock
        self._lock = threading.Lock()
        self._running: Future[T] | None = None
        self._began = 0.0

    def result(self) -> T:
        """What it returns, or raises. Raises TimeoutError, while the call goes on."""
        with self._lock:
            running, now = self._running, self._clock()
            if running is None or running.done() or now - self._began > _ABANDON_FACTOR * self._limit_s:
                running = self._running = Future()
                self._began = now
                threading.Thread(target=self._run, args=(running,), name="burstd-patience", daemon=True).start()
        return running.result(self._limit_s)

    def _run(self, running: Future[T]) -> None:
        try:
            running.set_result(self._call())
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            running.set_exception(error)
