"""The page's own socket: the reverse proxy alone may open it; its header is the user, and nothing elsewhere."""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from starlette.types import Receive, Scope, Send

from burstd.db import StoreReader
from burstd.runtime.sockets import PeerCredentials
from burstd.settings import Settings
from burstd.settings.web import WebSettings
from burstd.web.proxy import ProxyIdentity, proxy_server
from tests.api.client import ApiTestClient, HttpAnswer
from tests.api.fake_backend import FakeBackend

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")

PROXY = "www-data"
PROXY_UID = pwd.getpwnam(PROXY).pw_uid
ADMIN, USER = "games", "nobody"
HEADER = "X-Remote-User"


@pytest.fixture(scope="module")
def place(record: StoreReader) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "web.sock"
        server = proxy_server(WebSettings(socket=path, proxy_user=PROXY, admins=(ADMIN,)), FakeBackend(record))
        assert server is not None
        server.start()
        try:
            yield path
        finally:
            server.stop()


def ask(place: Path, user: str | None, path: str = "/", uid: int = PROXY_UID) -> HttpAnswer:
    with ApiTestClient(place, uid) as client:
        return client.fetch("GET", path, headers={} if user is None else {HEADER: user})


def test_the_header_names_the_user_and_the_settings_the_administrators(place: Path) -> None:
    user, admin = ask(place, USER), ask(place, ADMIN)
    assert (user.status, admin.status) == (200, 200)
    assert f">{USER}</p>" in user.body.decode()
    assert f"{ADMIN} (administrator)" in admin.body.decode()
    assert "/act/hold" in admin.body.decode()
    assert ask(place, USER, "/act/hold").status == 403


@pytest.mark.parametrize(
    "user", [None, "", "root", "no-such-user", "nobody, games", "NOBODY", "nobody\t", "0", "\xe4da"]
)
def test_who_is_not_named_well_is_refused_and_that_is_logged(place: Path, user: str | None) -> None:
    with structlog.testing.capture_logs() as logs:
        answer = ask(place, user)
    if user == "nobody\t":  # White space around a value is none of it (RFC 9110, 5.5).
        assert answer.status == 200
        return
    assert answer.status == 403
    assert "burstd</a>" not in answer.body.decode()
    assert [line["event"] for line in logs] == ["a request on the page's socket was refused"]


def test_two_names_are_none(place: Path) -> None:
    with ApiTestClient(place, PROXY_UID) as client:
        client._http.putrequest("GET", "/")
        for name in (ADMIN, USER):
            client._http.putheader(HEADER, name)
        client._http.endheaders()
        assert client._http.getresponse().status == 403


def test_pages_alone_are_answered(place: Path) -> None:
    for path in ("/v1/status", "/v1/openapi.json", "/v1"):
        assert ask(place, ADMIN, path).status == 404


def test_the_proxys_account_alone_opens_the_socket(place: Path) -> None:
    with pytest.raises(AssertionError, match="could not connect"):
        ask(place, ADMIN, uid=pwd.getpwnam(ADMIN).pw_uid)
    # root passes any mode.
    assert ask(place, ADMIN, uid=0).status == 403


def test_the_header_means_nothing_on_the_control_socket(control: Path, backend: FakeBackend) -> None:
    answer = ask(control, "root", uid=PROXY_UID)
    assert f">{PROXY}</p>" in answer.body.decode()


def test_requests_are_counted_by_the_users_name() -> None:
    """One user takes a fifth of all; another is answered meanwhile."""

    async def scenario() -> tuple[int, int, int]:
        begun, go = asyncio.Semaphore(0), asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            assert scope["state"]["peer"].uid != PROXY_UID
            begun.release()
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        app = ProxyIdentity(slow, PROXY_UID, HEADER, ())

        async def request(user: str) -> int:
            peer = PeerCredentials(PROXY_UID, PROXY_UID, 1)
            headers = [(HEADER.lower().encode(), user.encode())]
            sent: list[Any] = []

            async def send(message: Any) -> None:
                sent.append(message)

            async def receive() -> Any:
                return {"type": "http.request"}

            await app({"type": "http", "path": "/", "headers": headers, "state": {"peer": peer}}, receive, send)
            return int(sent[0]["status"])

        many = [asyncio.create_task(request(USER)) for _ in range(60)]
        for refused in itertools.islice(asyncio.as_completed(many), 8):
            assert await refused == 503
        other = asyncio.create_task(request(ADMIN))
        for _ in range(53):
            await begun.acquire()
        go.set()
        statuses = await asyncio.gather(*many)
        return statuses.count(503), await other, await request(USER)

    assert asyncio.run(asyncio.wait_for(scenario(), 60)) == (8, 200, 200)


def test_a_proxy_that_is_no_account_is_an_alarm(record: StoreReader, tmp_path: Path) -> None:
    server = proxy_server(WebSettings(socket=tmp_path / "web.sock", proxy_user="no-such-account"), FakeBackend(record))
    assert server is not None
    server.start()
    said = "[web] names 'no-such-account' as proxy_user, and this host has no such account: "
    assert server.alarm.startswith(said)
    server.stop()
    assert proxy_server(WebSettings(), FakeBackend(record)) is None


def test_a_socket_without_an_account_is_a_fault_of_the_settings() -> None:
    with pytest.raises(ValueError, match="socket needs proxy_user"):
        Settings.model_validate({"cluster": "x", "web": {"socket": "/run/burstd/web.sock"}})
