"""What Google answers, as errors of the interface."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
from providers.google.errors import GoogleAlreadyExists, GoogleNotReady, error_for_response, operation_error
from providers.http_errors import HttpResponse


def answer(status: int, *, reason: str = "", detail: str = "", name: str = "", **headers: str) -> HttpResponse:
    said: dict[str, Any] = {"code": status, "message": "as it is", "status": name}
    if reason:
        said["errors"] = [{"reason": reason, "domain": "global", "message": "as it is"}]
    if detail:
        said["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": detail}]
    return HttpResponse(status, headers, json.dumps({"error": said}))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (answer(400, reason="invalid"), BadRequest),
        (answer(400, reason="resourceNotReady"), GoogleNotReady),
        (answer(401, reason="authError", name="UNAUTHENTICATED"), AuthFailed),
        (answer(403, reason="forbidden", detail="SERVICE_DISABLED", name="PERMISSION_DENIED"), AuthFailed),
        (answer(403, reason="accessNotConfigured"), AuthFailed),
        (answer(403, reason="forbidden", name="PERMISSION_DENIED"), NotAllowed),
        (answer(403, reason="quotaExceeded"), QuotaExceeded),
        (answer(403, reason="rateLimitExceeded", detail="RATE_LIMIT_EXCEEDED"), RateLimited),
        (answer(404, reason="notFound"), NotFound),
        (answer(409, reason="alreadyExists"), GoogleAlreadyExists),
        (answer(409, reason="conflict"), BadRequest),
        (answer(412, reason="conditionNotMet"), BadRequest),
        (answer(429, name="RESOURCE_EXHAUSTED"), RateLimited),
        (answer(503, reason="ZONE_RESOURCE_POOL_EXHAUSTED"), InsufficientCapacity),
        (answer(503, reason="backendError"), OutcomeUnknown),
        (answer(500, reason="forbidden"), OutcomeUnknown),
        (answer(408), OutcomeUnknown),
        (HttpResponse(404, {}, "<html>nginx</html>"), OutcomeUnknown),
        (HttpResponse(503, {}, ""), OutcomeUnknown),
        (HttpResponse(429, {}, "slow down"), RateLimited),
        (HttpResponse(307, {}, "[]"), OutcomeUnknown),
    ],
)
def test_the_kind_of_a_change_s_error(said: HttpResponse, kind: type[ProviderError]) -> None:
    assert type(error_for_response(said, "make it", changes=True)) is kind
    read = error_for_response(said, "read it", changes=False)
    assert type(read) is (CloudUnavailable if kind is OutcomeUnknown else kind)


def test_the_code_is_in_the_message() -> None:
    found = error_for_response(answer(403, reason="quotaExceeded"), "create instance x", changes=True)
    assert str(found) == "Google would not create instance x: as it is (HTTP 403, quotaExceeded)"


def test_when_to_come_again() -> None:
    said = answer(429, **{"retry-after": "12"})
    assert error_for_response(said, "read it", changes=False).retry_after_s == 12


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "no room", InsufficientCapacity),
        ("QUOTA_EXCEEDED", "Quota 'N2_CPUS' exceeded.", QuotaExceeded),
        ("RESOURCE_NOT_FOUND", "The resource 'projects/p/global/images/x' was not found", NoSuchImage),
        ("RESOURCE_NOT_FOUND", "The resource 'projects/p/zones/z/machineTypes/x' was not found", BadRequest),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", "", RateLimited),
        ("SOMETHING_NEW", "", ProviderError),
    ],
)
def test_operations_that_fail(code: str, message: str, kind: type[ProviderError]) -> None:
    found = operation_error({"error": {"errors": [{"code": code, "message": message}]}})
    assert type(found) is kind
    assert code in str(found)


@pytest.mark.parametrize("operation", [{}, {"error": {}}, {"error": {"errors": []}}])
def test_an_operation_that_does_not_say_why(operation: dict[str, Any]) -> None:
    assert str(operation_error(operation)) == "no code"
