"""Calls of an object that are made by a head that is sure that it leads, and by no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from burstd.domain.errors import BurstdError

T = TypeVar("T")
Sure = Callable[[], None]
"""Raises BurstdError where this head is not sure that it leads."""


def guard_calls(target: T, calls: Sequence[str], sure: Sure | None, refusal: Callable[[str], Exception]) -> T:
    """From now on these of its methods, where it has them, raise ``refusal`` where this head is not sure.

    ``sure`` None: the record is a file, and nothing is changed. It stays the object that it is, so that it has the
    interfaces that it has. Raises AttributeError: it has __slots__.
    """
    for call in calls:
        method = getattr(target, call, None)
        if method is not None and sure is not None:
            setattr(target, call, _guarded(method, sure, refusal))
    return target


def _guarded(method: Callable[..., Any], sure: Sure, refusal: Callable[[str], Exception]) -> Callable[..., Any]:
    @wraps(method)
    def guarded(*args: Any, **named: Any) -> Any:
        try:
            sure()
        except BurstdError as error:
            raise refusal(f"not asked: {error}") from error
        return method(*args, **named)

    return guarded
