"""How far a transfer has come: written by it, read by whoever shows it."""

from __future__ import annotations

import threading
import time
from collections import deque

_WINDOW_S = 15.0


class UploadProgress:
    """Counters of one transfer, for all threads. Sizes in bytes.

    ``bytes_total`` is what is known of the source so far (``expect`` says more beforehand); ``bytes_done`` is what is
    in the store; of it, ``bytes_hits`` was there before or was sent by another transfer. ``bytes_sent`` is what this
    one put on the wire, the list of files included.
    """

    def __init__(self, expect: int = 0) -> None:
        self.expected = expect
        self.bytes_walked = 0
        self.bytes_done = 0
        self.bytes_sent = 0
        self.bytes_hits = 0
        self.files = 0
        self.waits_for_other = False
        """Another transfer is sending the same source, and this one waits for it."""
        self.warnings: list[str] = []
        """What was left out of the transfer: twenty sentences at most."""
        self.left_out = 0
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    @property
    def bytes_total(self) -> int:
        """Size of the source, as far as is known."""
        return max(self.expected, self.bytes_walked)

    @property
    def rate(self) -> float:
        """Bytes done in a second, over the last fifteen seconds."""
        with self._lock:
            began, before = self._samples[0]
            return max(0, self.bytes_done - before) / max(0.001, time.monotonic() - began)

    def add_walked(self, files: int, size: int) -> None:
        """So much more was found."""
        self.files += files
        self.bytes_walked += size

    def add_done(self, size: int, *, hit: bool) -> None:
        """So many bytes of files are in the store."""
        with self._lock:
            self.bytes_done += size
            if hit:
                self.bytes_hits += size
            now = time.monotonic()
            if now > self._samples[-1][0] + 0.5:
                self._samples.append((now, self.bytes_done))
                while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_S:
                    self._samples.popleft()

    def add_sent(self, size: int) -> None:
        """So many bytes went over the wire."""
        with self._lock:
            self.bytes_sent += size

    def leave_out(self, sentence: str) -> None:
        """Something is no data."""
        self.left_out += 1
        if len(self.warnings) < 20:
            self.warnings.append(sentence)

    def restart(self) -> None:
        """The source is gone through once more, from its beginning; what was sent stays sent."""
        with self._lock:
            if self.bytes_walked:
                self.expected = max(self.expected, self.bytes_walked)
            self.bytes_walked = self.bytes_done = self.bytes_hits = self.files = self.left_out = 0
            self.warnings.clear()
            self._samples = deque([(time.monotonic(), 0)])

    def mirror(self, other: UploadProgress) -> None:
        """Shows another transfer's way, which is this one's too."""
        self.waits_for_other = True
        with self._lock:
            self.expected = max(self.expected, other.bytes_total)
            self.bytes_done = other.bytes_done
