"""What Azure answers as the errors of the interface.

Codes: https://learn.microsoft.com/azure/azure-resource-manager/troubleshooting/common-deployment-errors and
https://learn.microsoft.com/troubleshoot/azure/virtual-machines/ (allocation, provisioning).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    ClientTokenSpent,
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
_CAPACITY = (
    "AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest",
    "OverconstrainedZonalAllocationRequest", "SkuNotAvailable", "SubnetIsFull",
)  # fmt: skip
_RATE = (
    "TooManyRequests", "SubscriptionRequestsThrottled", "ResourceRequestsThrottled",
    "ResourceCollectionRequestsThrottled", "OperationThrottled",
)  # fmt: skip
_AUTH = (
    "ExpiredAuthenticationToken", "InvalidAuthenticationToken", "InvalidAuthenticationTokenTenant",
    "AuthenticationFailed",
)  # fmt: skip
_DENIED = (
    "AuthorizationFailed", "LinkedAuthorizationFailed", "LinkedAccessCheckFailed", "RequestDisallowedByPolicy",
    "ReadOnlyDisabledSubscription", "ScopeLocked",
)  # fmt: skip
_IMAGE = ("GalleryImageNotFound", "ImageNotFound", "PlatformImageNotFound", "ImageVersionDeprecated")
_NEVER = ("ResourceGroupNotFound", "SubscriptionNotFound", "InvalidSubscriptionId")
# Nothing was done of this call; but an earlier one may be under way.
_BUSY = (
    "AnotherOperationInProgress", "OperationPreempted", "RetryableError", "Conflict", "RequestConflict",
    "ConflictingUserInput", "CanceledAndSupersededDueToAnotherOperation", "RetryableErrorDueToAnotherOperation",
)  # fmt: skip
_BUSY_TEXT = re.compile(r"marked for deletion", re.IGNORECASE)
_RATE_TEXT = re.compile(r"too many requests", re.IGNORECASE)
_LIMITS = re.compile(r"quota|limit", re.IGNORECASE)
"""OperationNotAllowed is said of quotas, and of much else."""
_IMAGES = re.compile(r"/providers/Microsoft\.Compute/(galleries|images)/", re.IGNORECASE)


class AzureAlreadyExists(BadRequest):
    """A thing of that name exists."""


_KIND_OF: dict[str, type[ProviderError]] = {
    **dict.fromkeys(_CAPACITY, InsufficientCapacity),
    **dict.fromkeys(_RATE, RateLimited),
    **dict.fromkeys(_AUTH, AuthFailed),
    **dict.fromkeys(_DENIED, NotAllowed),
    **dict.fromkeys(_IMAGE, NoSuchImage),
    **dict.fromkeys(_NEVER, BadRequest),
    **dict.fromkeys(_BUSY, OutcomeUnknown),
    # Its name's network interface is kept for another machine for three minutes: another name has another.
    "NicReservedForAnotherVm": ClientTokenSpent,
    "PreconditionFailed": AzureAlreadyExists,
    # Where the condition is not heeded: a machine that is there would be changed.
    "PropertyChangeNotAllowed": AzureAlreadyExists,
}
_KINDS = {code.lower(): kind for code, kind in _KIND_OF.items()}
_STATUSES: dict[int, type[ProviderError]] = {
    401: AuthFailed, 403: NotAllowed, 404: NotFound, 412: AzureAlreadyExists, 429: RateLimited,
}  # fmt: skip


def kind_for_code(code: str, text: str) -> type[ProviderError] | None:
    """What a code means, in any letters, whether it is answered or shows later; None: the status decides."""
    code = code.lower()
    if _RATE_TEXT.search(text):
        return RateLimited
    if code in _KINDS:
        return _KINDS[code]
    if (code == "operationnotallowed" and _LIMITS.search(text)) or re.search(r"quota|limitreached|limitexceeded", code):
        return QuotaExceeded
    if code in ("notfound", "resourcenotfound") and _IMAGES.search(text):
        return NoSuchImage
    return OutcomeUnknown if _BUSY_TEXT.search(text) else None


def error_for_response(answer: HttpResponse, what: str, *, changes: bool) -> ProviderError:
    """The error for an answer of 300 and more. ``what``, in the infinitive, is what was asked for."""
    unclear = OutcomeUnknown if changes else CloudUnavailable
    status, said = answer.status, list(_errors(answer.body))
    pause = retry_after_s(answer.headers.get("retry-after"))
    if not said:
        kind = unclear if status >= 500 or status == 408 else _STATUSES.get(status, CloudUnavailable)
        if kind in (NotFound, AzureAlreadyExists):
            kind = CloudUnavailable  # Of a proxy: what is gone, only Azure itself can say.
        return kind(f"Azure would not {what}: {answer.text('', _LIMIT)}", retry_after_s=pause)
    code, text = next(((c, t) for c, t in said if kind_for_code(c, t)), said[0])
    message = f"Azure would not {what}: {short_message(text, _LIMIT)} ({code})"
    if status == 429:
        return RateLimited(message, retry_after_s=pause)
    kind = (
        kind_for_code(code, text)
        or _STATUSES.get(status)
        or (unclear if status >= 500 or status == 408 else BadRequest)
    )
    if kind is OutcomeUnknown:
        kind = unclear
    return kind(message, retry_after_s=pause)


def read_object(body: str) -> dict[str, Any] | None:
    """The JSON object that an answer is; None: it is none."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def error_for_login(text: str) -> ProviderError:
    """The error where Microsoft Entra ID gave no token."""
    return AuthFailed(
        f"Microsoft Entra ID gives burstd no token: {short_message(text, _LIMIT)}; look at tenant, client_id and the "
        "file of the secret, which may have expired, or without tenant at the identity of the head's machine"
    )


def _errors(body: str) -> Iterator[tuple[str, str]]:
    """Codes and texts in an answer, the outermost first; none where it is none of Azure's."""
    waiting = [(read_object(body) or {}).get("error")]
    for one in waiting:
        if isinstance(one, Mapping) and one.get("code"):
            yield str(one["code"]), str(one.get("message") or "")
            more: Any = one.get("details")
            waiting += more if isinstance(more, list) else []
