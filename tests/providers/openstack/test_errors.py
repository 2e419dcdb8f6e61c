from __future__ import annotations

import json
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest
import requests
from keystoneauth1 import exceptions as ksa
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
from providers.openstack.client.errors import (
    OpenStackConflict,
    error_for_login,
    error_for_response,
    error_without_response,
)

ID = {"x-openstack-request-id": "req-1"}


def answer(status: int, body: Any = None, **headers: str) -> HttpResponse:
    text = body if isinstance(body, str) else json.dumps(body)
    return HttpResponse(status, {**ID, **{name.replace("_", "-"): value for name, value in headers.items()}}, text)


def nova(word: str, status: int, message: str) -> HttpResponse:
    return answer(status, {word: {"code": status, "message": message}})


def neutron(kind: str, status: int, message: str) -> HttpResponse:
    return answer(status, {"NeutronError": {"type": kind, "message": message, "detail": ""}})


ANSWERS: list[tuple[HttpResponse, type[ProviderError], str]] = [
    (nova("forbidden", 403, "Quota exceeded for cores: Requested 1, but already used 10 of 10 cores"),
     QuotaExceeded, "already used 10 of 10 cores (HTTP 403)"),
    (nova("forbidden", 403, "Maximum number of ports exceeded"), QuotaExceeded, "ports"),
    (nova("forbidden", 403, "Quota exceeded, too many server groups."), QuotaExceeded, "server groups"),
    (neutron("OverQuota", 409, "Quota exceeded for resources: ['port']."), QuotaExceeded, "port"),
    (nova("overLimit", 413, "VolumeLimitExceeded: Maximum number of volumes (10) exceeded for quota 'volumes'."),
     QuotaExceeded, "volumes"),
    (nova("overLimit", 413, "VolumeSizeExceedsAvailableQuota: Requested volume exceeds allowed gigabytes quota."),
     QuotaExceeded, "gigabytes"),
    (nova("forbidden", 403, "Policy doesn't allow servers:create to be performed."), NotAllowed, "roles"),
    (neutron("PolicyNotAuthorized", 403, "rule:delete_port is disallowed by policy"), NotAllowed, "delete_port"),
    (neutron("PortInUse", 409, "Unable to complete operation on port p: it is in use."), OpenStackConflict, "in use"),
    (nova("conflictingRequest", 409, "Port p is still in use."), OpenStackConflict, "still in use"),
    (nova("badRequest", 400, "The requested availability zone is not available"), BadRequest, "availability zone"),
    (nova("badRequest", 400, "Flavor f could not be found."), BadRequest, "Flavor f"),
    (nova("itemNotFound", 404, "Instance i could not be found."), NotFound, "Instance i"),
    (answer(404, "<html><title>404 Not Found</title>No image found with ID i</html>"), NotFound, "No image found"),
    (answer(401, {"error": {"message": "It requires authentication."}}), AuthFailed, "clouds.yaml"),
    (answer(406, {"errors": [{"status": 406, "title": "Not Acceptable", "detail": "Version 2.99 is not supported"}]}),
     BadRequest, "Version 2.99 is not supported"),
    (answer(302, ""), CloudUnavailable, "catalogue"),
    (answer(429, ""), RateLimited, "HTTP 429"),
    (nova("overLimit", 413, "This request was rate-limited."), RateLimited, "rate-limited"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "kind", "says"), ANSWERS)
def test_what_a_service_says(said: HttpResponse, kind: type[ProviderError], says: str) -> None:
    """Each of these says that nothing was done, whatever was asked."""
    for changes in (True, False):
        error = error_for_response(said, "make a server", changes=changes)
        assert type(error) is kind or (kind is QuotaExceeded and not changes)
        assert says in str(error)
        assert "make a server" in str(error)


def test_reading_takes_nothing_of_a_quota() -> None:
    said = neutron("PolicyNotAuthorized", 403, "rule:get_quota is disallowed by policy")
    assert type(error_for_response(said, "read the quotas", changes=False)) is NotAllowed


@pytest.mark.parametrize("status", [408, 500, 501, 502, 503, 504, 507])
def test_what_leaves_it_open(status: int) -> None:
    said = nova("computeFault", status, "Unexpected API Error.")
    assert type(error_for_response(said, "x", changes=True)) is OutcomeUnknown
    assert type(error_for_response(said, "x", changes=False)) is CloudUnavailable


NONE = "<html><h1>No server is available</h1></html>"
BALANCERS = [
    (503, NONE, CloudUnavailable),
    (503, "upstream connect error or disconnect/reset before headers. reset reason: connection reset", OutcomeUnknown),
    (502, NONE, OutcomeUnknown),
    (504, NONE, OutcomeUnknown),
    (404, NONE, CloudUnavailable),
    (404, '{"message": "no Route matched with those values"}', CloudUnavailable),
]


@pytest.mark.parametrize(("status", "text", "kind"), BALANCERS)
def test_what_a_balancer_says(status: int, text: str, kind: type[ProviderError]) -> None:
    """Mostly of 503 it is known that it found no service; of 404, that no service of OpenStack's was asked."""
    error = error_for_response(HttpResponse(status, {}, text), "x", changes=True)
    assert type(error) is kind
    assert "<" not in str(error)


def later(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


PAUSES: list[tuple[HttpResponse, float]] = [
    (answer(429, "", retry_after="7"), 7.0),
    (answer(413, {"overLimit": {"message": "slow", "retryAfter": "54"}}), 54.0),
    (answer(429, "", retry_after="soon"), 0.0),
    (answer(429, "", retry_after="Mon, 01 Jan 2020 9999999999:00:00 GMT"), 0.0),
    (answer(429, "", retry_after="-3"), 0.0),
    (answer(429, ""), 0.0),
    (answer(503, "", retry_after="9"), 9.0),
]


@pytest.mark.parametrize(("said", "seconds"), PAUSES)
def test_how_long_to_wait(said: HttpResponse, seconds: float) -> None:
    assert error_for_response(said, "x", changes=True).retry_after_s == seconds


def test_how_long_to_wait_by_the_clock() -> None:
    found = error_for_response(answer(429, "", retry_after=later(100)), "x", changes=True).retry_after_s
    assert 90 < found <= 100
    assert error_for_response(answer(429, "", retry_after=later(-100)), "x", changes=True).retry_after_s == 0


def test_words_of_bearable_length() -> None:
    said = str(error_for_response(nova("badRequest", 400, "no\n " * 5000), "x", changes=True))
    assert len(said) < 500
    assert "\n" not in said


LOGINS: list[tuple[HttpResponse, type[ProviderError], str]] = [
    (answer(401, {"error": {"message": "It requires authentication."}}), AuthFailed, "clouds.yaml"),
    (answer(403, {"error": {"message": "The account is locked"}}), AuthFailed, "locked"),
    (answer(404, {"error": {"message": "not here"}}), AuthFailed, "auth_url"),
    (answer(400, {"error": {"message": "secret 'hunter2' is too long"}}), AuthFailed, "HTTP 400"),
    (answer(429, "", retry_after="5"), RateLimited, "Keystone"),
    (answer(500, "", x="y"), CloudUnavailable, "Keystone"),
    (answer(503, "", retry_after="5"), CloudUnavailable, "Keystone"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "kind", "says"), LOGINS)
def test_what_keystone_says(said: HttpResponse, kind: type[ProviderError], says: str) -> None:
    error = error_for_login(said)
    assert type(error) is kind
    assert says in str(error)
    assert "hunter2" not in str(error)


def chain(*errors: BaseException) -> BaseException:
    """The last, each raised while the one before it was handled: keystoneauth names no causes."""
    for before, after in pairwise(errors):
        after.__context__ = before
    return errors[-1]


HOST: Any = None
REFUSED = chain(
    u3.NewConnectionError(HOST, "refused"), u3.MaxRetryError(HOST, "/"), requests.ConnectionError("refused"),
    ksa.ConnectFailure("Unable to establish connection"),
)  # fmt: skip
UNKNOWN_HOST = chain(
    u3.NameResolutionError("h", HOST, socket.gaierror("?")), u3.MaxRetryError(HOST, "/"),
    requests.ConnectionError("unknown"), ksa.ConnectFailure("Unable to establish connection"),
)  # fmt: skip
NOBODY_THERE = chain(
    u3.ConnectTimeoutError("slow"), u3.MaxRetryError(HOST, "/"), requests.ConnectTimeout("slow"),
    ksa.ConnectTimeout("timed out"),
)  # fmt: skip
DISTRUSTED = chain(
    ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    requests.exceptions.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ksa.SSLError("SSL exception connecting: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
)
BROKEN_TLS = chain(requests.exceptions.SSLError("[SSL] record layer failure"), ksa.SSLError("SSL exception"))
NO_ANSWER = chain(
    u3.ReadTimeoutError(HOST, "/", "slow"), requests.ReadTimeout("slow"), ksa.ConnectTimeout("timed out")
)  # fmt: skip
CLOSED = chain(
    ConnectionResetError(104, "reset"), u3.ProtocolError("Connection aborted."), requests.ConnectionError("reset"),
    ksa.ConnectFailure("aborted"),
)  # fmt: skip
CUT = chain(requests.exceptions.ChunkedEncodingError("cut"), ksa.UnknownConnectionError("cut", Exception("cut")))
SILENCES: list[tuple[BaseException, type[ProviderError]]] = [
    *((one, CloudUnavailable) for one in (REFUSED, UNKNOWN_HOST, NOBODY_THERE, DISTRUSTED)),
    *((one, OutcomeUnknown) for one in (BROKEN_TLS, NO_ANSWER, CLOSED, CUT)),
]


@pytest.mark.parametrize(("error", "kind"), SILENCES)
def test_no_answer(error: BaseException, kind: type[ProviderError]) -> None:
    assert type(error_without_response(error, "make a server", changes=True, sent=True)) is kind
    assert type(error_without_response(error, "make a server", changes=True, sent=False)) is CloudUnavailable
    assert type(error_without_response(error, "list servers", changes=False, sent=True)) is CloudUnavailable


def test_an_address_with_a_password_in_it_is_told_without() -> None:
    said = str(
        error_without_response(
            ksa.ConnectFailure("proxy http://me:hunter2@proxy:3128 is gone"), "x", changes=True, sent=True
        )
    )
    assert "proxy:3128" in said
    assert "hunter2" not in said
