"""What ends the wait between two loops."""

from __future__ import annotations

import threading


class Wake:
    """Set from any thread, waited for by one."""

    def __init__(self) -> None:
        self._event, self._due = threading.Event(), threading.Event()

    def __call__(self) -> None:
        """The next loop is due at once."""
        self._due.set()
        self._event.set()

    def wake_to_answer(self) -> None:
        """Somebody waits for an answer, for which no loop is due."""
        self._event.set()

    def is_due(self) -> bool:
        """Whether a loop is due since the last ``wait``."""
        return self._due.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Returns at once when set since the last call, else when set or when the time is over.

        True: a loop is due.
        """
        self._event.wait(timeout_s)
        self._event.clear()
        due = self._due.is_set()
        if due:
            self._due.clear()
        return due
