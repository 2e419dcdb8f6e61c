"""Google's error codes as the errors of the interface: of answers, and of operations that fail later.

Answers: https://cloud.google.com/compute/docs/troubleshooting/api-errors, https://cloud.google.com/apis/design/errors
Operations: https://cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from burstd.domain.cloud.quoting import one_line
from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NoSuchImage,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.http_errors import HttpResponse, retry_after_s, short_message

_LIMIT = 400
_MAX_CODE = 80
_CAPACITY = (
    "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED",
    "RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "STOCKOUT", "RESERVATION_CAPACITY_EXCEEDED",
    # A subnetwork without addresses.
    "IP_SPACE_EXHAUSTED", "IP_SPACE_EXHAUSTED_WITH_DETAILS",
)  # fmt: skip
_QUOTA = ("QUOTA_EXCEEDED", "quotaExceeded", "LIMIT_EXCEEDED", "limitExceeded", "CPU_LIMIT_EXCEEDED")
_RATE = (
    "rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "RESOURCE_OPERATION_RATE_EXCEEDED",
    "resourceOperationRateExceeded", "operationRateExceeded", "concurrentLimitExceeded",
)  # fmt: skip
_AUTH = (
    "accessNotConfigured", "SERVICE_DISABLED", "BILLING_DISABLED", "billingNotEnabled", "authError", "UNAUTHENTICATED",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "CONSUMER_INVALID", "USER_PROJECT_DENIED",
)  # fmt: skip
_DENIED = ("forbidden", "insufficientPermissions", "PERMISSION_DENIED", "PERMISSIONS_ERROR", "IAM_PERMISSION_DENIED")


class GoogleAlreadyExists(BadRequest):
    """A thing of that name exists."""


class GoogleNotReady(BadRequest):
    """The thing is in a state that does not allow it."""


_KINDS: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, InsufficientCapacity),
    **dict.fromkeys(_QUOTA, QuotaExceeded),
    **dict.fromkeys(_RATE, RateLimited),
    **dict.fromkeys(_AUTH, AuthFailed),
    **dict.fromkeys(_DENIED, NotAllowed),
    **dict.fromkeys(("alreadyExists", "RESOURCE_ALREADY_EXISTS"), GoogleAlreadyExists),
    **dict.fromkeys(("resourceNotReady", "RESOURCE_NOT_READY"), GoogleNotReady),
    **dict.fromkeys(("notFound", "RESOURCE_NOT_FOUND"), NotFound),
}


def error_for_response(answer: HttpResponse, what: str, *, changes: bool) -> ProviderError:
    """The error for an answer of 300 and more. ``what``, in the infinitive, is what was asked for."""
    status, said = answer.status, _error_of(answer.body)
    if said is None:
        return _error_of_others(answer, what, changes=changes)
    code, pause = _code(said), retry_after_s(answer.headers.get("retry-after"))
    message = f"Google would not {what}: {_described(str(said.get('message') or ''), code, answer)}"
    kind = _KINDS.get(code)
    if kind is None or (status >= 500 and kind is not InsufficientCapacity):
        kind = _kind_of_status(status, changes=changes)
    if kind is AuthFailed:
        message += "; look at the credentials, the project's billing and its enabled services"
    elif kind is NotAllowed:
        message += "; look at the roles of burstd's service account"
    return kind(message, retry_after_s=pause)


def operation_error(operation: Mapping[str, Any]) -> ProviderError:
    """The error of an operation that failed; its message has Google's code."""
    said = operation.get("error")
    first = next(iter(_objects(said.get("errors") if isinstance(said, dict) else None)), {})
    code = one_line(str(first.get("code") or operation.get("httpErrorMessage") or "no code"), _MAX_CODE)
    text = short_message(str(first.get("message") or ""), _LIMIT)
    kind = _KINDS.get(code, ProviderError)
    if kind is NotFound or code in ("INVALID_FIELD_VALUE", "INVALID_USAGE", "UNSUPPORTED_OPERATION"):
        kind = never_found(text)
    return kind(f"{text} ({code})" if text else code)


def never_found(text: str) -> type[BadRequest]:
    """The kind where a launch names what is not there: an image, or something else."""
    return NoSuchImage if "/images/" in text else BadRequest


def _kind_of_status(status: int, *, changes: bool) -> type[ProviderError]:
    if status == 429:
        return RateLimited
    if status == 401:
        return AuthFailed
    if status == 403:
        return NotAllowed
    if status in (404, 410):
        return NotFound
    if status >= 500 or status == 408:
        return OutcomeUnknown if changes else CloudUnavailable
    return BadRequest


def _error_of_others(answer: HttpResponse, what: str, *, changes: bool) -> ProviderError:
    """What is none of Google's own words says nothing of what is there."""
    kind = _kind_of_status(answer.status, changes=changes)
    if kind in (NotFound, BadRequest, NotAllowed):
        kind = OutcomeUnknown if changes else CloudUnavailable
    text = answer.text("", _LIMIT)
    message = f"cannot {what}: the answer is none of Google's ({text}): is there a proxy in between?"
    return kind(message, retry_after_s=retry_after_s(answer.headers.get("retry-after")))


def _error_of(body: str) -> Mapping[str, Any] | None:
    try:
        said = json.loads(body)
    except ValueError:
        return None
    found = said.get("error") if isinstance(said, dict) else None
    return found if isinstance(found, dict) else None


def _code(said: Mapping[str, Any]) -> str:
    """The most exact of Google's words for it: of the details, of the first error, of the whole."""
    objects = [*_objects(said.get("details")), *_objects(said.get("errors"))]
    reasons = [one_line(str(one["reason"]), _MAX_CODE) for one in objects if one.get("reason")]
    status = one_line(str(said.get("status") or ""), _MAX_CODE)
    return next((one for one in reasons if one in _KINDS), next(iter([*reasons, status])))


def _objects(said: Any) -> list[Mapping[str, Any]]:
    """Those of a list, if it is one."""
    return [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []


def _described(message: str, code: str, answer: HttpResponse) -> str:
    text = answer._replace(body="").text(message, _LIMIT)
    return f"{text[:-1]}, {code})" if code and text.endswith(")") else text
