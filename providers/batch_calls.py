"""Calls of one launch or one end, some at a time, until the cloud does not want or answer any more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from burstd.domain.errors import CloudUnavailable, OutcomeUnknown, ProviderError, RateLimited

Thing = TypeVar("Thing")
Result = TypeVar("Result")
_SILENT = 3


class Pace:
    """What goes wrong with one call goes wrong for that one alone, with two exceptions.

    Once the cloud says that calls are too many, none follows; nor once as many in a row as are made at a time (but at
    least three) were left without an answer: each costs the time limit of a call, and a thousand of them hours.
    """

    def __init__(self, at_a_time: int) -> None:
        self._at_a_time = at_a_time
        self._lock = threading.Lock()
        self._silent = 0
        self._over: ProviderError | None = None

    def each(self, do: Callable[[Thing], Result], things: Sequence[Thing]) -> list[Result | ProviderError]:
        """What comes of each, in their order."""
        if len(things) < 2:
            return [self._one(do, thing) for thing in things]
        with ThreadPoolExecutor(min(len(things), self._at_a_time)) as pool:
            return list(pool.map(lambda thing: self._one(do, thing), things))

    def _one(self, do: Callable[[Thing], Result], thing: Thing) -> Result | ProviderError:
        with self._lock:
            if self._over is not None:
                return self._over
        found: Result | ProviderError
        try:
            found = do(thing)
        except ProviderError as error:
            found = error
        except Exception as error:  # noqa: BLE001 - an answer of a strange form must not cost the others their outcomes
            found = OutcomeUnknown(f"the cloud's answer cannot be understood: {error!r}")
        self._heard(found)
        return found

    def _heard(self, found: object) -> None:
        with self._lock:
            silent = isinstance(found, CloudUnavailable | OutcomeUnknown)
            self._silent = self._silent + 1 if silent else 0
            if isinstance(found, RateLimited):
                self._over = RateLimited(
                    f"left for later: the cloud said of another call that they are too many ({found})",
                    retry_after_s=found.retry_after_s,
                )
            elif self._silent >= max(self._at_a_time, _SILENT) and self._over is None:
                self._over = CloudUnavailable(f"left for later: {self._silent} calls in a row had no answer ({found})")
