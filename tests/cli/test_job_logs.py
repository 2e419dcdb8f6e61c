"""burstctl job logs, as a process of its own: what it prints where, and how it ends."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from burstd.api.auth import Authorizer, Caller
from burstd.api.job_connections.server import JobConnection, JobConnectionServer
from burstd.cli.commands.job_output import _start_of_last_lines, terminal_text
from burstd.cli.session import ExitCode
from tests.api.fake_backend import FakeBackend

from .conftest import Run
from .test_process import BURSTCTL

CODE = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler); {BURSTCTL}"
END = {"end": "", "failed": False}


def burstctl(control: Path, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *words], stdout=stdout, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BURSTD_SOCKET": str(control)},
    )  # fmt: skip


class PlayedLog:
    """Answers as it was told, then waits until the client or the test has enough."""

    def __init__(self) -> None:
        self.answers: list[Mapping[str, Any]] = []
        self.requests: list[Mapping[str, Any]] = []
        self.hold = threading.Event()
        self.hold.set()

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        del caller
        self.requests.append(request)
        client.send_line({"ok": True, "job": request["job"]})
        for answer in self.answers:
            client.send_line(answer)
        while not client.is_over() and not self.hold.wait(0.02):
            pass

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        del idle_timeout_s


@pytest.fixture
def played() -> PlayedLog:
    return PlayedLog()


Start = Callable[[], JobConnectionServer]


@pytest.fixture
def start(control: Path, backend: FakeBackend, played: PlayedLog) -> Iterator[Start]:
    servers: list[JobConnectionServer] = []

    def started() -> JobConnectionServer:
        servers.append(JobConnectionServer(control.with_name("jobs.sock"), backend, Authorizer(""), {"log": played}))
        servers[-1].start()
        return servers[-1]

    yield started
    for server in servers:
        server.close()


def data(raw: bytes, **at: object) -> dict[str, object]:
    return {"data": base64.b64encode(raw).decode(), "at": at}


def test_bytes_reach_a_pipe_as_they_are(control: Path, start: Start, played: PlayedLog) -> None:
    start()
    raw = bytes(range(256)) * 1000
    played.answers = [data(raw), {"note": "it waits \x1b[31m"}, data(b"\xc3"), END]
    process = burstctl(
        control,
        "job",
        "logs",
        "101",
        "--stderr",
        "-n",
        "7",
    )
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, raw + b"\xc3")
    assert err.decode() == "burstctl: it waits \ufffd[31m\n"
    (request,) = played.requests
    assert request == {"kind": "log", "job": "101", "stream": "stderr", "lines": 7, "follow": False}


def test_a_terminal_obeys_nothing_of_it(control: Path, start: Start, played: PlayedLog) -> None:
    start()
    played.answers = [data(b"\x1b[2Jred\xff\n50 %\r\xc3"), data(b"\xa9\x9b\xe2\x80\xae\xc3"), END]
    ours, theirs = pty.openpty()
    process = burstctl(control, "job", "logs", "101", stdout=theirs)
    os.close(theirs)
    heard = b""
    with contextlib.suppress(OSError):  # as a terminal says that nobody has it any more
        while piece := os.read(ours, 1000):
            heard += piece
    os.close(ours)
    assert process.wait(20) == 0
    assert heard.decode() == "\\x1b[2Jred\\xff\r\n50 %\ré\\x9b\\u202e\\xc3"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain é\n", "plain é\n"),
        ("tab\tand\rreturn", "tab\tand\rreturn"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m\u202e", "\\x9b31m\\u202e"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(written: str, shown: str) -> None:
    assert terminal_text(written) == shown


@pytest.mark.parametrize(
    ("text", "lines", "start"),
    [(b"a\nb\nc\n", 2, 2), (b"a\nb\nc", 1, 4), (b"a\n", 5, 0), (b"", 3, 0), (b"a\nb\n", 0, 4), (b"\n\n\n", 2, 1)],
)
def test_where_the_last_lines_begin(text: bytes, lines: int, start: int) -> None:
    assert _start_of_last_lines(io.BytesIO(text), len(text), lines) == start


def test_a_file_of_this_host_is_read_here(run: Run, start: Start, played: PlayedLog, tmp_path: Path) -> None:
    start()
    file = tmp_path / "slurm-101.out"
    played.answers = [{"file": str(file), "note": f"Its output is {file}."}, END]
    missing = run("job", "logs", "101")
    assert (missing.code, missing.out) == (ExitCode.NEGATIVE, "")
    assert f"{file} is not on this host, or not yet: burstctl stage status" in missing.err
    file.write_bytes(b"a\nb\nc\n")
    found = run("job", "logs", "101", "-n", "2", "--json")
    assert [json.loads(line) for line in found.out.splitlines()] == [
        {"note": f"Its output is {file}."},
        {"data": base64.b64encode(b"b\nc\n").decode()},
    ]
    os.mkfifo(tmp_path / "pipe")
    played.answers = [{"file": str(tmp_path / "pipe"), "note": ""}, END]
    assert "is no regular file" in run("job", "logs", "101").err


def test_a_negative_end_is_a_failure(run: Run, start: Start, played: PlayedLog) -> None:
    start()
    played.answers = [{"end": "Job 101 is pending: Resources.", "failed": True}]
    ended = run("job", "logs", "101")
    assert (ended.code, ended.err) == (ExitCode.NEGATIVE, "burstctl: Job 101 is pending: Resources.\n")
    played.answers = []
    assert run("job", "logs", "101").code == ExitCode.UNREACHABLE


@pytest.mark.slow
def test_it_goes_on_with_a_new_burstd_until_ctrl_c(
    control: Path, start: Start, played: PlayedLog, tmp_path: Path
) -> None:
    first = start()
    played.answers = [data(b"one\n", file="1:2", offset=4)]
    played.hold.clear()
    process = burstctl(control, "job", "logs", "101", "-f")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"one\n"
    first.close()
    assert process.stderr.readline() == b"burstctl: burstd hung up; burstctl goes on when it runs again.\n"
    file = tmp_path / "out"
    file.write_text("two\n", encoding="ascii")
    played.answers = [{"file": str(file), "note": ""}]
    start()
    assert process.stdout.readline() == b"two\n"
    with file.open("a", encoding="ascii") as more:
        more.write("three\n")
    assert process.stdout.readline() == b"three\n"
    assert played.requests[1]["at"] == {"file": "1:2", "offset": 4}
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert process.communicate() == (b"", b"")


def test_a_reader_that_has_enough_ends_it(control: Path, start: Start, played: PlayedLog) -> None:
    start()
    played.answers = [*[data(b"x\n" * 100_000)] * 20, END]
    process = burstctl(control, "job", "logs", "101")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x\n"
    process.stdout.close()
    assert process.wait(20) == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
