"""The sandbox's refusals, and answers that do not come, as errors of a provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.sandbox.cloud.refusals import AnswerLost, RefusalCode, SandboxRefused, SandboxUnreachable

R = TypeVar("R")
_ERRORS: dict[RefusalCode, type[ProviderError]] = {
    RefusalCode.CAPACITY: InsufficientCapacity,
    RefusalCode.QUOTA: QuotaExceeded,
    RefusalCode.BAD_REQUEST: BadRequest,
    RefusalCode.TOKEN_REUSED: BadRequest,
    RefusalCode.IN_USE: BadRequest,
    RefusalCode.RATE: RateLimited,
    RefusalCode.AUTH: AuthFailed,
    RefusalCode.NOT_FOUND: NotFound,
    RefusalCode.UNAVAILABLE: CloudUnavailable,
}


def query(call: Callable[[], R]) -> R:
    """A call that changes nothing: without an answer, the cloud is unavailable."""
    try:
        return call()
    except (AnswerLost, SandboxUnreachable) as error:
        raise CloudUnavailable(str(error)) from error
    except SandboxRefused as no:
        raise _ERRORS.get(no.code, CloudUnavailable)(str(no), retry_after_s=no.retry_after_s) from no


def mutate(call: Callable[[], R]) -> R:
    """A call that changes something: without a clear answer, its outcome is unknown."""
    try:
        return call()
    except SandboxUnreachable as error:
        raise CloudUnavailable(str(error)) from error
    except AnswerLost as error:
        raise OutcomeUnknown(str(error)) from error
    except SandboxRefused as no:
        raise _ERRORS.get(no.code, OutcomeUnknown)(str(no), retry_after_s=no.retry_after_s) from no
