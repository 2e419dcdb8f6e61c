"""What OpenStack's services answer, and what its libraries raise, as the errors of the interface.

Answers: https://docs.openstack.org/api-ref/compute/#faults and the same of network and block storage.
"""

from __future__ import annotations

import json
import re
from typing import Any

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
from providers.http_errors import HttpResponse, retry_after_s, short_message, surely_unsent

_LIMIT = 400
_REQUEST_IDS = ("x-openstack-request-id", "x-compute-request-id")
_QUOTA = re.compile(r"quota|maximum number of|limit exceeded|exceeds allowed", re.IGNORECASE)
"""Nova says 403 for quotas, its own and Neutron's; Neutron 409; Cinder 413. Each says so for other things too."""
_RESET = re.compile(r"disconnect/reset|reset before headers", re.IGNORECASE)
"""In a balancer's 503: it had found a service, which may have taken the request."""


class OpenStackConflict(BadRequest):
    """The thing is in a state, or in a use, that does not allow it."""


def error_for_response(answer: HttpResponse, what: str, *, changes: bool) -> ProviderError:
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


def error_for_login(answer: HttpResponse) -> ProviderError:
    """The error where Keystone gave no token. Its words about a request of a wrong form may repeat the secret."""
    status = answer.status
    if status in (413, 429) or status >= 500 or status == 408:
        kind = CloudUnavailable if status >= 500 or status == 408 else RateLimited
        return kind(f"Keystone gives no token: {_text(answer)}", retry_after_s=_retry_after_s(answer))
    said = _text(answer) if status in (401, 403) else f"HTTP {status}"
    return AuthFailed(
        f"Keystone gives burstd no token: {said}; look at the password or application credential in clouds.yaml, "
        "whether it has expired, and at auth_url and project; restart burstd after a change of clouds.yaml"
    )


def error_without_response(error: BaseException, what: str, *, changes: bool, sent: bool) -> ProviderError:
    """The error where no answer came. ``sent``: a change was on its way out, as far as is known."""
    text = short_message(str(error), _LIMIT)
    if not (changes and sent) or surely_unsent(error):
        return CloudUnavailable(f"cannot {what}: {text}")
    return OutcomeUnknown(f"no answer came when burstd would {what}: {text}")


def _retry_after_s(answer: HttpResponse) -> float:
    """Seconds, from the header or from the body as Nova has it; 0: nothing is said."""
    return retry_after_s(answer.headers.get("retry-after"), _field(_parsed(answer), "retryAfter"))


def _text(answer: HttpResponse) -> str:
    """What was said, in one line of bearable length, with the status."""
    said = _parsed(answer)
    if said is None:
        return answer.text("", _LIMIT)
    text = _field(said, "message") or _field(said, "detail") or _field(said, "title")
    return answer._replace(body="").text(str(text or ""), _LIMIT)


def _field(said: Any, key: str) -> Any:
    """Most services wrap it: ``{"badRequest": {"message": ...}}``, ``{"errors": [{"detail": ...}]}``."""
    if isinstance(said, list):
        return next((found for one in said if (found := _field(one, key))), None)
    if not isinstance(said, dict):
        return None
    return said.get(key) or next(
        (found for one in said.values() if isinstance(one, dict | list) and (found := _field(one, key))), None
    )


def _parsed(answer: HttpResponse) -> Any:
    try:
        return json.loads(answer.body)
    except ValueError:
        return None
