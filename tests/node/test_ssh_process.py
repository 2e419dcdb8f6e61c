"""Sessions in the ssh process: as those of this process, and what is when it ends or is stuck."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from burstd.domain.plugins.shell import CommandTimedOut, CompletedCommand, ConnectionLost
from burstd.node.errors import HostKeyMismatch, NotReachable
from burstd.node.ssh import process as process_module
from burstd.node.ssh.host_keys import HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.ssh.process import ProcessSession, SshProcess
from burstd.node.ssh.session import SshTarget
from tests.doubles.sshd import ADDRESS, Served, Sshd, sshd

pytestmark = pytest.mark.slow


@pytest.fixture
def ssh_process() -> Iterator[SshProcess]:
    with closing(SshProcess()) as made:
        yield made


@pytest.fixture
def key(tmp_path: Path) -> Path:
    ensure_ssh_key(tmp_path / "id")
    return tmp_path / "id"


def _open(ssh_process: SshProcess, there: Sshd, key: Path, shown: Sshd | None = None) -> ProcessSession:
    known = HostKeys(HostKeyPolicy.CONSOLE, frozenset({(shown or there).host_key}))
    return ssh_process.open_session(SshTarget(ADDRESS, key, port=there.port), known)


def _answer(served: Served) -> None:
    given = served.channel.makefile("rb").read()
    served.channel.sendall(b"heard " + given)
    served.channel.send_exit_status(3)
    served.channel.close()


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()]


def test_a_command_and_its_secret(ssh_process: SshProcess, key: Path) -> None:
    before = _children()
    with sshd(conduct=_answer) as there, _open(ssh_process, there, key) as session:
        assert session.host_key == there.host_key
        assert session.script("cat", input=b"secret") == CompletedCommand(3, "heard secret", "")
        assert there.served[0].command == b"sh -c cat sh"
        (child,) = set(_children()) - set(before)
        shown = [Path(f"/proc/{child}/{file}").read_bytes() for file in ("cmdline", "environ")]
        assert not any(word in text for word in (b"secret", os.fsencode(key)) for text in shown)
    ssh_process.close()
    assert child not in _children()


def test_errors_are_those_of_a_session(ssh_process: SshProcess, key: Path) -> None:
    with sshd(conduct=lambda _: None) as there, sshd() as other:
        with pytest.raises(HostKeyMismatch, match="none of the host keys of its console log"):
            _open(ssh_process, there, key, shown=other)
        assert not there.served[0].executed.is_set()
        with _open(ssh_process, there, key) as session, pytest.raises(CommandTimedOut, match="more than 1 s for true"):
            session.run(["true"], timeout_s=1.0)
    with pytest.raises(NotReachable, match="does not answer on port"):
        _open(ssh_process, there, key)


def test_a_process_that_is_killed_is_told_and_started_again(ssh_process: SshProcess, key: Path) -> None:
    before = _children()
    ended: list[int] = []

    def killed(_: Served) -> None:
        ended.extend(set(_children()) - set(before))
        os.kill(ended[0], signal.SIGKILL)

    with sshd(conduct=killed) as there, _open(ssh_process, there, key) as session:
        with pytest.raises(ConnectionLost, match=f"ended while it spoke with {ADDRESS}"):
            session.run(["true"])
        # Its sockets are closed a moment before it has ended.
        os.waitid(os.P_PID, ended[0], os.WEXITED | os.WNOWAIT)
        with capture_logs() as said, _open(ssh_process, there, key) as again:
            assert again.host_key == there.host_key
        assert [(line["event"], line["status"]) for line in said] == [
            ("the process of ssh sessions has ended, and is started again", -signal.SIGKILL)
        ]


def test_a_process_that_is_stuck_is_ended(ssh_process: SshProcess, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _children()
    monkeypatch.setattr(process_module, "_SILENT_S", 0.5)

    def stopped(_: Served) -> None:
        (child,) = set(_children()) - set(before)
        os.kill(child, signal.SIGSTOP)

    with sshd(conduct=stopped) as there, _open(ssh_process, there, key) as session:
        with capture_logs() as said, pytest.raises(ConnectionLost):
            session.run(["true"], timeout_s=0.5)
        assert [line["event"] for line in said] == ["the process of ssh sessions is stuck, and is ended"]
    assert set(_children()) == set(before)


def test_an_honest_process_serves_many_threads_sessions_at_once(ssh_process: SshProcess, key: Path) -> None:
    with sshd(conduct=_answer) as there:
        sessions = [_open(ssh_process, there, key) for _ in range(5)]
        assert {session.script("cat", input=b"x").out for session in reversed(sessions)} == {"heard x"}
        for session in sessions:
            session.close()


def test_a_process_that_cannot_be_started_is_started_by_the_next_session(
    ssh_process: SshProcess, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd(conduct=_answer) as there:
        with monkeypatch.context() as no_more:
            no_more.setattr(sys, "executable", str(key.with_name("missing")))
            with pytest.raises(ConnectionLost, match="takes no more: No such file or directory"):
                _open(ssh_process, there, key)
        with _open(ssh_process, there, key) as session:
            assert session.host_key == there.host_key


def test_a_closed_process_is_not_started_again(ssh_process: SshProcess, key: Path) -> None:
    before = _children()
    ssh_process.close()
    with sshd() as there, pytest.raises(ConnectionLost, match="burstd ends"):
        _open(ssh_process, there, key)
    assert _children() == before


def test_a_session_of_a_process_of_before_does_not_end_the_next(
    ssh_process: SshProcess, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd(conduct=_answer) as there, _open(ssh_process, there, key) as session:
        (first, _), connection = ssh_process._running, session._connection  # type: ignore[misc]
        first.kill()
        first.wait()
        with _open(ssh_process, there, key) as again:
            # As where it is found stuck by two at once.
            monkeypatch.setattr(Connection, "poll", lambda self, _: self is not connection)
            monkeypatch.setattr(Connection, "send", lambda *_: None)
            with pytest.raises(ConnectionLost):
                session.run(["true"])
            monkeypatch.undo()
            assert again.script("cat", input=b"x").out == "heard x"


def test_descriptors_that_cannot_be_had_cost_one_session(ssh_process: SshProcess, key: Path) -> None:
    with sshd(conduct=_answer) as there, _open(ssh_process, there, key) as session:
        child = ssh_process._running[0].pid  # type: ignore[index]
        limits = resource.prlimit(child, resource.RLIMIT_NOFILE)
        resource.prlimit(child, resource.RLIMIT_NOFILE, (3, limits[1]))
        with pytest.raises(ConnectionLost):
            _open(ssh_process, there, key)
        resource.prlimit(child, resource.RLIMIT_NOFILE, limits)
        assert session.script("cat", input=b"x").out == "heard x"
