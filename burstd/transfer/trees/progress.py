"""How far an upload has come: written by it, read by whoever shows it."""

from __future__ import annotations

import threading


class UploadProgress:
    """Counters of one transfer, for all threads. Sizes in bytes.

    ``bytes_walked`` is what is known of the source so far; ``bytes_done`` is what is in the store; of it,
    ``bytes_hits`` was there before or was sent by another transfer. ``bytes_sent`` is what this one put on the wire,
    the list of files included.
    """

    def __init__(self) -> None:
        self.bytes_walked = 0
        self.bytes_done = 0
        self.bytes_sent = 0
        self.bytes_hits = 0
        self.files = 0
        self.warnings: list[str] = []
        """What was left out of the transfer: twenty sentences at most."""
        self._lock = threading.Lock()

    def add_walked(self, files: int, size: int) -> None:
        """Adds what was found in the source."""
        self.files += files
        self.bytes_walked += size

    def add_done(self, size: int, *, hit: bool) -> None:
        """Adds bytes of files that are in the store."""
        with self._lock:
            self.bytes_done += size
            if hit:
                self.bytes_hits += size

    def add_sent(self, size: int) -> None:
        """Adds bytes that went over the wire."""
        with self._lock:
            self.bytes_sent += size

    def leave_out(self, sentence: str) -> None:
        """Reports something that is no data."""
        if len(self.warnings) < 20:
            self.warnings.append(sentence)

    def restart(self) -> None:
        """The source is read once more from its beginning; what was sent stays sent."""
        with self._lock:
            self.bytes_walked = self.bytes_done = self.bytes_hits = self.files = 0
            self.warnings.clear()
