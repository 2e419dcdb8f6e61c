"""The application for Open OnDemand, under its path as Passenger runs it."""

from __future__ import annotations

import re
import runpy
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from burstd.domain.command import Pause
from tests.api.client import ME, HttpAnswer
from tests.api.fake_backend import FakeBackend
from tests.lab.programs import PROJECT

PREFIX = "/pun/sys/burstd"
FOLDER = PROJECT / "config" / "ondemand"


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library calls it
        """Nothing."""


class Portal:
    """Open OnDemand, as far as a browser sees it."""

    def __init__(self, port: int) -> None:
        self.host = f"127.0.0.1:{port}"

    def fetch(self, path: str, body: str | None = None, method: str = "", **headers: str) -> HttpAnswer:
        """By a path of the application's own."""
        connection = HTTPConnection(self.host, timeout=30)
        given = {"Accept": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            given |= {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request(method or ("GET" if body is None else "POST"), PREFIX + path, body, given)
        answer = connection.getresponse()
        found = HttpAnswer(answer.status, answer.headers, answer.read())
        connection.close()
        return found


@pytest.fixture
def place(control: Path, backend: FakeBackend, tmp_path: Path) -> Path:
    path = tmp_path / "control.sock"
    path.symlink_to(control)
    return path


@pytest.fixture
def portal(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Portal]:
    monkeypatch.setenv("BURSTD_SOCKET", str(place))
    application = runpy.run_path(str(FOLDER / "passenger_wsgi.py"))["application"]

    def under_prefix(environ: dict[str, Any], start_response: Any) -> Any:
        assert environ["PATH_INFO"].startswith(PREFIX)
        environ |= {"SCRIPT_NAME": PREFIX, "PATH_INFO": environ["PATH_INFO"][len(PREFIX) :]}
        return application(environ, start_response)

    with make_server("127.0.0.1", 0, under_prefix, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Portal(server.server_port)
        server.shutdown()
        thread.join()


def test_all_addresses_are_under_its_path(portal: Portal) -> None:
    for path in ("/", "", "/queue?state=all&page=1", "/nodes"):
        page = portal.fetch(path)
        text = page.body.decode()
        assert (page.status, f">{ME} (administrator)</p>" in text) == (200, True)
        addresses = re.findall(r'(?:href|src|action|data-hx-get)="(/[^"]*)"', text)
        assert addresses
        assert [a for a in addresses if not a.startswith(f"{PREFIX}/")] == []
        assert portal.fetch(path, If_None_Match=page.headers["etag"]).status == 304
    (script,) = re.findall(rf'src="{PREFIX}(/static/app.js[^"]*)"', text)
    assert b"connectionLost" in portal.fetch(script).body


def test_a_form_goes_back_under_its_path(portal: Portal, backend: FakeBackend) -> None:
    found = re.search(r'name="token" value="(\w+)"', portal.fetch("/act/hold").body.decode())
    assert found is not None
    form = urlencode({"reason": "roof", "token": found[1]})
    assert portal.fetch("/act/hold", form, Sec_Fetch_Site="cross-site").status == 403
    assert portal.fetch("/act/hold", "reason=roof", Sec_Fetch_Site="same-origin").status == 403
    assert backend.commands == []
    done = portal.fetch("/act/hold", form, Sec_Fetch_Site="same-origin")
    assert (done.status, backend.commands) == (303, [Pause("roof", f"user:{ME}")])
    assert done.headers["location"].startswith(f"{PREFIX}/done/hold")


def test_pages_alone_are_answered(portal: Portal) -> None:
    for path in ("/v1", "/v1/status", "/%76%31/status"):
        assert portal.fetch(path).status == 404
    assert portal.fetch("/", method="DELETE").status == 405
    assert portal.fetch("/act/hold", "x" * 70_000).status == 413


def test_it_says_that_the_daemon_is_gone(portal: Portal, place: Path, control: Path) -> None:
    place.unlink()
    gone = portal.fetch("/")
    assert (gone.status, gone.headers["refresh"]) == (503, "3")
    assert f"burstd does not answer on {place}: " in gone.body.decode()
    place.symlink_to(control)
    assert portal.fetch("/").status == 200
