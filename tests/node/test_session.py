"""A session with a real sshd: commands, files, and what happens when a machine goes silent."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from burstd.domain.plugins.shell import CommandTimedOut, ConnectionLost, NotListening
from burstd.node.errors import CommandFailed, HostKeyMismatch, HostKeyUnknown
from burstd.node.job_use import SamplerConfig, fetch_figures
from burstd.node.ssh.host_keys import HostKeyPolicy, HostKeys, parse_console_host_keys
from burstd.node.ssh.session import SshSession, SshTarget, open_ssh_session
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from providers.sandbox.boxes.box import Box
from tests.lab.patience import patience_s
from tests.node.conftest import Machines

pytestmark = [pytest.mark.boxes, pytest.mark.usefixtures("head_network")]
ADDRESS = "10.77.1.9"


@pytest.fixture
def box(boot: Callable[..., Box]) -> Box:
    return boot("cl8", ADDRESS)


@pytest.fixture
def session(box: Box, machines: Machines) -> Iterator[SshSession]:
    keys = parse_console_host_keys(machines.console_of(box)())
    with open_ssh_session(SshTarget(ADDRESS, machines.key), HostKeys(HostKeyPolicy.CONSOLE, keys)) as made:
        assert {made.host_key} == keys
        yield made


def test_commands_arguments_and_streams(session: SshSession) -> None:
    odd = "a 'b' \"c\" $HOME ; `id` \n x"
    assert session.run(["printf", "%s|", odd, ""]).out == f"{odd}||"
    done = session.script("cat; echo oops >&2; exit 3", input=b"\xff in")
    assert (done.rc, done.out, done.err, done.last_line) == (3, "\ufffd in", "oops\n", "oops")
    assert session.run(["false"]).last_line == "exit status 1"
    assert session.run(["sh", "-c", "kill -9 $$"]).rc != 0
    assert session.run(["no-such-command"]).rc == 127
    assert session.run(["true"], input=b"x" * (8 << 20)).rc == 0  # it ends without reading
    blob = os.urandom(3 << 20)
    assert session.run(["sha256sum"], input=blob).out.split()[0] == hashlib.sha256(blob).hexdigest()
    assert session.run(["sh", "-c", "seq 100000 >&2; seq 100000"]).out.endswith("100000\n")


def test_a_file_is_put_whole_or_not_at_all(session: SshSession, box: Box) -> None:
    content = os.urandom(100_000)
    for _ in range(2):
        session.put_file("/etc/some file", content, mode=0o440, owner="munge:adm")
    assert box.path("/etc/some file").read_bytes() == content
    assert box.run(["stat", "-c", "%U:%G %a", "/etc/some file"]).stdout == "munge:adm 440\n"
    with pytest.raises(CommandFailed, match=r"/nonexistent/x could not be written on .*No such file"):
        session.put_file("/nonexistent/x", b"x")
    with pytest.raises(CommandFailed, match="nobody-at-all"):
        session.put_file("/etc/some file", b"new", owner="nobody-at-all:adm")
    assert box.path("/etc/some file").read_bytes() == content
    assert box.run(["sh", "-c", "ls /etc | grep '^some'"]).stdout == "some file\n"


def test_a_command_that_hangs(session: SshSession) -> None:
    before = time.monotonic()
    with pytest.raises(CommandTimedOut, match="more than 1 s for sleep"):
        session.run(["sleep", "60"], timeout_s=1.0)
    assert time.monotonic() - before < patience_s(5)
    with pytest.raises(ConnectionLost):
        session.run(["true"])


def test_a_command_that_keeps_talking_is_cut_off(session: SshSession) -> None:
    with pytest.raises(ConnectionLost, match="more than 1048576 bytes of output"):
        session.run(["yes"], timeout_s=20.0)


def test_a_line_without_an_end_is_cut_off(session: SshSession) -> None:
    never = threading.Event()
    with session.start_process(["sh", "-c", "printf 'one\\ntwo\\n'; exec cat /dev/zero"]) as talk:
        assert [talk.read_line(20.0, never), talk.read_line(20.0, never)] == [b"one\n", b"two\n"]
        with pytest.raises(ConnectionLost, match="without an end of line"):
            talk.read_line(20.0, never)


def test_a_machine_that_dies_under_a_command(session: SshSession, box: Box) -> None:
    killer = threading.Thread(target=lambda: box.run(["pkill", "-9", "-f", "sshd: root"], check=False))
    killer.start()
    with pytest.raises(ConnectionLost, match="hung up while it ran sh"):
        session.run(["sh", "-c", "sleep 30"], timeout_s=20.0)
    killer.join()


def _echo(box: Box) -> None:
    """Something at port 8888 of 127.0.0.1 that says back what it heard once it has heard the end of it."""
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 8888))\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    c.sendall(b''.join(iter(lambda: c.recv(1 << 16), b'')) or b'nothing')\n"
        "    c.close()\n"
    )
    box.run(["sh", "-c", 'setsid python3 -c "$1" >/dev/null 2>&1 &', "sh", program])
    box.wait(lambda b: ":8888 " in b.run(["ss", "-Hltn"]).stdout, 20, "listening")


def test_a_port_is_dialled(session: SshSession, box: Box) -> None:
    with pytest.raises(NotListening, match=f"nothing listens at {ADDRESS} port 8888 so far"):
        session.dial(8888)
    _echo(box)
    said = os.urandom(3 << 20)
    wires = [session.dial(8888) for _ in range(3)]
    try:
        for wire in wires[:2]:
            wire.sendall(said)
            wire.shutdown_write()
        assert [b"".join(iter(partial(wire.recv, 1 << 16), b"")) for wire in wires[:2]] == [said, said]
        heard: list[bytes] = []
        waits = threading.Thread(target=lambda: heard.append(wires[2].recv(1)))
        waits.start()
        wires[2].close()
        waits.join(10)
        assert heard == [b""]
        with pytest.raises(OSError, match="closed"):
            wires[2].sendall(b"x")
    finally:
        for wire in wires:
            wire.close()
    assert session.run(["echo", "still there"]).out == "still there\n"
    session.close()
    with pytest.raises(ConnectionLost, match="hung up before burstd was at port 8888"):
        session.dial(8888)


def test_a_port_that_is_stuck_ends_no_other_connection(session: SshSession, box: Box) -> None:
    _echo(box)
    program = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 8889), backlog=0)\n"
        "full = socket.create_connection(('127.0.0.1', 8889)); print('full', flush=True); time.sleep(600)\n"
    )
    with session.start_process(["python3", "-c", program]) as holds, contextlib.closing(session.dial(8888)) as wire:
        assert holds.read_line(20.0, threading.Event()) == b"full\n"
        with pytest.raises(
            NotListening, match=f"{ADDRESS} port 8889 takes no connection within 1 s: it is busy or stuck"
        ):
            session.dial(8889, timeout_s=1.0)
        wire.sendall(b"abc")
        wire.shutdown_write()
        assert wire.recv(10) == b"abc"


def test_a_node_of_the_site_is_entered_by_the_host_key_of_its_file(
    session: SshSession, machines: Machines, tmp_path: Path
) -> None:
    """And measures there what jobs use."""
    known, none = tmp_path / "known", tmp_path / "none"
    config = ValidatorConfig(machines.key, tmp_path / "keys", tmp_path / "munge.key", "")
    validator = SlurmNodeValidator(config, slurm_version=lambda: (22, 5), wall=time.time)
    with pytest.raises(HostKeyUnknown, match=f"{none} has no key of cl8: add it"):
        validator.connect_own("cl8", ADDRESS, none)
    known.write_text(f"other,{ADDRESS} {session.host_key}\n")
    with validator.connect_own("cl8", ADDRESS, known) as shell:
        figures = fetch_figures(shell, "cl8", SamplerConfig(1.0, 2.0), forget=(), now=1.0)
    assert (figures.state, figures.runs) == ("started", {})
    wrong = session.host_key.split()[1]
    known.write_text(f"cl8 ssh-ed25519 {wrong[:-8]}{'A' * 8}\n")
    with pytest.raises(HostKeyMismatch):
        validator.connect_own("cl8", ADDRESS, known)
