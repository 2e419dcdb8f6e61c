"""Counts the calls to a cloud, whoever makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import structlog

from burstd.domain.errors import ProviderError
from burstd.domain.plugins.provider import LaunchOutcome, Provider

CALLS = (
    "offers", "prepare", "launch", "instances", "terminate", "leftovers", "remove", "notices", "acknowledge", "images",
    "routes", "open_route", "close_routes", "disks", "create_disk", "attach_disk", "detach_disk", "delete_disk",
    "quotas",
)  # fmt: skip
"""Methods of Provider, and of the interfaces that a provider may have beside it, that ask the cloud."""

log = structlog.get_logger(__name__)

OnCall = Callable[[str, str, Mapping[str, int]], None]
"""Gets provider, call, and how often it came to each outcome."""


def count_calls(name: str, provider: Provider, on_call: OnCall) -> None:
    """From now on ``on_call`` learns of each call of this provider: in the thread that makes it, once it is over.

    The provider stays the object that it is, so that it has the interfaces that it has.
    """
    for call in CALLS:
        method = getattr(provider, call, None)
        if method is None:
            continue
        try:
            setattr(provider, call, _counted(name, call, method, on_call))
        except AttributeError:  # a plug-in with __slots__
            log.warning("calls of this provider are not counted", provider=name, call=call)


def _counted(name: str, call: str, method: Callable[..., Any], on_call: OnCall) -> Callable[..., Any]:
    @wraps(method)
    def counted(*args: Any, **named: Any) -> Any:
        try:
            result = method(*args, **named)
        except Exception as error:
            on_call(name, call, {_outcome(error): 1})
            raise
        if isinstance(result, Iterator):
            return _pages(result, name, call, on_call)
        on_call(name, call, _outcomes(call, result))
        return result

    return counted


def _pages(result: Iterator[Any], name: str, call: str, on_call: OnCall) -> Iterator[Any]:
    """A list that is read as it is used: it fails, or is over, at its end."""
    try:
        yield from result
    except Exception as error:
        on_call(name, call, {_outcome(error): 1})
        raise
    on_call(name, call, {"ok": 1})


def _outcomes(call: str, result: Any) -> Mapping[str, int]:
    """Of a launch or its preparation one for each machine."""
    if call not in ("launch", "prepare") or not isinstance(result, Sequence):
        return {"ok": 1}
    each = (one.result if isinstance(one, LaunchOutcome) else one for one in result)
    return Counter(_outcome(one) if isinstance(one, Exception) else "ok" for one in each)


def _outcome(error: Exception) -> str:
    """The short word of a provider's error; ``error`` for any other."""
    return error.cause if isinstance(error, ProviderError) else "error"
