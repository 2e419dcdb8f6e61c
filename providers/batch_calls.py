"""Calls of one launch or one end, some at a time, until the cloud does not want or answer any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from burstd.domain.errors import CloudUnavailable, OutcomeUnknown, ProviderError, RateLimited

Item = TypeVar("Item")
Result = TypeVar("Result")
_MIN_UNANSWERED = 3


class BatchCall:
    """What goes wrong with one call goes wrong for that one alone, with two exceptions.

    Once the cloud says that calls are too many, none follows; nor once as many in a row as are made at a time (but at
    least three) were left without an answer: each costs the time limit of a call, and a thousand of them hours.
    """

    def __init__(self, at_a_time: int) -> None:
        self._at_a_time = at_a_time
        self._lock = threading.Lock()
        self._unanswered = 0
        self._stopped_by: ProviderError | None = None

    def call_each(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | ProviderError]:
        """What comes of each, in their order."""
        if len(items) < 2:
            return [self._call_one(call, thing) for thing in items]
        with ThreadPoolExecutor(min(len(items), self._at_a_time)) as pool:
            return list(pool.map(lambda thing: self._call_one(call, thing), items))

    def _call_one(self, call: Callable[[Item], Result], item: Item) -> Result | ProviderError:
        with self._lock:
            if self._stopped_by is not None:
                return self._stopped_by
        found: Result | ProviderError
        try:
            found = call(item)
        except ProviderError as error:
            found = error
        except Exception as error:  # noqa: BLE001 - an answer of a strange form must not cost the others their outcomes
            found = OutcomeUnknown(f"the cloud's answer cannot be understood: {error!r}")
        self._record(found)
        return found

    def _record(self, found: object) -> None:
        with self._lock:
            silent = isinstance(found, CloudUnavailable | OutcomeUnknown)
            self._unanswered = self._unanswered + 1 if silent else 0
            if isinstance(found, RateLimited):
                self._stopped_by = RateLimited(
                    f"left for later: the cloud said of another call that they are too many ({found})",
                    retry_after_s=found.retry_after_s,
                )
            elif self._unanswered >= max(self._at_a_time, _MIN_UNANSWERED) and self._stopped_by is None:
                self._stopped_by = CloudUnavailable(
                    f"left for later: {self._unanswered} calls in a row had no answer ({found})"
                )
