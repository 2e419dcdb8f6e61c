"""How far transfers are, written by the threads that move the bytes and read by those that show it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MeterReading:
    """A meter at one moment. Bytes and bytes/s; ``total`` 0: not known so far."""

    name: str
    direction: str
    """``in``, ``place``, ``collect`` or ``home``."""
    done: int
    total: int
    sent: int
    """Of ``done``, what had to be moved."""
    hits: int
    """Of ``done``, what was there already."""
    rate: float
    eta_s: float | None
    seconds: float
    still_s: float = 0.0
    """For so long ``done`` has been what it is, as far as anybody has looked."""


class Meter:
    """Counts the bytes of one transfer."""

    def __init__(self, name: str, direction: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.direction = direction
        self._lock = threading.Lock()
        self._clock = clock
        self._began = self._moved = clock()
        self._before = 0
        """What had been done at that time."""
        self._done = self._total = self._sent = self._hits = 0
        self._source: Callable[[], tuple[int, int, int]] | None = None

    def expect_total(self, total: int) -> None:
        """So many bytes in all."""
        with self._lock:
            self._total = max(self._total, total)

    def follow_source(self, source: Callable[[], tuple[int, int, int]]) -> None:
        """Reads bytes done, sent and hit elsewhere from now on; called by any thread."""
        with self._lock:
            self._source = source

    def set_counts(self, *, done: int, sent: int, hits: int, total: int = 0) -> None:
        """So far."""
        with self._lock:
            self._done, self._sent, self._hits = done, sent, hits
            self._total = max(self._total, total, done)

    def add_moved(self, size: int) -> None:
        """So many more bytes have been moved."""
        with self._lock:
            self._done += size
            self._sent += size
            self._total = max(self._total, self._done)

    def current_progress(self) -> MeterReading:
        """Now."""
        with self._lock:
            if self._source is not None:
                self._done, self._sent, self._hits = self._source()
                self._total = max(self._total, self._done)
            now = self._clock()
            if self._done != self._before:
                self._before, self._moved = self._done, now
            seconds = max(now - self._began, 1e-3)
            rate = self._done / seconds
            left = self._total - self._done
            eta = left / rate if rate > 0 and self._total else None
            return MeterReading(
                self.name, self.direction, self._done, self._total, self._sent, self._hits, rate, eta, seconds,
                now - self._moved,
            )  # fmt: skip
