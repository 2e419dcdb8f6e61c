"""burstctl web, as a process of its own: who gets a page there, and who does not."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode, urlsplit

import pytest

from burstd.cli.commands.ports import sudo_uid
from burstd.cli.commands.web import MAX_BODY_BYTES, MAX_CONNECTIONS
from burstd.domain.command import Pause
from tests.api.client import ME, HttpAnswer
from tests.api.conftest import NOBODY
from tests.api.fake_backend import FakeBackend
from tests.cli.test_process import BURSTCTL, burstctl

CODE = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {BURSTCTL}"
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Web:
    """burstctl web, and a browser of its user's."""

    def __init__(self, control: Path, **env: str) -> None:
        self.process = burstctl(control, "--json", "web", "--no-browser", code=CODE, **env)
        assert self.process.stdout is not None
        address = urlsplit(json.loads(self.process.stdout.readline())["url"])
        self.host = address.netloc
        self.entry = f"{address.path}?{address.query}"
        self.cookie = ""

    def fetch(
        self, path: str, headers: Mapping[str, str] = NO_HEADERS, body: str | None = None, method: str = ""
    ) -> HttpAnswer:
        """With the cookie, where it has one."""
        given = {"Accept": "text/html", **({"Cookie": self.cookie} if self.cookie else {})}
        if body is not None:
            given |= {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        connection = HTTPConnection(self.host, timeout=30)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, {**given, **headers})
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def first_line_as(self, uid: int) -> bytes:
        """Of the answer that a process of this user gets with the cookie; empty: none."""
        there = ("127.0.0.1", int(self.host.partition(":")[2]))
        request = f"GET / HTTP/1.1\r\nHost: {self.host}\r\nCookie: {self.cookie}\r\nConnection: close\r\n\r\n"
        code = (
            f"import os, socket, sys; os.setuid({uid}); s = socket.create_connection({there}, 30)\n"
            f"try: s.sendall({request.encode()!r}); sys.stdout.buffer.write(s.makefile('rb').readline())\n"
            "except OSError: pass"
        )
        return subprocess.run(["/usr/bin/python3", "-c", code], capture_output=True, check=True, timeout=30).stdout

    def sign_in(self) -> None:
        self.cookie = self.fetch(self.entry).headers["set-cookie"].partition(";")[0]

    def end(self) -> str:
        """What it has written on standard error."""
        self.process.send_signal(signal.SIGINT)
        err = self.process.communicate(timeout=30)[1]
        assert self.process.returncode == 130
        return err


@pytest.fixture
def web(control: Path, backend: FakeBackend) -> Iterator[Web]:
    made = Web(control)
    yield made
    made.process.kill()
    made.process.communicate()


def test_the_address_works_once_and_gives_a_cookie(web: Web) -> None:
    first = web.fetch(web.entry)
    assert (first.status, first.headers["location"], first.body) == (303, "/", b"")
    port = web.host.partition(":")[2]
    assert re.fullmatch(rf"burstd-{port}=[\w-]{{43}}; HttpOnly; SameSite=Strict; Path=/", first.headers["set-cookie"])
    again = web.fetch(web.entry)
    assert (again.status, again.headers["set-cookie"]) == (403, None)
    assert again.body == b"This address was used, or is not of this burstctl web; start it again.\n"
    web.cookie = first.headers["set-cookie"].partition(";")[0]
    page = web.fetch("/")
    assert (page.status, f">{ME} (administrator)</p>" in page.body.decode()) == (200, True)
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert web.fetch("/", {"If-None-Match": page.headers["etag"]}).status == 304
    assert web.fetch("/static/app.js").status == 200
    small = web.fetch("/", {"Accept-Encoding": "gzip"})
    assert (small.headers["content-encoding"], len(small.body) < len(page.body) / 2) == ("gzip", True)
    assert b"</html>" in gzip.decompress(small.body)
    assert web.fetch("/", {"Accept-Encoding": "gzip", "If-None-Match": page.headers["etag"]}).status == 304
    assert web.fetch(web.entry).headers["location"] == "/", "a browser that is signed in may load it again"
    assert "refused (403): This address was used" in web.end()


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/?token=", "/?token=x", "/?x=1&token=", "/no-such-page"])
def test_without_a_cookie_there_is_one_sentence(web: Web, path: str) -> None:
    for cookie in ("", "burstd-1=x", f"burstd-{web.host.partition(':')[2]}=x", "\xe4"):
        web.cookie = cookie
        answer = web.fetch(path)
        assert answer.status == 403
        assert len(answer.body.splitlines()) == 1
        assert "server" not in answer.headers
    assert web.end().count("burstctl: a request was refused (403)") == 4


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "evil.example:{port}", "[::1]:{port}", ""]
)
def test_another_host_is_refused_and_said(web: Web, host: str) -> None:
    web.sign_in()
    answer = web.fetch("/", {"Host": host.format(port=web.host.partition(":")[2])})
    assert (answer.status, b"not for this address" in answer.body) == (403, True)
    assert web.fetch("/", {"Host": web.host.replace("127.0.0.1", "localhost")}).status == 200
    assert "refused (403): The request is for" in web.end()


@pytest.mark.parametrize("path", ["/v1/status", "/v1", "//v1/status", "/%76%31/status", "http://burstd/v1/status"])
def test_pages_alone_are_answered(web: Web, path: str) -> None:
    web.sign_in()
    answer = web.fetch(path)
    assert answer.status in (400, 403, 404)
    assert b"pools" not in answer.body


def test_a_form_acts_as_its_user_and_one_of_another_site_does_not(web: Web, backend: FakeBackend) -> None:
    assert web.fetch("/act/hold", body="reason=x").status == 403
    web.sign_in()
    found = re.search(r'name="token" value="(\w+)"', web.fetch("/act/hold").body.decode())
    assert found is not None
    form = urlencode({"reason": "roof", "token": found[1]})
    for bad in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"},
                {"Sec-Fetch-Site": "", "Origin": "http://evil.example"}, {"Sec-Fetch-Site": "", "Origin": "null"},
                {"Sec-Fetch-Site": ""}):  # fmt: skip
        assert (web.fetch("/act/hold", bad, form).status, backend.commands) == (403, [])
    assert web.fetch("/act/hold", body="reason=roof&token=0").status == 403
    assert backend.commands == []
    assert web.fetch("/act/hold", body=form).status == 303
    assert backend.commands == [Pause("roof", f"user:{ME}")]
    assert web.end().count("another site's page sent it") == 6


def test_what_is_too_long_or_no_page_is_refused(web: Web, backend: FakeBackend) -> None:
    web.sign_in()
    assert web.fetch("/act/hold", body="x" * (MAX_BODY_BYTES + 1)).status == 413
    assert web.fetch("/act/hold", {"Content-Length": "9" * 400}, "").status == 413
    assert web.fetch("/act/hold", {"Content-Length": "-1"}, "").status == 411
    assert web.fetch("/act/hold", {"Transfer-Encoding": "chunked", "Content-Length": "0"}, "").status == 411
    assert web.fetch("/", method="DELETE").status == 501
    assert web.fetch("/" + "x" * 70_000).status == 414
    assert web.fetch("/").status == 200


def test_connections_are_bounded(web: Web) -> None:
    web.sign_in()
    there = ("127.0.0.1", int(web.host.partition(":")[2]))
    held = [socket.create_connection(there, 30) for _ in range(MAX_CONNECTIONS)]
    with socket.create_connection(there, 30) as more:
        assert more.recv(1) == b""
    for one in held:
        one.close()
    while True:  # Until the threads of the closed ones have ended.
        try:
            assert web.fetch("/").status == 200
            break
        except OSError:
            continue


def test_the_page_says_that_the_daemon_is_gone_and_comes_back(
    control: Path, backend: FakeBackend, tmp_path: Path
) -> None:
    place = tmp_path / "control.sock"
    place.symlink_to(control)
    web = Web(place)
    web.sign_in()
    place.unlink()
    gone = web.fetch("/queue")
    assert (gone.status, gone.headers["refresh"]) == (503, "3")
    assert "burstd does not answer: There is no socket" in gone.body.decode()
    assert "This page tries again every 3 seconds." in gone.body.decode()
    assert "refresh" not in web.fetch("/act/hold", body="reason=x").headers
    place.symlink_to(control)
    assert web.fetch("/queue").status == 200
    web.end()


def test_a_cookie_is_worthless_after_the_end(web: Web, control: Path) -> None:
    web.sign_in()
    web.end()
    other = Web(control)
    other.cookie = web.cookie
    answer = other.fetch("/")
    assert (answer.status, b"burstd</a>" in answer.body) == (403, False)
    assert other.fetch(web.entry).status == 403
    other.end()
    with pytest.raises(ConnectionRefusedError):
        web.fetch("/")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_this_host_gets_nothing_with_a_stolen_cookie(web: Web) -> None:
    web.sign_in()
    assert web.first_line_as(NOBODY) == b""
    assert "no process of yours has its other end" in web.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_by_sudo_it_is_for_the_browser_of_who_ran_sudo(control: Path) -> None:
    web = Web(control, SUDO_UID=str(NOBODY))
    web.sign_in()
    assert web.first_line_as(NOBODY) == b"HTTP/1.1 200 OK\r\n"
    assert f">{ME} (administrator)</p>" in web.fetch("/").body.decode()
    assert web.first_line_as(NOBODY - 1) == b""
    assert web.end().count("no process of yours has its other end") == 1


@pytest.mark.parametrize("said", ["", "-1", "nobody", "1e5", "\u0663"])
def test_what_is_no_number_is_nobody(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("SUDO_UID", said)
    assert sudo_uid() is None


def test_it_does_not_start_without_a_daemon_or_with_a_port_that_is_taken(control: Path, tmp_path: Path) -> None:
    process = burstctl(tmp_path / "none", "web", "--no-browser")
    assert "There is no socket" in process.communicate(timeout=30)[1]
    assert process.returncode == 3
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = burstctl(control, "web", "--no-browser", "--port", str(taken.getsockname()[1]))
        assert "cannot be used here: Address already in use" in process.communicate(timeout=30)[1]
        assert process.returncode == 1
