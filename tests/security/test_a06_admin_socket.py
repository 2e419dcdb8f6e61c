"""A user who connects without end keeps neither administrators nor other users out."""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.api.server import ApiServer
from burstd.cli.job_socket import JobSocket
from burstd.cli.session import ApiClient
from burstd.runtime.sockets import ConnectionLimiter, listen, listen_for_admins
from tests.api.client import ApiTestClient
from tests.api.fake_backend import FakeBackend, sample_database

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

FLOODER, MEMBER, STRANGER = 3081, 3082, 3083
GROUP = "nogroup"
GID = grp.getgrnam(GROUP).gr_gid
BECOME = """
import contextlib, io, os, socket, sys
from burstd.cli.main import main
words, sys.argv = sys.argv, ["burstctl", "--socket", "/nonexistent/control.sock", "status"]
# What it imports when it is called: another user may not be able to read it.
with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
    main()
sys.argv = words
os.setgroups([int(sys.argv.pop(1))])
uid = int(sys.argv.pop(1))
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
"""
FLOOD = """
print("begun", flush=True)
while os.getppid() == int(sys.argv[2]):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.setblocking(False)
        wire.connect_ex(sys.argv[1])
"""
ANSWERS = 3


def program(code: str, uid: int, *words: object, gid: int = 0) -> list[str]:
    return [sys.executable, "-c", BECOME + code, str(gid or uid), str(uid), *map(str, words)]


@contextmanager
def crowd(path: Path) -> Iterator[None]:
    argv = program(FLOOD, FLOODER, path, os.getpid())
    made = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for one in made:
            assert one.stdout is not None
            assert one.stdout.readline() == b"begun\n"
        yield
        assert all(one.poll() is None for one in made)
    finally:
        for one in made:
            one.kill()
            one.wait()


@contextmanager
def open_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def burstctl(control: Path, uid: int, *words: str, gid: int = 0) -> subprocess.CompletedProcess[str]:
    argv = program("main()", uid, "--socket", control, "--json", *words, gid=gid)
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_who_may_use_the_administrators_socket_is_answered_while_others_fill_the_queue() -> None:
    with sample_database() as record, open_folder() as folder:
        control, own = folder / "control.sock", folder / "admin.sock"
        server = ApiServer(
            create_api_app(FakeBackend(record), Authorizer("")), listen(control, {}), listen_for_admins(own, GROUP)
        )
        server.start()
        try:
            with crowd(control):
                for _ in range(ANSWERS):
                    with ApiTestClient(own) as client:
                        assert client.get("/v1/status")["you"]["admin"]
                for uid, gid in ((0, 0), (MEMBER, GID)):
                    said = burstctl(own, uid, "status", gid=gid)
                    assert (said.returncode, json.loads(said.stdout)["you"]["admin"]) == (0, uid == 0), said.stderr
        finally:
            server.stop()


@pytest.mark.slow
def test_it_is_the_groups_alone() -> None:
    with open_folder() as folder:
        for name, group, lets_in in (("a", GROUP, True), ("b", "no such group", False), ("c", "", False)):
            path = folder / name
            with listen_for_admins(path, group):
                for gid, right in ((GID, lets_in), (STRANGER, False)):
                    code = "wire = socket.socket(socket.AF_UNIX); sys.exit(wire.connect_ex(sys.argv[1]))"
                    done = subprocess.run(program(code, STRANGER, path, gid=gid), check=False)
                    assert (done.returncode == 0) is right, (name, gid)


@pytest.mark.slow
def test_who_comes_to_a_full_queue_waits_for_room() -> None:
    with sample_database() as record, open_folder() as folder, ThreadPoolExecutor(2) as elsewhere:
        place = folder / "control.sock"
        listener = listen(place, {}, backlog=1)
        others = full(place)
        status = elsewhere.submit(ApiClient(place, as_json=True).request_status, "GET", "/status")
        with pytest.raises(TimeoutError):
            status.result(1.0)
        server = ApiServer(create_api_app(FakeBackend(record), Authorizer("")), listener)
        server.start()
        assert status.result(30)[0] == 200
        server.stop()
        with socket.socket(socket.AF_UNIX) as ports:
            ports.bind(str(folder / "jobs.sock"))
            ports.listen(1)
            others += full(folder / "jobs.sock")
            door = elsewhere.submit(JobSocket(folder / "jobs.sock", {"job": "1"}).connect, hold=True)
            with pytest.raises(TimeoutError):
                door.result(1.0)
            for _ in range(len(others) // 2 + 1):
                wire, _ = ports.accept()
                wire.sendall(b'{"ok": true}\n')
                others.append(wire)
            others.append(door.result(30)[0])
        for wire in others:
            wire.close()


def full(path: Path) -> list[socket.socket]:
    """Connections that fill its queue."""
    made = [socket.socket(socket.AF_UNIX)]
    made[-1].setblocking(False)
    while not made[-1].connect_ex(str(path)):
        made.append(socket.socket(socket.AF_UNIX))
        made[-1].setblocking(False)
    made.pop().close()
    return made


def test_few_users_together_leave_room_for_others() -> None:
    shares = ConnectionLimiter(256)
    held = []
    for uid in range(1000, 1016):
        while shares.acquire(uid):
            held.append(uid)
    assert held.count(1000) == 52, "a fifth"
    assert shares.acquire(2000)
    assert shares.acquire(0)
    for uid in held:
        shares.release(uid)
    shares.release(2000)
    shares.release(0)
    assert not shares._open
