"""What answers mean that the cloud of the contract does not give: a proxy's, and codes within codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from burstd.domain.errors import (
    AuthFailed,
    BadRequest,
    CloudUnavailable,
    InsufficientCapacity,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.azure.errors import error_for_response
from providers.http_errors import HttpResponse

HTML = "<html><h1>The proxy says no</h1></html>"


def said(status: int, body: Any, *, changes: bool, **headers: str) -> ProviderError:
    text = body if isinstance(body, str) else json.dumps(body)
    return error_for_response(HttpResponse(status, headers, text), "do it", changes=changes)


@pytest.mark.parametrize(
    ("status", "read", "change"),
    [
        (302, CloudUnavailable, CloudUnavailable),
        (401, AuthFailed, AuthFailed),
        (403, NotAllowed, NotAllowed),
        (404, CloudUnavailable, CloudUnavailable),
        (408, CloudUnavailable, OutcomeUnknown),
        (412, CloudUnavailable, CloudUnavailable),
        (429, RateLimited, RateLimited),
        (502, CloudUnavailable, OutcomeUnknown),
    ],
)
@pytest.mark.parametrize("body", [HTML, "", "[]", '{"error": "no object"}', "[" * 100_000])
def test_what_is_none_of_azures(status: int, read: type[ProviderError], change: type[ProviderError], body: str) -> None:
    for changes, kind in ((False, read), (True, change)):
        found = said(status, body, changes=changes)
        assert type(found) is kind
        assert f"HTTP {status}" in str(found)
        assert len(str(found)) < 600


@pytest.mark.parametrize(
    ("code", "inner", "kind"),
    [
        ("DeploymentFailed", "SkuNotAvailable", InsufficientCapacity),
        ("Wrapped", "QuotaExceeded", QuotaExceeded),
        ("AuthorizationFailed", "SkuNotAvailable", NotAllowed),
        ("Strange", "Stranger", BadRequest),
    ],
)
def test_the_first_code_that_says_something(code: str, inner: str, kind: type[ProviderError]) -> None:
    body = {"error": {"code": code, "message": "m", "details": [{"code": inner, "message": "within"}, "x", None]}}
    assert type(said(409, body, changes=True)) is kind


def test_gone_is_what_azure_says_is_gone() -> None:
    body = {"error": {"code": "ResourceNotFound", "message": "The Resource was not found."}}
    assert type(said(404, body, changes=False)) is NotFound


def test_what_is_busy_is_no_unknown_outcome_of_a_read() -> None:
    body = {"error": {"code": "RetryableError", "message": "again"}}
    assert type(said(409, body, changes=False)) is CloudUnavailable
    assert said(429, body, changes=False, **{"retry-after": "7"}).retry_after_s == 7


def test_no_token_is_repeated() -> None:
    body = {"error": {"code": "InvalidAuthenticationToken", "message": "Authorization: Bearer eyJ0.secret is wrong"}}
    assert "secret" not in str(said(401, body, changes=True))
