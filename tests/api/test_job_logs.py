"""The output of running jobs: who gets it, from where, and what becomes of a file that changes meanwhile."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.api.auth import Authorizer
from burstd.api.job_connections import logs
from burstd.api.job_connections.logs import LogService
from burstd.api.job_connections.server import JobConnectionServer
from burstd.domain.claim import Claim
from burstd.domain.errors import NodeRefused
from burstd.domain.plugins.shell import Closing, CompletedCommand, ConnectionLost
from burstd.domain.slurm.job import JobState
from burstd.slurm.commands.job_facts import JobFacts
from tests.security.fuzz import fuzzed

from .client import connect_as
from .fake_backend import PLAN, FakeBackend
from .world import JOBS, OTHER_USER, SLURM, SNAPSHOT, USER, job

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives up its rights")


class LocalNode:
    """A node whose files are this machine's; ``dead``: so many calls find it gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dead = 0
        self.shown_trees: list[tuple[str, str]] = []
        """Users and paths that are the same on the head."""
        self.facts = facts(folder)
        self.calls = 0

    @property
    def output(self) -> Path:
        return Path(self.facts.std_out)

    def open_shell(self, _: Claim) -> Any:
        return LocalShell(self)

    def read_facts(self, job_id: str) -> JobFacts | None:
        return self.facts if job_id == self.facts.queue_id else None


class LocalShell(Closing):
    def __init__(self, node: LocalNode) -> None:
        self._node = node

    def script(self, text: str, *args: str, timeout_s: float) -> CompletedCommand:
        self._node.calls += 1
        if self._node.dead:
            self._node.dead -= 1
            raise ConnectionLost("it hung up")
        done = subprocess.run(["sh", "-c", text, "sh", *args], capture_output=True, timeout=timeout_s, check=False)
        return CompletedCommand(done.returncode, done.stdout.decode(), done.stderr.decode())

    def close(self) -> None:
        """Nothing is open."""


def facts(folder: Path, **more: Any) -> JobFacts:
    shown = {
        "job_id": "101", "queue_id": "101", "user": USER, "uid": NOBODY, "gid": NOBODY, "account": "",
        "partitions": ("burst",), "state": "RUNNING", "exit_code": "0:0", "nodes": ("gpu1",), "work_dir": str(folder),
        "std_out": str(folder / "out.txt"), "std_err": "",
    }  # fmt: skip
    return JobFacts(**{**shown, **more})


@pytest.fixture
def node() -> Iterator[LocalNode]:
    # pytest's own folders are root's alone.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield LocalNode(folder)
    shutil.rmtree(folder)


@pytest.fixture
def log_socket(socket_path: Path, backend: FakeBackend, node: LocalNode) -> Iterator[Path]:
    service = LogService(
        backend, node.open_shell, node.read_facts, lambda _, path, user: (user, path) in node.shown_trees
    )
    server = JobConnectionServer(socket_path, backend, Authorizer(""), {"log": service}, check_interval_s=0.05)
    server.start()
    yield socket_path
    server.close()


class Reading:
    """A client's connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        self._connection = connection
        self._lines = connection.makefile("rb")

    def next(self) -> dict[str, Any]:
        line = self._lines.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        if "data" in answer:
            answer["data"] = base64.b64decode(answer["data"])
        return answer

    def rest(self) -> list[dict[str, Any]]:
        return list(iter(self.next, {}))

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


LogCall = Callable[..., Reading]


@pytest.fixture
def read_log(log_socket: Path) -> Iterator[LogCall]:
    opened: list[Reading] = []

    def call(job_id: str = "101", uid: int = NOBODY, **more: object) -> Reading:
        connection = connect_as(log_socket, uid, uid)
        opened.append(Reading(connection))
        request = {"kind": "log", "job": job_id, "stream": "stdout", "lines": -1, "follow": False} | more
        connection.sendall(json.dumps(request).encode() + b"\n")
        return opened[-1]

    yield call
    for one in opened:
        one.close()


def answers(reading: Reading) -> tuple[bytes, dict[str, Any]]:
    """All data, and the last answer."""
    first, *rest = reading.rest()
    assert first["ok"], first
    return b"".join(one.get("data", b"") for one in rest), rest[-1]


GOOD_END = {"end": "", "failed": False}
JUNK = bytes(range(256)) * 3000


@pytest.mark.parametrize(
    ("written", "lines", "told"),
    [
        (b"a\nb\nc\n", -1, b"a\nb\nc\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"", 5, b""),
        (JUNK, -1, JUNK),
        (b"x" * (logs.PIECE_BYTES * 2 + 1), -1, b"x" * (logs.PIECE_BYTES * 2 + 1)),
    ],
)
def test_the_owner_gets_what_was_written(
    read_log: LogCall, node: LocalNode, written: bytes, lines: int, told: bytes
) -> None:
    node.output.write_bytes(written)
    assert answers(read_log(lines=lines)) == (told, GOOD_END)


def test_lines_are_counted_at_the_end_of_a_large_file(read_log: LogCall, node: LocalNode) -> None:
    with node.output.open("wb") as file:
        file.truncate(10 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast but one\nlast\n")
    assert answers(read_log(lines=2)) == (b"last but one\nlast\n", GOOD_END)


def test_a_job_whose_directory_is_not_on_the_node_writes_below_tmp(read_log: LogCall, node: LocalNode) -> None:
    node.output.write_bytes(b"abc")
    elsewhere = f"/nowhere/{node.folder.name}/out.txt"
    node.facts = replace(node.facts, work_dir="/nowhere", std_out=elsewhere)
    assert answers(read_log()) == (b"abc", GOOD_END)


def _link(path: Path) -> None:
    path.symlink_to("/etc/shadow")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: None, "does not exist yet"),
        (_link, f"may not be read by {USER}"),
        (os.mkfifo, "is no regular file"),
        (Path.mkdir, "is no regular file"),
    ],
)
def test_the_job_owners_rights_count_on_the_node(
    read_log: LogCall, node: LocalNode, make: Callable[[Path], None], why: str
) -> None:
    make(node.output)
    # Neither does an administrator read more than the owner.
    for uid in (NOBODY, 0):
        data, end = answers(read_log(uid=uid))
        assert (data, end["failed"]) == (b"", True)
        assert end["end"].endswith(why)


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        ({"job_id": "102"}, 403, f"You are {USER}, and job 102 is not yours."),
        ({"job_id": "999"}, 404, "Slurm knows no job 999 (any more)."),
        ({"lines": -2}, 422, "-2 is no number of lines"),
        ({"lines": True}, 422, "True is no number of lines"),
        ({"stream": "secrets"}, 422, "The stream is stdout or stderr."),
        ({"at": {"file": "1:1", "offset": -1}}, 422, "at is a file and an offset"),
        ({"at": {"file": "1:1 x", "offset": 1}}, 422, "at is a file and an offset"),
        ({"at": []}, 422, "at is a file and an offset"),
    ],
)
def test_the_rest_is_refused_with_a_sentence(
    read_log: LogCall, node: LocalNode, request_: dict[str, Any], status: int, says: str
) -> None:
    answer = read_log(**request_).next()
    assert (answer["ok"], answer["status"]) == (False, status)
    assert says in answer["error"]
    assert node.calls == 0


def test_a_job_that_slurm_alone_knows_is_its_owners_too(read_log: LogCall, node: LocalNode) -> None:
    node.facts = facts(node.folder, queue_id="999", user=OTHER_USER)
    assert read_log("999").next()["error"] == f"You are {USER}, and job 999 is not yours."


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        ({"nodes": ("rack1",)}, {"file": "{folder}/out.txt", "note": ""}),
        ({"std_out": "/dev/null"}, {"end": "/dev/null on gpu1 is no regular file", "failed": True}),
        ({"std_err": "{folder}/err.txt", "nodes": ("rack1",)}, {"file": "{folder}/err.txt", "note": ""}),
    ],
)
def test_where_the_file_is(read_log: LogCall, node: LocalNode, changes: dict[str, Any], answer: dict[str, Any]) -> None:
    def filled(values: dict[str, Any]) -> dict[str, Any]:
        return {k: v.format(folder=node.folder) if isinstance(v, str) else v for k, v in values.items()}

    node.facts = replace(node.facts, **filled(changes))
    reading = read_log(stream="stderr")
    assert reading.next()["ok"]
    assert reading.next() == filled(answer)


def test_a_file_that_the_head_has_as_well_is_read_there(read_log: LogCall, node: LocalNode) -> None:
    node.shown_trees = [(USER, str(node.output))]
    reading = read_log()
    assert reading.next()["ok"]
    assert reading.next() == {"file": str(node.output), "note": ""}
    assert node.calls == 0


def test_an_ended_job_has_its_file_on_the_head_and_an_interactive_one_has_none(
    read_log: LogCall, node: LocalNode
) -> None:
    node.facts = facts(node.folder, queue_id="999", state="TIMEOUT")
    node.output.write_bytes(b"abc")
    # Its machine is still there.
    assert answers(read_log("999", follow=True)) == (b"abc", GOOD_END)
    node.output.unlink()
    reading = read_log("999", follow=True)
    assert reading.next()["ok"]
    assert reading.next() == {
        "file": f"{node.folder}/out.txt",
        "note": f"Job 999 does not run any more (timeout): its output is {node.folder}/out.txt.",
    }
    assert reading.next() == GOOD_END
    node.facts = facts(node.folder, std_out="")
    assert "Job 101 has no output file" in read_log().next()["error"]


@pytest.mark.slow
def test_a_file_is_followed_until_the_job_ends(read_log: LogCall, node: LocalNode, backend: FakeBackend) -> None:
    waiting = job("101", USER, reason="Resources")
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=(waiting,))), PLAN)
    node.facts = replace(node.facts, state="PENDING")
    assert answers(read_log()) == (b"", {"end": "Job 101 is pending: Resources.", "failed": True})
    reading = read_log(follow=True, lines=1)
    assert reading.next()["ok"]
    assert reading.next() == {"note": "Job 101 is pending: Resources."}
    node.facts, backend.loop = replace(node.facts, state="RUNNING"), (SNAPSHOT, PLAN)
    assert reading.next() == {"note": f"{node.output} on gpu1 does not exist yet"}
    node.output.write_bytes(b"one\ntwo\n")
    told = reading.next()
    assert told["data"] == b"two\n"
    with node.output.open("ab") as file:
        file.write(b"three\n")
    assert reading.next()["data"] == b"three\n"
    # A client whose connection broke goes on where it was.
    again = read_log(follow=True, at=told["at"])
    assert again.next()["ok"]
    assert again.next()["data"] == b"three\n"
    node.output.write_bytes(b"new\n")
    assert reading.next() == {"note": "The file was replaced or truncated; it is read from its beginning."}
    assert reading.next()["data"] == b"new\n"
    other = node.folder / "other"
    other.write_bytes(b"another file\n")
    other.replace(node.output)
    assert reading.next()["note"].startswith("The file was replaced")
    assert reading.next()["data"] == b"another file\n"
    again.close()
    node.dead = 1
    note = reading.next()["note"]
    assert note == "gpu1 cannot be reached and is tried again: it hung up."
    with node.output.open("ab") as file:
        file.write(b"after the cut\n")
    assert reading.next()["data"] == b"after the cut\n"
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:])), PLAN)
    with node.output.open("ab") as file:
        file.write(b"last\n")
    assert reading.rest() == [{"data": b"last\n", "at": _at(node)}, GOOD_END]


def _at(node: LocalNode) -> dict[str, object]:
    found = node.output.stat()
    return {"file": f"{found.st_dev}:{found.st_ino}", "offset": found.st_size}


def test_a_node_that_cannot_be_reached_is_named(read_log: LogCall, node: LocalNode) -> None:
    node.dead = 1
    assert answers(read_log())[1] == {"end": "gpu1 cannot be reached: it hung up.", "failed": True}


def test_parts_of_an_array_are_named(read_log: LogCall, backend: FakeBackend, node: LocalNode) -> None:
    rows = tuple(job(f"7_{n}", USER, JobState.RUNNING, array_job_id="7", node_list=("gpu1",)) for n in (1, 2))
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=rows)), PLAN)
    assert "name one of 7_1, 7_2" in read_log("7").next()["error"]
    node.facts = facts(node.folder, job_id="9", queue_id="7_2")
    node.output.write_bytes(b"abc")
    assert answers(read_log("7_2")) == (b"abc", GOOD_END)


@fuzzed
@given(st.text(max_size=300) | st.from_regex(r"(data|same) [0-9]+:[0-9]+ [0-9]+ [0-9]+\n.*"))
def test_fuzz_what_a_node_says(said: str) -> None:
    with contextlib.suppress(NodeRefused):
        piece = logs._parse_piece(said)
        assert 0 <= piece.offset < 10**18
        assert len(piece.data) <= len(said)
