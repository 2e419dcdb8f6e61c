"""What a cloud says and seldom changes, kept for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from burstd.model.errors import ProviderError

_RETRY_S = 60.0
Made = TypeVar("Made")


class Kept(Generic[Made]):
    """An answer that is asked for again when it is old; if that fails it is kept a minute more.

    ``clock`` need not know the date: it only has to run on.
    """

    def __init__(self, read: Callable[[], Made], for_s: float, clock: Callable[[], float]) -> None:
        self._read = read
        self._for_s = for_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: list[Made] = []
        self._until = 0.0

    def get(self) -> Made:
        """Raises what reading raises while there was no answer yet."""
        with self._lock:
            now = self._clock()
            if not self._known or now >= self._until:
                try:
                    self._known = [self._read()]
                    self._until = now + self._for_s
                except ProviderError:
                    if not self._known:
                        raise
                    self._until = now + _RETRY_S
            return self._known[0]
