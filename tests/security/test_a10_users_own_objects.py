"""A user names any server, and that answers anything: neither reaches more than what is the user's own."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from burstd.transfer.privsep.client import UserWorkerError
from burstd.transfer.privsep.object_workers import ObjectWorker, object_worker_for
from staging.objects.user_worker import _METADATA, refuse_own_addresses
from tests.lab.patience import patience_s
from tests.transfer.object_worlds import ObjectServerWorld

_KEYS = "[burst]\naws_access_key_id = A\naws_secret_access_key = B\n"
_root_only = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.mark.parametrize(
    "address",
    [("127.0.0.1", 80), ("127.8.9.1", 80), ("169.254.169.254", 80), ("0.0.0.0", 80), ("::1", 80, 0, 0),  # noqa: S104
     ("::ffff:127.0.0.1", 80, 0, 0), ("::ffff:169.254.169.254", 80, 0, 0), ("fe80::1%eth0", 80, 0, 2), ("::", 80, 0, 0),
     ("fd00:ec2::254", 80, 0, 0), ("100.100.100.200", 80), ("224.0.0.1", 80)],
)  # fmt: skip
def test_where_a_users_server_may_not_be(address: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="this machine's own or its cloud's"):
        refuse_own_addresses("socket.connect", (None, address))


@pytest.mark.parametrize("address", [("192.0.2.7", 443), ("10.77.1.1", 9000), ("2001:db8::1", 443, 0, 0), "/run/x"])
def test_where_it_may_be(address: Any) -> None:
    refuse_own_addresses("socket.connect", (None, address))
    refuse_own_addresses("open", (address,))


_OWN = """
import socket, sys
from staging.objects.user_worker import refuse_own_addresses
for address in (("198.51.100.7", 80), ("::ffff:198.51.100.7", 80, 0, 0), ("2001:db8::7", 80, 0, 0)):
    try:
        refuse_own_addresses("socket.connect", (None, address))
    except ValueError:
        continue
    sys.exit(f"{address} is let through")
refuse_own_addresses("socket.connect", (None, ("198.51.100.8", 80)))
sys.addaudithook(refuse_own_addresses)
try:
    socket.create_connection(("198.51.100.7", 80), 5)
except ValueError as error:
    sys.exit("this machine's own" not in str(error))
"""


@pytest.mark.boxes
def test_the_heads_own_addresses_are_the_head() -> None:
    made = "ip link set lo up && ip addr add 198.51.100.7/32 dev lo && ip addr add 2001:db8::7/128 dev lo && "
    inside = ["unshare", "-rn", "sh", "-c", made + 'exec "$0" -c "$1"', sys.executable, _OWN]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_programs_that_a_user_names_do_not_reach_metadata_either() -> None:
    unit = (Path(__file__).parents[2] / "systemd" / "burstd-object-worker@.service").read_text(encoding="utf-8")
    (denied,) = (line for line in unit.splitlines() if line.startswith("IPAddressDeny="))
    resolver = "168.63.129.16"
    assert {"link-local", *map(str, _METADATA)} - {resolver} == set(denied.partition("=")[2].split())


_RUNS = (
    "import sys, os, subprocess\n"
    "from staging.objects.user_worker import refuse_programs\n"
    "sys.addaudithook(refuse_programs)\n"
    "try:\n"
    "    {}\n"
    "except PermissionError as error:\n"
    "    print(error.strerror)\n"
)


@pytest.mark.parametrize(
    "call",
    ["subprocess.run(['true'])", "os.system('true')", "os.execv('/bin/true', ['true'])", "os.fork()",
     "os.posix_spawn('/bin/true', ['true'], {})", "os.popen('true')"],
)  # fmt: skip
def test_no_program_is_run(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", _RUNS.format(call)], capture_output=True, text=True, check=True)
    assert "credential_process" in done.stdout


class _Answers:
    """A server of loopback that gives each request the next answer, the last for ever."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heads: list[dict[str, str]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append(f"{self.command} {self.path}")
                outer.heads.append(dict(self.headers))
                many = len(outer.answers) > 1
                status, headers, body = outer.answers.pop(0) if many else outer.answers[0]
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815 - http.server's

            def log_message(self, *_: object) -> None: ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


def _serving() -> Iterator[_Answers]:
    made = _Answers()
    yield made
    made.http.shutdown()
    made.http.server_close()


_server = pytest.fixture(_serving, name="server")
_other = pytest.fixture(_serving, name="other")


@contextmanager
def _worker(server: _Answers, *, loopback: bool, keys: str = _KEYS) -> Iterator[ObjectWorker]:
    config = (
        f"[profile burst]\nregion = r\nendpoint_url = http://127.0.0.1:{server.port}\ns3 =\n addressing_style = path\n"
    )
    files = {".aws/config": config, ".aws/credentials": keys}
    world = ObjectServerWorld(
        "s3", ("127.0.0.1", server.port), lambda *_: None, lambda _: (b"", {}), set, "B", lambda _: files
    )
    with world.user() as who, object_worker_for(who, "s3", timeout_s=30.0, loopback=loopback) as worker:
        yield worker


def _page(*keys: str, size: str = "1", more: str = "") -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>e</ETag><LastModified>2020-01-01T00:00:00Z</LastModified>"
        "</Contents>"
        for key in keys
    )
    end = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{rows}{end}</ListBucketResult>".encode()


class TestUserObjectWorker:
    pytestmark = _root_only

    def test_the_head_itself_is_not_reached(self, server: _Answers) -> None:
        server.answers = [(200, {}, _page("secret"))]
        with _worker(server, loopback=False) as worker, pytest.raises(UserWorkerError, match="this machine's own"):
            list(worker.walk("s3://latest/meta-data/"))
        assert server.asked == []

    def test_a_redirect_is_not_followed(self, server: _Answers, other: _Answers) -> None:
        other.answers = [(200, {}, _page("x"))]
        server.answers = [(307, {"Location": f"http://127.0.0.1:{other.port}/"}, b"")]
        with _worker(server, loopback=True) as worker, pytest.raises(UserWorkerError):
            list(worker.walk("s3://mine/"))
        assert server.asked
        assert other.asked == []

    @pytest.mark.parametrize("size", ["-1", str(2**63), str(2**80)])
    def test_sizes_that_no_object_has(self, server: _Answers, size: str) -> None:
        server.answers = [(200, {}, _page("a", size=size))]
        with _worker(server, loopback=True) as worker, pytest.raises(UserWorkerError):
            list(worker.walk("s3://mine/"))

    def test_keys_outside_of_what_was_asked_for(self, server: _Answers) -> None:
        server.answers = [(200, {}, _page("other/b"))]
        with _worker(server, loopback=True) as worker, pytest.raises(UserWorkerError, match="was not asked for"):
            list(worker.walk("s3://mine/dir/"))

    def test_pages_without_an_end(self, server: _Answers) -> None:
        server.answers = [(200, {}, _page("a", more="t"))]
        began = time.monotonic()
        with _worker(server, loopback=True) as worker, pytest.raises(UserWorkerError, match="twice"):
            list(worker.walk("s3://mine/"))
        assert time.monotonic() - began < patience_s(20.0)

    def test_empty_pages_without_an_end(self, server: _Answers) -> None:
        server.answers = [(200, {}, _page(more="t"))]
        with _worker(server, loopback=True) as worker, pytest.raises(UserWorkerError, match="where they begin"):
            list(worker.walk("s3://mine/"))

    def test_a_program_that_has_his_keys_is_not_run(self, server: _Answers) -> None:
        """It would reach from the head what he does not."""
        server.answers = [(200, {}, _page("a"))]
        said = '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "B"}'
        keys = f"[burst]\ncredential_process = echo '{said}'\n"
        with _worker(server, loopback=True, keys=keys) as worker, pytest.raises(UserWorkerError, match="does not run"):
            list(worker.walk("s3://mine/"))
        assert server.asked == []
