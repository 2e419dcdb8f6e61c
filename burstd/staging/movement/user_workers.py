"""All that one user reaches: files by one hand, objects of S3 and Swift by others, each started when it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from burstd.transfer.privsep.client import Account, Hand
from burstd.transfer.privsep.object_workers import ObjectHand, scheme

Objects = Callable[[Account, str], ObjectHand]
"""Takes whose and of what: ``s3`` or ``swift``. Raises HandError."""


class UserHands:
    """For one thread at a time. Use it with ``with``."""

    def __init__(self, who: Account, files: Hand, objects: Objects, cancelled: threading.Event | None = None) -> None:
        """Takes the hand for files over. ``cancelled``: all of them heed it."""
        self.who = who
        self.files = files
        self._cancelled = cancelled or threading.Event()
        files.heed(self._cancelled)
        self._start = objects
        self._objects: dict[str, ObjectHand] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for hand in (self.files, *self._objects.values()):
            hand.close()

    def at(self, place: str) -> Hand:
        """The hand that reaches a path or a URL. Raises HandError."""
        kind = scheme(place)
        if not kind:
            return self.files
        if kind not in self._objects:
            self._objects[kind] = self._start(self.who, kind)
            self._objects[kind].heed(self._cancelled)
        return self._objects[kind]

    def left_out(self) -> list[str]:
        """What objects cannot be and was to be written, since this was asked last."""
        found = [path for hand in self._objects.values() for path in hand.left_out]
        for hand in self._objects.values():
            hand.left_out.clear()
        return found
