"""Lets decisions have the processor: Python runs one thread at a time, and a page costs as much as half a decision."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Event
from typing import TypeVar

T = TypeVar("T")


class DecisionPrecedence:
    """Of one piece of work: a decision that is being made goes before it."""

    def __init__(self, between_decisions: Event, max_wait_s: float) -> None:
        """``max_wait_s``: for so long the work waits, all told."""
        self._between_decisions = between_decisions
        self._left_s = max_wait_s

    def wait(self) -> None:
        """Returns at once where no decision is being made."""
        if self._left_s <= 0 or self._between_decisions.is_set():
            return
        begun = time.monotonic()
        self._between_decisions.wait(self._left_s)
        self._left_s -= time.monotonic() - begun

    def slices(self, parts: Iterable[T], size: int) -> Iterator[T]:
        """The parts; waits before each ``size`` of them."""
        for number, part in enumerate(parts):
            if number % size == 0:
                self.wait()
            yield part


UNDISTURBED = DecisionPrecedence(Event(), 0.0)
"""Of work beside which nothing is decided: it never waits."""
