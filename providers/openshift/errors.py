"""What the API server answers, and what urllib3 raises, as the errors of the interface.

Answers: https://kubernetes.io/docs/reference/using-api/api-concepts/ and the kind Status of
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/. A refusal by admission is told from a
missing right by its words only: both are 403.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
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

ROLE = "config/openshift/role.yaml"
SCC = "config/openshift/scc.yaml"
_LIMIT = 600
_QUOTA = re.compile(r"exceeded quota", re.IGNORECASE)
_QUOTA_UNREADY = re.compile(r"status unknown for quota|quota evaluation timed out", re.IGNORECASE)
_RBAC = re.compile(r"cannot \S+ (resource|path) |^access denied$", re.IGNORECASE)
_SECURITY = re.compile(
    r"security context constraint|violates PodSecurity|PodSecurityPolicy|pod security polic", re.IGNORECASE
)
_IMPOSSIBLE = re.compile(
    r"(maximum|minimum) \S+ (usage|limit|request)|limit to request ratio|must specify (limits|requests)|not found"
    r"|no PriorityClass|RuntimeClass|is being terminated|mutually exclusive",
    re.IGNORECASE,
)
"""A LimitRange, a quota that wants more to be said, names in the settings that the cluster does not have."""
_NOT_DONE = re.compile(r"failed calling (admission )?webhook|quota evaluation timed out", re.IGNORECASE)
"""In an answer of 500: it came before anything was stored."""


class KubernetesAlreadyExists(BadRequest):
    """Something of that name is there."""


class NoSuchApi(BadRequest):
    """This cluster does not have the kind at all: plain Kubernetes has no Routes."""


class KubernetesConflict(CloudUnavailable):
    """The thing changed meanwhile, and nothing was done: the same may be asked again."""


class ResourceVersionExpired(CloudUnavailable):
    """410: what the list or the watch was to go on from is too old by now."""


def error_for_response(answer: HttpResponse, what: str, *, changes: bool) -> ProviderError:
    """The error for an answer of 300 and more. ``what``, in the infinitive, is what was asked for."""
    status, said = answer.status, _status(answer)
    message = f"Kubernetes would not {what}: {_text(answer, said)}"
    reason = str(said.get("reason") or "")
    if status == 401:
        return AuthFailed(
            f"{message}; reading the kubeconfig again did not help: look at its token or certificate, "
            "and whether it has expired"
        )
    if status == 403:
        return _forbidden(message, str(said.get("message") or answer.body))
    if status == 404:
        return _missing(message, said, answer)
    if status == 409 and reason == "AlreadyExists":
        return KubernetesAlreadyExists(message)
    if status == 409:
        return KubernetesConflict(message)
    if status == 410:
        return ResourceVersionExpired(message)
    if status == 429:
        return RateLimited(message, retry_after_s=_retry_after_s(answer, said))
    if status >= 500 or status == 408:
        lost = changes and not _NOT_DONE.search(str(said.get("message") or ""))
        return (OutcomeUnknown if lost else CloudUnavailable)(message, retry_after_s=_retry_after_s(answer, said))
    if status < 400:
        return CloudUnavailable(f"{message}; the server's address in the kubeconfig leads elsewhere")
    return BadRequest(message)


def error_for_watch_event(said: Mapping[str, Any], what: str) -> ProviderError:
    """The error for an ERROR event inside a watch: a Status, where the answer itself was 200."""
    code = said.get("code")
    status = code if isinstance(code, int) and code >= 300 else 500
    return error_for_response(HttpResponse(status, {}, json.dumps(said)), what, changes=False)


def error_without_response(error: BaseException, what: str, *, changes: bool) -> ProviderError:
    """The error where no answer, or half of one, came."""
    text = short_message(str(error) or type(error).__name__)
    if not changes or surely_unsent(error):
        return CloudUnavailable(f"cannot {what}: {text}")
    return OutcomeUnknown(f"no answer came when burstd would {what}: {text}")


def _forbidden(message: str, said: str) -> ProviderError:
    if _QUOTA_UNREADY.search(said):
        return CloudUnavailable(message)
    if _QUOTA.search(said):
        return QuotaExceeded(message)
    if _RBAC.search(said):
        return NotAllowed(f"{message}; bind the Role of {ROLE} to burstd's account: oc apply -f {ROLE}")
    if _SECURITY.search(said):
        return NotAllowed(
            f"{message}; either set security = 'restricted', or ask a cluster administrator for {SCC}: "
            f"oc apply -f {SCC}, then oc adm policy add-scc-to-user burstd -z SERVICE_ACCOUNT -n NAMESPACE "
            "(on plain Kubernetes: label the namespace pod-security.kubernetes.io/enforce=baseline)"
        )
    if _IMPOSSIBLE.search(said):
        return BadRequest(message)
    return NotAllowed(f"{message}; a rule of the cluster forbids it: ask its administrators")


def _missing(message: str, said: Mapping[str, Any], answer: HttpResponse) -> ProviderError:
    """Only the API server itself can say that a thing is gone, and it names the thing."""
    details = said.get("details") or {}
    if said.get("reason") == "NotFound" and details.get("name"):
        if details.get("kind") == "namespaces":
            return BadRequest(f"{message}; create it, or set namespace to one that is there")
        return NotFound(message)
    if said.get("reason") == "NotFound" or answer.body.strip() == "404 page not found":
        return NoSuchApi(message)
    return CloudUnavailable(f"{message}; no API server says that: is there a proxy in between?")


def _retry_after_s(answer: HttpResponse, said: Mapping[str, Any]) -> float:
    """Seconds; 0: nothing is said."""
    return retry_after_s(answer.headers.get("retry-after"), (said.get("details") or {}).get("retryAfterSeconds"))


def _text(answer: HttpResponse, said: Mapping[str, Any]) -> str:
    """What was said, with the status."""
    return (answer._replace(body="") if said else answer).text(str(said.get("message") or ""), _LIMIT)


def _status(answer: HttpResponse) -> Mapping[str, Any]:
    """The Status of the body; empty: it is none."""
    try:
        said = json.loads(answer.body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) and said.get("kind") == "Status" else {}
