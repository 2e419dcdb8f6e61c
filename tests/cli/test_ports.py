"""burstctl port-forward, as a process of its own, and burstctl route."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.api.auth import Authorizer
from burstd.api.job_connections.ports import PortService
from burstd.api.job_connections.server import JobConnectionServer
from burstd.cli.commands.ports import peer_is_same_user
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.test_forward import PORT, FakeNodes, serving_nodes
from tests.api.world import JOBS, SLURM, SNAPSHOT

from .conftest import NOBODY, Run
from .test_process import BURSTCTL, burstctl

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
NOT_YOURS = "burstctl: a connection was not let through: no process of yours has its other end.\n"
# A shell that started the tests in the background had them ignore the signal.
CODE = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {BURSTCTL}"


@pytest.fixture
def nodes() -> Iterator[FakeNodes]:
    with serving_nodes() as made:
        yield made


@pytest.fixture
def forward_server(control: Path, backend: FakeBackend, nodes: FakeNodes) -> Iterator[None]:
    server = JobConnectionServer(
        control.parent / "jobs.sock",
        backend,
        Authorizer(""),
        {"port": PortService(backend, nodes.open_shell)},
        check_interval_s=0.05,
    )
    server.start()
    yield
    server.close()


@pytest.fixture
def forward(control: Path, forward_server: None) -> Iterator[subprocess.Popen[str]]:
    process = burstctl(control, "--json", "port-forward", "101", str(PORT), "--local", "0", code=CODE)
    yield process
    process.kill()
    process.communicate()


def address(process: subprocess.Popen[str]) -> tuple[str, int]:
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert (said["job"], said["node"], said["to"]) == ("101", "gpu1", PORT)
    return said["host"], said["port"]


def test_a_port_is_brought_here_until_the_job_ends(forward: subprocess.Popen[str], backend: FakeBackend) -> None:
    there = address(forward)
    for said in (b"abc", os.urandom(1 << 20)):
        with socket.create_connection(there, 20) as wire:
            wire.sendall(said)
            wire.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda w=wire: w.recv(1 << 16), b"")) == said[::-1]  # type: ignore[misc]
    with socket.create_connection(there, 20) as wire:
        backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:])), PLAN)
        assert wire.recv(1) == b""
    _, err = forward.communicate(timeout=20)
    assert forward.returncode == 1
    # The last connection may have come too late.
    assert json.loads(err.splitlines()[-1])["error"] == "Job 101 does not run any more."


def test_it_ends_with_ctrl_c(forward: subprocess.Popen[str]) -> None:
    address(forward)
    forward.send_signal(signal.SIGINT)
    assert forward.wait(20) == 130


@needs_root
def test_others_on_this_host_are_not_let_through(forward: subprocess.Popen[str]) -> None:
    there = address(forward)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(NOBODY)
            with socket.create_connection(there, 20) as wire:
                wire.sendall(b"abc")
                wire.shutdown(socket.SHUT_WR)
                os.write(write, b"heard " + wire.recv(10))
        except OSError:
            os.write(write, b"cut off")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) in (b"heard ", b"cut off")
    os.close(read)
    os.close(write)
    forward.kill()
    assert forward.communicate()[1] == NOT_YOURS


@needs_root
def test_a_request_whose_sender_has_gone_is_not_let_through(forward: subprocess.Popen[str], nodes: FakeNodes) -> None:
    there, table = address(forward), Path("/proc/net/tcp")
    # Its sender is gone before burstctl can look who it was.
    forward.send_signal(signal.SIGSTOP)
    with acting_as(NOBODY), socket.create_connection(there, 20) as wire:
        wire.sendall(b"DELETE /all HTTP/1.0\r\n\r\n")
        end = f":{wire.getsockname()[1]:04X}"
    # From then on (FIN_WAIT2) the kernel says uid 0 for that end.
    while not any(row.split()[1][8:] == end and row.split()[3] == "05" for row in table.read_text().splitlines()):
        pass
    forward.send_signal(signal.SIGCONT)
    assert forward.stderr is not None
    assert select.select([forward.stderr], [], [], 20)[0]
    assert forward.stderr.readline() == NOT_YOURS
    assert nodes.opened == []


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Sockets that are made meanwhile are this user's."""
    # Python loads it for the first address, from where this user may read nothing.
    codecs.lookup("idna")
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def mine(server: socket.socket) -> bool:
    connection, client = server.accept()
    with connection:
        return peer_is_same_user(connection, client)


@needs_root
def test_a_connection_is_not_taken_for_another_of_the_same_port(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname(), 20) as own:
        accepted, client = server.accept()
        with accepted, acting_as(NOBODY), socket.socket() as other:
            other.bind(("127.0.0.2", client[1]))
            other.connect(server.getsockname())
            os.seteuid(0)
            assert not mine(server)
            assert peer_is_same_user(accepted, own.getsockname())


@needs_root
def test_a_connection_that_was_reset_is_not_taken_for_its_successor(server: socket.socket) -> None:
    with acting_as(NOBODY), socket.create_connection(server.getsockname(), 20) as other:
        at = other.getsockname()
        other.sendall(b"DELETE /all HTTP/1.0\r\n\r\n")
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with socket.create_connection(server.getsockname(), 20, source_address=at):
        assert [mine(server), mine(server)] == [False, True]


def test_programs_whose_sockets_are_for_ipv6_too(server: socket.socket) -> None:
    with socket.socket(socket.AF_INET6) as own:
        own.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
        assert mine(server)


@needs_root
def test_not_even_root_acts_for_others(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname(), 20), acting_as(NOBODY):
        assert not mine(server)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("port-forward 999 8888", 5, "Job 999 is not in the queue."),
        ("port-forward 105 8888", 1, "Job 105 does not run: burstd saw it pending 1 s ago"),
        ("port-forward 101 0", 2, "PORT"),
        ("route open 101 80", 2, "than or equal to 1024"),
        ("route close 101", 5, "Job 101 has no route."),
    ],
)
def test_what_cannot_be_ends_with_its_code(run: Run, forward_server: None, words: str, code: int, says: str) -> None:
    outcome = run(*words.split())
    assert (outcome.code, outcome.out) == (code, "")
    assert says in outcome.err


def test_without_a_daemon_it_says_so(run: Run, tmp_path: Path) -> None:
    outcome = run("port-forward", "101", "8888", socket=tmp_path / "control.sock")
    assert outcome.code == 3
    assert f"There is no socket {tmp_path / 'jobs.sock'}" in outcome.err


def test_a_port_that_is_taken_here(run: Run, forward_server: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = run("port-forward", "101", str(PORT), "--local", str(port))
    assert outcome.code == 1
    assert f"Port {port} of 127.0.0.1 cannot be used here: Address already in use." in outcome.err


def test_routes(run: Run, backend: FakeBackend) -> None:
    opened = run("route", "open", "101", "8888")
    assert "https://job101-8888.apps.example" in opened.out
    assert "must have a token or password of its own" in " ".join(opened.out.split())
    assert "101  8888  gpu1  sandbox   https://job101-8888.apps.example" in run("route", "list").out
    assert json.loads(run("route", "list", "--json").out)["routes"][0]["port"] == 8888
    assert run("route", "close", "101", "8888").out == "Closed https://job101-8888.apps.example.\n"
    assert run("route", "list").out == "No route is open.\n"
