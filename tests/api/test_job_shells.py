"""Shells in running jobs: who gets in, as whom, in which environment, and that they end with the job."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shutil
import socket
import struct
import subprocess
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.api.auth import Authorizer
from burstd.api.job_connections.server import JobConnectionServer
from burstd.api.job_connections.shells import ShellService
from burstd.domain.claim import Claim
from burstd.domain.plugins.shell import Closing, CompletedCommand, ConnectionLost, TerminalSize
from burstd.slurm.commands.job_facts import JobFacts
from burstd.transfer.protocol import terminal as frames
from tests.security.fuzz import fuzzed

from .client import connect_as
from .fake_backend import PLAN, FakeBackend
from .test_forward import line
from .test_job_logs import facts
from .world import JOBS, SLURM, SNAPSHOT, USER, job

NOBODY = 65534
NUMBER = "987654"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
_ON_TERMINAL = 'tty=$1; shift; exec <"$tty" >"$tty" 2>&1; exec "$@"'


class LocalTerminal:
    """A terminal of this machine, as a provider's shell has it on a node."""

    def __init__(self, argv: Sequence[str], size: TerminalSize) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(size)
        self.process = subprocess.Popen(
            ["sh", "-c", _ON_TERMINAL, "sh", os.ttyname(theirs), *argv], start_new_session=True
        )
        self._theirs: int | None = theirs
        self.lost = False

    def recv(self, most: int) -> bytes:
        try:
            self._hang_up_once_it_speaks()
            return os.read(self._ours, most)
        except OSError:
            return b""

    def _hang_up_once_it_speaks(self) -> None:
        # Until the command has the terminal this keeps it.
        if self._theirs is not None:
            while self.process.poll() is None and not _has_terminal(self.process.pid):
                pass
            os.close(self._theirs)
            self._theirs = None

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._ours, data) :]

    def resize(self, size: TerminalSize) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def exit_status(self) -> int:
        if self.lost:
            raise ConnectionLost("it hung up")
        return self.process.wait(20)

    def close(self) -> None:
        self.lost = self.process.poll() is None
        self.process.kill()
        self.process.wait()


def _has_terminal(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[4] != "0"


class LocalShell(Closing):
    def open_terminal(self, argv: Sequence[str], size: TerminalSize) -> LocalTerminal:
        return LocalTerminal(argv, size)

    def script(self, text: str, *args: str, input: bytes, timeout_s: float) -> CompletedCommand:  # noqa: A002 - as Shell
        done = subprocess.run(["sh", "-c", text, "sh", *args], input=input, timeout=timeout_s, check=True)
        return CompletedCommand(done.returncode, "", "")

    def close(self) -> None:
        """Nothing is open."""


class Node:
    def __init__(self) -> None:
        self.facts: JobFacts | None = facts(Path("/tmp"), job_id=NUMBER)  # noqa: S108 - no file is made there

    def open_shell(self, _: Claim) -> Any:
        return LocalShell()

    def read_facts(self, job_id: str) -> JobFacts | None:
        return self.facts if self.facts is not None and job_id == self.facts.queue_id else None


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def shell_socket(socket_path: Path, backend: FakeBackend, node: Node) -> Iterator[Path]:
    service = ShellService(backend, node.open_shell, node.read_facts)
    server = JobConnectionServer(socket_path, backend, Authorizer(""), {"shell": service}, check_interval_s=0.05)
    server.start()
    yield socket_path
    server.close()
    # What a connection logs at its end would be another test's output.
    for thread in threading.enumerate():
        if thread.name == "job":
            thread.join(20)


Enter = Callable[..., tuple[socket.socket, dict[str, Any]]]


@pytest.fixture
def enter(shell_socket: Path) -> Iterator[Enter]:
    opened: list[socket.socket] = []

    def call(*command: str, job_id: str = "101", uid: int = NOBODY, **more: object) -> Any:
        opened.append(connect_as(shell_socket, uid, uid))
        opened[-1].settimeout(20)
        request = {"kind": "shell", "job": job_id, "command": command, "rows": 33, "columns": 99} | more
        opened[-1].sendall(json.dumps(request).encode() + b"\n")
        return opened[-1], line(opened[-1])

    yield call
    for connection in opened:
        connection.close()


def shown(connection: socket.socket) -> tuple[bytes, tuple[bytes, bytes] | None]:
    """What was written, and the last frame."""
    said = b""
    while (got := frames.read_frame(connection.recv)) is not None:
        if got[0] != frames.DATA:
            return said, got
        said += got[1]
    return said, None


def status(code: int) -> tuple[bytes, bytes]:
    return frames.STATUS, frames.pack_status(code)


def test_a_command_has_a_terminal_of_its_size_and_its_status_is_told(enter: Enter) -> None:
    # Nobody's own shell lets nobody in.
    connection, answer = enter("sh", "-c", "stty size; read x; stty size; echo got $x; exit 7", term="xterm")
    assert answer == {"ok": True, "job": NUMBER, "node": "gpu1"}
    heard = b""
    while b"33 99\r\n" not in heard:
        got = frames.read_frame(connection.recv)
        assert got is not None
        heard += got[1]
    connection.sendall(frames.frame(frames.SIZE, frames.pack_size(10, 20)))
    connection.sendall(frames.frame(frames.DATA, b"typed\n"))
    said, last = shown(connection)
    assert said.endswith(b"10 20\r\ngot typed\r\n")
    assert last == status(7)


@pytest.mark.slow
def test_it_is_the_jobs_user_in_the_jobs_environment(enter: Enter) -> None:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    odd = 'it\'s "odd" $HOME `id`\nof two lines \\'
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": NUMBER, "ODD": odd, "no-name": "x", "TERM": "job"}
    tell = 'id -u; pwd; printf \'<%s>\' "$ODD"; echo " $TERM"; tty >/dev/null || echo no input'
    # What has the same number and is another user's is not the job.
    with (
        subprocess.Popen(["sleep", "60"], env={**environment, "ODD": "root's"}) as roots,
        subprocess.Popen(["sleep", "60"], env=environment, cwd=folder, user=NOBODY, group=NOBODY) as task,
    ):
        try:
            said, last = shown(enter("sh", "-c", tell, term="screen.x-1", raw=True)[0])
        finally:
            roots.kill()
            task.kill()
            shutil.rmtree(folder)
    assert said.decode() == f"{NOBODY}\n{folder}\n<{odd}> screen.x-1\nno input\n"
    assert last == status(0)


def test_without_a_process_of_the_job_it_knows_its_number_only(enter: Enter) -> None:
    said, last = shown(enter("sh", "-c", "echo $SLURM_JOB_ID $USER $TERM", raw=True, uid=0, term="\x1b[0m")[0])
    assert (said.decode(), last) == (f"{NUMBER} nobody dumb\n", status(0))


def test_it_ends_with_the_job(enter: Enter, backend: FakeBackend) -> None:
    connection, answer = enter("sleep", "100")
    assert answer["ok"]
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:])), PLAN)
    assert shown(connection)[1] == (frames.LOST, b"Job 101 does not run any more.")


@pytest.mark.parametrize(
    ("request_", "status_", "says"),
    [
        ({"job_id": "102"}, 403, f"You are {USER}, and job 102 is not yours."),
        ({"job_id": "102", "look": True}, 403, f"You are {USER}, and job 102 is not yours."),
        ({"job_id": "999"}, 404, "Job 999 is not in the queue."),
        ({"job_id": "104"}, 409, "Job 104 does not run: burstd saw it pending"),
        ({"job_id": "104", "look": True}, 409, "Job 104 does not run: burstd saw it pending"),
        ({"node": "gpu7", "look": True}, 404, "Job 101 has no node 'gpu7'; it runs on gpu1."),
        ({"command": "ls"}, 422, "The command is a list of words."),
        ({"command": ["a\0b"]}, 422, "The command is a list of words."),
        ({"command": ["x" * 9000]}, 422, "The command has more than 8192 bytes"),
        ({"rows": 10**20}, 422, "Rows and columns are 0 to 65535."),
    ],
)
def test_the_rest_is_refused_with_a_sentence(enter: Enter, request_: dict[str, Any], status_: int, says: str) -> None:
    answer = enter(**request_)[1]
    assert (answer["ok"], answer["status"]) == (False, status_)
    assert says in answer["error"]


def test_only_a_job_that_slurm_says_runs_is_entered(enter: Enter, node: Node) -> None:
    assert node.facts is not None
    node.facts = replace(node.facts, state="COMPLETING")
    assert enter()[1]["error"] == "Job 101 does not run: it is completing."
    node.facts = None
    assert enter(look=True)[1]["error"] == "Job 101 does not run any more."


def test_looking_tells_what_srun_needs_also_on_nodes_of_the_site(
    enter: Enter, node: Node, backend: FakeBackend
) -> None:
    assert enter(look=True)[1] == {"ok": True, "job": NUMBER, "user": USER, "node": "gpu1"}
    on_premises = replace(JOBS[0], node_list=("rack1", "rack2"))
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(on_premises,))), PLAN)
    node.facts = facts(Path("/"), job_id=NUMBER, nodes=("rack1", "rack2"))
    assert enter(look=True, node="rack2")[1]["node"] == "rack2"
    assert "which burstd did not start" in enter()[1]["error"]


def test_a_job_that_burstd_has_not_seen_running_is_waited_for(enter: Enter, backend: FakeBackend) -> None:
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(job("101", USER),))), PLAN)
    woken: list[bool] = []

    def wake() -> None:
        woken.append(True)
        backend.loop = (SNAPSHOT, PLAN)

    backend.wake = wake
    assert enter(look=True)[1]["ok"]
    assert woken == [True]


@fuzzed
@given(st.lists(st.tuples(st.sampled_from([frames.DATA, frames.SIZE, b"?"]), st.binary(max_size=50))), st.binary())
def test_fuzz_frames(sent: list[tuple[bytes, bytes]], rest: bytes) -> None:
    stream = bytearray(b"".join(frames.frame(kind, payload) for kind, payload in sent) + rest)

    def receive(most: int) -> bytes:
        piece = bytes(stream[: min(most, 3)])
        del stream[: len(piece)]
        return piece

    for one in sent:
        assert frames.read_frame(receive) == one
    with contextlib.suppress(ConnectionError):
        while (got := frames.read_frame(receive)) is not None:
            frames.unpack_size(got[1])
