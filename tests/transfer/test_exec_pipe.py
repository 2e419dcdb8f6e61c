"""A command in a pod as pipes: bytes both ways, and why it is no more."""

from __future__ import annotations

import json
import queue
import threading
from typing import cast

import pytest

from burstd.domain.errors import CloudUnavailable
from providers.openshift.client.websocket import STATUS, STDERR, STDIN, STDOUT, Channels
from staging.pvc.exec_pipe import ExecPipe


class Far:
    """Stands in for the connection: echoes standard input, and says what it is told to."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[int, bytes] | None] = queue.Queue()
        self.closed = threading.Event()

    def send(self, channel: int, data: bytes) -> None:
        assert channel == STDIN
        self.came.put((STDOUT, data))

    def receive(self) -> tuple[int, bytes] | None:
        return self.came.get()

    def close(self) -> None:
        self.closed.set()
        self.came.put(None)

    def pipe(self, first: bytes = b"") -> ExecPipe:
        return ExecPipe(lambda: cast("Channels", self), first)


def ended(code: str) -> bytes:
    causes = [{"reason": "ExitCode", "message": code}]
    return json.dumps({"status": "Failure", "message": "error executing ...", "details": {"causes": causes}}).encode()


def test_bytes_go_both_ways_until_one_side_hangs_up() -> None:
    far = Far()
    pipe = far.pipe(b"first ")
    pipe.write.write(b"second")
    assert b"".join(iter(lambda: pipe.read.read(1), b"d")) == b"first secon"
    pipe.write.close()
    assert pipe.read.read() == b""
    pipe.wait(20)
    assert far.closed.is_set()
    pipe.read.close()


def test_nobody_reads_any_more() -> None:
    far = Far()
    pipe = far.pipe()
    pipe.read.close()
    far.came.put((STDOUT, b"x"))
    assert far.closed.wait(20)
    pipe.write.close()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ([(STDERR, b"Traceback\nPermission"), (STDERR, b" denied\n"), (STATUS, ended("1"))], "Permission denied"),
        ([(STATUS, ended("3"))], "the program in the pod ended with exit status 3"),
        ([(STATUS, ended("137"))], "exit status 137 (killed: has it memory enough?)"),
        ([(STATUS, b'{"status":"Failure","message":"container not found"}')], "container not found"),
        ([(STATUS, b'{"status":"Success"}')], ""),
        ([(STATUS, b"no JSON")], "no exit status, but b'no JSON'"),
        ([], ""),
    ],
)
def test_why_it_has_ended(said: list[tuple[int, bytes]], complaint: str) -> None:
    far = Far()
    for each in (*said, None):
        far.came.put(each)
    pipe = far.pipe()
    assert pipe.read.read() == b""
    pipe.wait(20)
    assert pipe.error_text.endswith(complaint)
    assert bool(pipe.error_text) == bool(complaint)
    pipe.read.close()
    pipe.write.close()


def test_no_connection_comes_about() -> None:
    def connect() -> Channels:
        raise CloudUnavailable("connection refused")

    pipe = ExecPipe(connect)
    assert pipe.read.read() == b""
    pipe.wait(20)
    assert str(pipe.error) == "connection refused"
    pipe.read.close()
    pipe.write.close()
