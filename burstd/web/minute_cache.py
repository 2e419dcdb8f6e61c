"""Answers that are worked out from the record, for pages that many keep open: made once a minute for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

KEEP_S = 60.0
_MAX_KEPT = 256


class MinuteCache(Generic[T]):
    """The last answers. A key names the caller too: what one may see is not for another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable, now: float, make: Callable[[], T]) -> T:
        """The answer of this key, at most KEEP_S seconds old; ``now`` in seconds."""
        with self._lock:
            kept = self._made.get(key)
        if kept is not None and 0 <= now - kept[0] < KEEP_S:
            return kept[1]
        made = make()
        with self._lock:
            if len(self._made) >= _MAX_KEPT:
                self._made.clear()
            self._made[key] = (now, made)
        return made
