"""What OpenStack's services answer, and what its libraries raise, as the errors of the interface.

Answers: https://docs.openstack.org/api-ref/compute/#faults and the same of network and block storage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)

_LIMIT = 400
_REQUEST_IDS = ("x-openstack-request-id", "x-compute-request-id")
_QUOTA = re.compile(r"quota|maximum number of|limit exceeded|exceeds allowed", re.IGNORECASE)
"""Nova says 403 for quotas, its own and Neutron's; Neutron 409; Cinder 413. Each says so for other things too."""
_RESET = re.compile(r"disconnect/reset|reset before headers", re.IGNORECASE)
"""In a balancer's 503: it had found a service, which may have taken the request."""
_TAG = re.compile(r"<[^>]*>")
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_UNSENT = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})
"""Of urllib3: no connection came about. What keystoneauth calls ConnectTimeout may be any time limit."""
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
"""A certificate is looked at before anything is sent; what is no TLS at all has understood nothing."""


class OpenStackConflict(BadRequest):
    """The thing is in a state, or in a use, that does not allow it."""


class OpenStackResponse(NamedTuple):
    """What came back for one request. Names of ``headers`` in small letters."""

    status: int
    headers: Mapping[str, str]
    body: str


def error_for_response(answer: OpenStackResponse, what: str, *, changes: bool) -> ProviderError:
    """The error for an answer of 300 and more. ``what``, in the infinitive, is what was asked for."""
    status, text = answer.status, _text(answer)
    pause = _retry_after_s(answer)
    message = f"OpenStack would not {what}: {text}"
    from_service = any(name in answer.headers for name in _REQUEST_IDS)
    if changes and status in (403, 409, 413) and _QUOTA.search(text):
        return QuotaExceeded(message)
    if status in (413, 429):
        return RateLimited(message, retry_after_s=pause)
    if status == 401:
        return AuthFailed(f"{message}; a new token did not help: look at the credentials in clouds.yaml")
    if status == 403:
        return NotAllowed(f"{message}; look at the roles of burstd's user in its project")
    if status in (404, 410) and not from_service:
        # Of a proxy, or of a service that is about to come up. What is gone, only the service itself can say.
        return CloudUnavailable(f"{message}; no service of OpenStack's says that: is there a proxy in between?")
    if status in (404, 410):
        return NotFound(message)
    if status == 409:
        return OpenStackConflict(message)
    if status == 503 and not from_service and not _RESET.search(text):
        # A balancer's, which found no service to pass it on to.
        return CloudUnavailable(message, retry_after_s=pause)
    if status >= 500 or status == 408:
        return (OutcomeUnknown if changes else CloudUnavailable)(message, retry_after_s=pause)
    if status < 400:
        return CloudUnavailable(f"{message}; the address in the service catalogue leads elsewhere")
    return BadRequest(message)


def error_for_login(answer: OpenStackResponse) -> ProviderError:
    """The error where Keystone gave no token. Its words about a request of a wrong form may repeat the secret."""
    status = answer.status
    if status in (413, 429) or status >= 500 or status == 408:
        kind = CloudUnavailable if status >= 500 or status == 408 else RateLimited
        return kind(f"Keystone gives no token: {_text(answer)}", retry_after_s=_retry_after_s(answer))
    said = _text(answer) if status in (401, 403) else f"HTTP {status}"
    return AuthFailed(
        f"Keystone gives burstd no token: {said}; look at the password or application credential in clouds.yaml, "
        "whether it has expired, and at auth_url and project"
    )


def error_without_response(error: BaseException, what: str, *, changes: bool, sent: bool) -> ProviderError:
    """The error where no answer came. ``sent``: a change was on its way out, as far as is known."""
    text = _plain(str(error))
    if not (changes and sent) or _surely_unsent(error):
        return CloudUnavailable(f"cannot {what}: {text}")
    return OutcomeUnknown(f"no answer came when burstd would {what}: {text}")


def _surely_unsent(error: BaseException) -> bool:
    for one in _causes(error):
        if type(one).__name__ in _UNSENT and type(one).__module__.startswith("urllib3."):
            return True
        if type(one).__name__ == "SSLError" and any(word in str(one) for word in _DISTRUST):
            return True
    return False


def _causes(error: BaseException) -> Iterator[BaseException]:
    """keystoneauth raises errors of its own without their cause, which is their context then."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _retry_after_s(answer: OpenStackResponse) -> float:
    """Seconds, from the header in one of its two forms, or from the body as Nova has it; 0: nothing is said."""
    said = answer.headers.get("retry-after", "") or str(_field(_parsed(answer), "retryAfter") or "")
    try:
        return max(0.0, float(said))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _text(answer: OpenStackResponse) -> str:
    """What was said, in one line of bearable length, with the status."""
    said = _parsed(answer)
    text = _field(said, "message") or _field(said, "detail") or _field(said, "title")
    if not text and said is None:
        text = _TAG.sub(" ", answer.body)
    words = _plain(str(text or ""))
    return f"{words} (HTTP {answer.status})" if words else f"HTTP {answer.status}"


def _plain(text: str) -> str:
    return _USER.sub("", " ".join(text.split()))[:_LIMIT].rstrip(". ")


def _field(said: Any, key: str) -> Any:
    """Most services wrap it: ``{"badRequest": {"message": ...}}``, ``{"errors": [{"detail": ...}]}``."""
    if isinstance(said, list):
        return next((found for one in said if (found := _field(one, key))), None)
    if not isinstance(said, dict):
        return None
    return said.get(key) or next(
        (found for one in said.values() if isinstance(one, dict | list) and (found := _field(one, key))), None
    )


def _parsed(answer: OpenStackResponse) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return None
