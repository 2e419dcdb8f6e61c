"""What a cloud says and seldom changes, kept for a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from burstd.domain.errors import CloudUnavailable, ProviderError, RateLimited

_RETRY_S = 60.0
Value = TypeVar("Value")


class CachedValue(Generic[Value]):
    """An answer that is asked for again when it is old; if that fails it is kept a minute more.

    ``clock`` need not know the date: it only has to run on.
    """

    def __init__(self, read: Callable[[], Value], for_s: float, clock: Callable[[], float]) -> None:
        self._read = read
        self._for_s = for_s
        self._clock = clock
        self._lock = threading.Lock()
        self._known: list[Value] = []
        self._until = 0.0

    def get(self) -> Value:
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


class CachedByKey(Generic[Value]):
    """The same for answers to many words. What the cloud refuses is not kept on: only that it does not answer."""

    def __init__(self, read: Callable[[str], Value], for_s: float, clock: Callable[[], float]) -> None:
        self._read = read
        self._for_s = for_s
        self._clock = clock
        self._known: dict[str, tuple[float, Value]] = {}

    def get(self, key: str) -> Value:
        """Raises what reading raises."""
        found = self._known.get(key)
        if found is not None and self._clock() < found[0]:
            return found[1]
        for_s = self._for_s
        try:
            value = self._read(key)
        except (CloudUnavailable, RateLimited):
            if found is None:
                raise
            value, for_s = found[1], _RETRY_S
        self._known[key] = (self._clock() + for_s, value)
        return value
