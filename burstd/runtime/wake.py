"""What ends the wait between two loops."""

from __future__ import annotations

import threading


class Wake:
    """Set from any thread, waited for by one."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> None:
        """The next loop is due at once."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Returns at once when set since the last call, else when set or when the time is over."""
        woken = self._event.wait(timeout_s)
        self._event.clear()
        return woken
