from __future__ import annotations

import json
import ssl
from typing import Any

import pytest
from urllib3 import exceptions as u3

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
from providers.http_errors import HttpResponse
from providers.openshift.errors import (
    KubernetesAlreadyExists,
    KubernetesConflict,
    NoSuchApi,
    ResourceVersionExpired,
    error_for_response,
    error_for_watch_event,
    error_without_response,
)


def status(code: int, reason: str, message: str, **details: Any) -> HttpResponse:
    said = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return HttpResponse(code, {}, json.dumps(said | ({"details": details} if details else {})))


def forbidden(message: str) -> HttpResponse:
    return status(403, "Forbidden", f'pods "node-1" is forbidden: {message}')


ANSWERS: list[tuple[HttpResponse, type[ProviderError], str]] = [
    (status(401, "Unauthorized", "Unauthorized"), AuthFailed, "token or certificate"),
    (
        forbidden("exceeded quota: compute, requested: requests.nvidia.com/gpu=1, used: 4, limited: 4"),
        QuotaExceeded,
        "limited: 4 (HTTP 403)",
    ),
    (forbidden("status unknown for quota: compute, resources: pods"), CloudUnavailable, "status unknown"),
    (forbidden("failed quota: compute: must specify limits.ephemeral-storage"), BadRequest, "ephemeral-storage"),
    (
        forbidden("unable to validate against any security context constraint: [spec.containers[0]: Invalid value: 0]"),
        NotAllowed,
        "config/openshift/scc.yaml",
    ),
    (
        forbidden('violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false'),
        NotAllowed,
        "add-scc-to-user",
    ),
    (forbidden("PodSecurityPolicy: unable to admit pod: []"), NotAllowed, "security = 'restricted'"),
    (forbidden("maximum cpu usage per Container is 1, but limit is 4"), BadRequest, "maximum cpu"),
    (forbidden("minimum memory usage per Pod is 1Gi, but request is 1Mi"), BadRequest, "minimum memory"),
    (forbidden("no PriorityClass with name urgent was found"), BadRequest, "urgent"),
    (forbidden('error looking up service account h/x: serviceaccount "x" not found'), BadRequest, "serviceaccount"),
    (forbidden("unable to create new content in namespace h because it is being terminated"), BadRequest, "terminated"),
    (forbidden("the image is not signed"), NotAllowed, "administrators"),
    (
        status(
            403,
            "Forbidden",
            'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the '
            'namespace "h": RBAC: role.rbac.authorization.k8s.io "b" not found',
        ),
        NotAllowed,
        "config/openshift/role.yaml",
    ),
    (status(404, "NotFound", 'pods "a" not found', name="a", kind="pods"), NotFound, 'pods "a"'),
    (status(404, "NotFound", 'namespaces "h" not found', name="h", kind="namespaces"), BadRequest, "create it"),
    (status(404, "NotFound", "the server could not find the requested resource"), NoSuchApi, "could not find"),
    (HttpResponse(404, {}, "404 page not found\n"), NoSuchApi, "page not found"),
    (HttpResponse(404, {}, "<html><h1>Nothing here</h1></html>"), CloudUnavailable, "Nothing here (HTTP 404)"),
    (status(409, "AlreadyExists", 'pods "a" already exists', name="a", kind="pods"), KubernetesAlreadyExists, "exists"),
    (
        status(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q": modified'),
        KubernetesConflict,
        "modified",
    ),
    (status(410, "Expired", "The provided continue parameter is too old"), ResourceVersionExpired, "too old"),
    (status(410, "Gone", "too old resource version: 1 (9)"), ResourceVersionExpired, "too old"),
    (status(422, "Invalid", 'Pod "a" is invalid: spec.containers[0].image: Required value'), BadRequest, "image"),
    (status(400, "BadRequest", 'admission webhook "w" denied the request: no'), BadRequest, "denied"),
    (status(413, "RequestEntityTooLarge", "limit is 3145728"), BadRequest, "limit"),
    (HttpResponse(302, {"location": "https://login"}, ""), CloudUnavailable, "leads elsewhere"),
]


@pytest.mark.parametrize(("answer", "kind", "words"), ANSWERS, ids=[f"{a.status}-{w}" for a, _, w in ANSWERS])
@pytest.mark.parametrize("changes", [True, False])
def test_answers(answer: HttpResponse, kind: type[ProviderError], words: str, changes: bool) -> None:
    error = error_for_response(answer, "make pod node-1", changes=changes)
    assert type(error) is kind, repr(error)
    assert words in str(error)
    assert "make pod node-1" in str(error)


@pytest.mark.parametrize("code", [408, 500, 502, 503, 504])
def test_what_became_of_a_change_a_broken_server_does_not_say(code: int) -> None:
    answer = HttpResponse(code, {"retry-after": "7"}, "")
    assert type(error_for_response(answer, "x", changes=True)) is OutcomeUnknown
    read = error_for_response(answer, "x", changes=False)
    assert (type(read), read.retry_after_s) == (CloudUnavailable, 7.0)


def test_a_webhook_that_is_down_let_nothing_through() -> None:
    message = 'Internal error occurred: failed calling webhook "v": connection refused'
    assert type(error_for_response(status(500, "InternalError", message), "x", changes=True)) is CloudUnavailable


@pytest.mark.parametrize(
    ("headers", "details", "pause"), [({"retry-after": "3"}, {}, 3.0), ({}, {"retryAfterSeconds": 2}, 2.0), ({}, {}, 0)]
)
def test_too_many_calls(headers: dict[str, str], details: dict[str, Any], pause: float) -> None:
    answer = status(429, "TooManyRequests", "too many requests", **details)._replace(headers=headers)
    error = error_for_response(answer, "x", changes=True)
    assert (type(error), error.retry_after_s) == (RateLimited, pause)


@pytest.mark.parametrize(
    ("said", "kind"),
    [({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}, ResourceVersionExpired),
     ({"kind": "Status", "code": 500, "message": "etcd"}, CloudUnavailable),
     ({"kind": "Status"}, CloudUnavailable)],
)  # fmt: skip
def test_errors_inside_a_watch(said: dict[str, Any], kind: type[ProviderError]) -> None:
    assert type(error_for_watch_event(said, "watch pods")) is kind


def silence(kind: str) -> BaseException:
    if kind == "refused":
        return u3.NewConnectionError(None, "refused")  # type: ignore[arg-type]
    if kind == "certificate":
        return u3.SSLError(ssl.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"))
    if kind == "proxy":
        return u3.ProxyError("no tunnel", u3.NewConnectionError(None, "refused"))  # type: ignore[arg-type]
    if kind == "socket":
        return ConnectionRefusedError(111, "Connection refused")
    return u3.ReadTimeoutError(None, "/x", "read timed out") if kind == "timeout" else u3.ProtocolError("aborted")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("refused", False), ("certificate", False), ("proxy", False), ("socket", False), ("timeout", True),
     ("broken", True)],
)  # fmt: skip
def test_silence(kind: str, unknown: bool) -> None:
    assert type(error_without_response(silence(kind), "x", changes=True)) is (
        OutcomeUnknown if unknown else CloudUnavailable
    )
    assert type(error_without_response(silence(kind), "x", changes=False)) is CloudUnavailable


def test_no_token_is_told() -> None:
    answer = status(400, "BadRequest", "what is Bearer eyJhb.c-d_e at https://user:word@host/ \n" + "x" * 5000)
    text = str(error_for_response(answer, "x", changes=True))
    assert "eyJ" not in text
    assert "word@" not in text
    assert len(text) < 1000
