"""burstctl at a socket that somebody else listens at: a clear error, little memory, and no other socket instead."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from burstd.cli.job_socket import JobSocket
from burstd.cli.session import DaemonUnreachable

pytestmark = pytest.mark.slow


BURSTCTL = "import sys; sys.argv[0] = 'burstctl'; from burstd.cli.main import main; main()"
MEMORY_BYTES = 1 << 30
"""Of burstctl's address space."""
Answer = Callable[[], Iterable[bytes]]


@contextmanager
def strange(answer: Answer, name: str = "control.sock") -> Iterator[tuple[Path, list[bytes]]]:
    """A socket that answers any question so; what it was asked."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        path, asked = Path(folder) / name, list[bytes]()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(8)

            def serve() -> None:
                with suppress(OSError):
                    while True:
                        wire, _ = listener.accept()
                        with wire, suppress(OSError):
                            asked.append(wire.recv(1 << 16))
                            for piece in answer():
                                wire.sendall(piece)

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                yield path, asked
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join(20)


def http(body: bytes, *headers: str, status: int = 200) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", *headers, "", ""])
    return lambda: [head.encode() + body]


def endless() -> Iterable[bytes]:
    return chain([b"HTTP/1.1 200 x\r\n\r\n"], repeat(b" " * (1 << 20)))


def bomb() -> bytes:
    """A GiB of spaces, as gzip has it: one block over and over (RFC 1951 and 1952)."""
    deflate, mib = zlib.compressobj(1, wbits=-15), b" " * (1 << 20)
    block, crc = deflate.compress(mib) + deflate.flush(zlib.Z_FULL_FLUSH), 0
    for _ in range(1 << 10):
        crc = zlib.crc32(mib, crc)
    return b"\x1f\x8b\x08%b\xff%b\x03\0%b" % (bytes(6), block * (1 << 10), struct.pack("<II", crc, 1 << 30))


def burstctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BURSTCTL, *words], text=True, capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        pytest.param(http(bomb(), "Content-Encoding: gzip"), 3, "is not burstd", id="gzip"),
        pytest.param(endless, 3, "is not burstd", id="endless"),
        pytest.param(http(b"[" * 5_000_000), 3, "is not burstd", id="deep"),
        pytest.param(http(b"[]", status=500), 3, "is not burstd", id="list"),
        pytest.param(http(b'{"error": ["\x1b"]}', status=409), 3, "is not burstd", id="control characters"),
        pytest.param(http(b'{"error": ["\\u001b[2J"]}', status=409), 1, "x1b[2J", id="error is a list"),
        pytest.param(http(b'{"daemon": {}, "you": 1}'), 1, "cannot be shown", id="lacks much"),
        pytest.param(http(b'{"pools": 1, "daemon": "\\u001b"}'), 1, "cannot be shown", id="other types"),
        pytest.param(http(b'{"pools": [' + b"1," * 500_000 + b"1]}"), 1, "cannot be shown", id="many faults"),
    ],
)
def test_its_answer(answer: Answer, code: int, says: str) -> None:
    with strange(answer) as (path, asked):
        done = burstctl("--socket", str(path), "status")
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert "failed unexpectedly" not in done.stderr
    assert "\x1b" not in done.stderr
    assert b"accept-encoding: identity\r\n" in asked[0].lower()


@pytest.mark.parametrize("line", [b"[" * 60_000 + b"\n", b"x" * (1 << 20)], ids=["deep", "endless"])
def test_its_answer_about_a_port(line: bytes) -> None:
    with (
        strange(lambda: [line], "jobs.sock") as (path, _),
        pytest.raises(DaemonUnreachable, match="without an answer"),
    ):
        JobSocket(path, {"job": "1"}).connect(hold=True)


def test_the_socket_that_is_named_is_the_one_that_is_asked() -> None:
    said = http(json.dumps({"here": True}).encode())
    with strange(said, "admin.sock") as (beside, asked_beside):
        named = beside.with_name("control.sock")
        done = burstctl("--socket", str(named), "--json", "status")
        assert (done.returncode, asked_beside) == (3, [])
        assert str(named) in done.stderr
        done = burstctl("--socket", str(beside), "--json", "status")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"here": True})
