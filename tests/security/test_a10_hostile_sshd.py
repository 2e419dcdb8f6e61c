"""What the sshd of a rented node, whose root is not ours, may do to the head: waste a bounded time and memory."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import NodeRefused
from burstd.domain.plugins.shell import OUTPUT_BYTES, CommandTimedOut, ConnectionLost
from burstd.domain.slurm.shape import Shape
from burstd.node.errors import HostKeyMismatch, NotReachable
from burstd.node.ssh.host_keys import HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.ssh.session import SshSession, SshTarget, open_ssh_session
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from tests.doubles.sshd import ADDRESS, Served, Sshd, sshd

pytestmark = pytest.mark.slow

_TIME_S = 1.0
_SLACK_S = 6.0
_MIB = 1 << 20
OFFER = Offer("sky", "r", "a", "c4", spot=False, shape=Shape(4, 16_000), price=Decimal(1))
CLAIM = Claim("c1", "k", "p", "n1", OFFER, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0, "x", instance_id="i")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    ensure_ssh_key(path)
    return path


def _enter(there: Sshd, key: Path, timeout_s: float = 10.0) -> SshSession:
    known = HostKeys(HostKeyPolicy.CONSOLE, frozenset({there.host_key}))
    return open_ssh_session(SshTarget(ADDRESS, key, port=there.port), known, timeout_s)


@pytest.fixture
def patience() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


def _silent(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.settimeout(30)
    while connection.recv(1 << 16):
        pass


def _endless_line(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65536)


def _endless_lines(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"hello\r\n" * 1000)


def _drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"S")
        time.sleep(0.2)


def _huge_packet(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-x\r\n" + struct.pack(">IB", 0xFFFFFFF4, 4))
    _endless_line(connection)


def _controls(connection: socket.socket) -> None:
    connection.sendall(b"\x1b]0;mine\x07\x1b[2Jreason=none Gres=gpu:9\n" * 200)


@pytest.mark.parametrize(
    "raw", [_silent, _endless_line, _endless_lines, _drip, _huge_packet, _controls], ids=lambda f: f.__name__.strip("_")
)
def test_what_comes_before_the_handshake(
    raw: Callable[[socket.socket], None], key: Path, patience: Callable[[], float]
) -> None:
    with sshd(raw=raw) as there:
        with pytest.raises(NotReachable, match="but not as sshd does") as refused:
            _enter(there, key, _TIME_S)
        assert patience() < _TIME_S + _SLACK_S
        words = str(refused.value)
        assert words.isprintable()
        assert len(words) < 2000


def test_another_key_is_told_nothing(key: Path) -> None:
    with sshd() as there, sshd() as other:
        known = HostKeys(HostKeyPolicy.CONSOLE, frozenset({other.host_key}))
        with pytest.raises(HostKeyMismatch):
            open_ssh_session(SshTarget(ADDRESS, key, port=there.port), known, 5.0)
        assert not there.served[0].transport.is_authenticated()


def _never_answers(served: Served) -> None:
    served.answers_exec = False


@pytest.mark.slow
def test_a_command_whose_request_is_never_answered(key: Path, patience: Callable[[], float]) -> None:
    with sshd(begun=_never_answers) as there, _enter(there, key) as session:
        with pytest.raises(CommandTimedOut, match=r"more than 1 s for true"):
            session.run(["true"], timeout_s=_TIME_S)
        assert patience() < _TIME_S + _SLACK_S
    with sshd(begun=_never_answers) as there, _enter(there, key) as session, pytest.raises(ConnectionLost):
        session.start_process(["true"], timeout_s=_TIME_S)


@pytest.mark.slow
def test_a_node_that_takes_no_input(key: Path, patience: Callable[[], float]) -> None:
    with sshd(conduct=Served.stop_reading) as there, _enter(there, key) as session:
        with pytest.raises((CommandTimedOut, ConnectionLost)):
            session.run(["cat"], input=b"x" * (64 * _MIB), timeout_s=_TIME_S)
        assert patience() < _TIME_S + _SLACK_S


@pytest.mark.parametrize("stderr", [False, True], ids=["stdout", "stderr"])
@pytest.mark.parametrize("heeds_window", [True, False], ids=["heeds", "heedless"])
def test_output_without_an_end(key: Path, *, stderr: bool, heeds_window: bool) -> None:
    done = threading.Event()

    def conduct(served: Served) -> None:
        served.flood(64 * _MIB, stderr=stderr, heeds_window=heeds_window)
        done.set()

    with sshd(conduct=conduct) as there, _enter(there, key) as session:
        with pytest.raises((CommandTimedOut, ConnectionLost)):
            session.run(["true"], timeout_s=_TIME_S)
        assert done.wait(10)
        # What is not in its sender's buffers, nor in the kernel's, was in ours.
        assert there.served[0].sent < OUTPUT_BYTES + 24 * _MIB


def test_output_drop_by_drop(key: Path, patience: Callable[[], float]) -> None:
    def conduct(served: Served) -> None:
        while served.transport.is_active() and not served.stopped.wait(0.2):
            served.channel.sendall(b"x")

    with sshd(conduct=conduct) as there, _enter(there, key) as session:
        with pytest.raises(CommandTimedOut):
            session.run(["true"], timeout_s=_TIME_S)
        assert patience() < _TIME_S + _SLACK_S


def test_complaints_of_a_talk_are_cut(key: Path) -> None:
    def conduct(served: Served) -> None:
        served.channel.sendall_stderr(b"\x1b[31m" + b"no " * 600_000 + b"\nlast \x1b[2J word")
        served.channel.sendall(b"\n")

    with sshd(conduct=conduct) as there, _enter(there, key) as session, session.start_process(["true"]) as talk:
        talk.read_line(10.0, threading.Event())
        assert len(talk.stderr_tail()) <= 400


@pytest.mark.parametrize("status", [None, 1, 255, 2**31, 2**32 - 1])
def test_exit_statuses(key: Path, status: int | None) -> None:
    def conduct(served: Served) -> None:
        served.channel.sendall(b"end\n")
        if status is not None:
            served.channel.send_exit_status(status)
        served.channel.close()

    with sshd(conduct=conduct) as there, _enter(there, key) as session:
        assert session.run(["true"], timeout_s=10.0).rc == (-1 if status is None else status)


@pytest.mark.parametrize("kind", ["x11", "auth-agent@openssh.com", "forwarded-tcpip", "direct-tcpip", "session"])
def test_the_server_is_given_no_way_back(key: Path, kind: str) -> None:
    found: list[str] = []

    def conduct(served: Served) -> None:
        found.append(served.open_channel(kind))
        served.channel.send_exit_status(0)
        served.channel.close()

    with sshd(conduct=conduct) as there, _enter(there, key) as session:
        assert session.run(["true"], timeout_s=10.0).rc == 0
    assert found == ["refused"]


def test_the_head_is_no_node_whatever_a_cloud_says(key: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as own:
        target = SshTarget("127.0.0.1", key, port=own.getsockname()[1])
        with pytest.raises(HostKeyMismatch, match="this machine's own address"):
            open_ssh_session(target, HostKeys(HostKeyPolicy.FIRST_USE), 5.0)
        own.settimeout(5)
        said, _ = own.accept()
        with said:
            assert said.recv(100) == b""


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1", "224.0.0.1", "::ffff:127.0.0.1", "-oProxyCommand=x",  # noqa: S104
     "head", "10.0.0.1,10.0.0.2", "10.0.0.1 State=DOWN", "10.0.0.1\n", "../x", "\x1b[2J"],
)  # fmt: skip
def test_addresses_that_no_machine_has(key: Path, tmp_path: Path, address: str) -> None:
    claim = replace(CLAIM, address=address)
    prover = SlurmNodeValidator(
        ValidatorConfig(key, tmp_path, tmp_path / "none", ""), slurm_version=lambda: (22, 5), wall=time.time
    )
    with pytest.raises(NodeRefused, match="which no machine has") as refused:
        prover.connect(claim)
    assert str(refused.value).isprintable()
