"""A user's server that says a byte now and then holds neither that user's files on the head's disk, nor the hand."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from burstd.transfer.privsep.client import UserWorker, UserWorkerError

pytestmark = pytest.mark.slow


SIZE = 100_000
# A hand whose patience is short; the user's configuration is in HOME.
HAND = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
from staging.objects import user_worker
user_worker.STALL_S = 0.5
sock = socket.socket(fileno=int(sys.argv[1]))
opener = user_worker._opener("s3")
with ThreadPoolExecutor(8) as pool:
    user_worker.ObjectWorkerServer(sock, "s3", opener, pool).serve()
"""
HEAD = f'HTTP/1.1 206 x\r\nETag: "t"\r\nContent-Length: {SIZE}\r\n\r\n'.encode()


class Dripping:
    """A server that answers all that it is asked with ``whole``, and then with a byte every 0.1 s."""

    def __init__(self, whole: bytes, drop: bytes) -> None:
        self._whole, self._drop = whole, drop
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._answer, args=(wire,)))
            self._threads[-1].start()

    def _answer(self, wire: socket.socket) -> None:
        with wire, suppress(OSError):
            wire.recv(1 << 16)
            wire.sendall(self._whole)
            while not self._over.wait(0.1):
                wire.sendall(self._drop)

    def close(self) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Dripping]:
    made = Dripping(*request.param)
    yield made
    made.close()


@pytest.fixture
def child(tmp_path: Path, server: Dripping) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[burst]\naws_access_key_id = A\naws_secret_access_key = B\n")
    (tmp_path / ".aws/config").write_text(
        f"[profile burst]\nendpoint_url = {server.url}\nregion = x\ns3 =\n    addressing_style = path\n"
    )
    ours, theirs = socket.socketpair()
    env = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", HAND, str(theirs.fileno())]
    made = subprocess.Popen(words, pass_fds=(theirs.fileno(),), env=env)
    theirs.close()
    ours.settimeout(20)
    yield made, ours
    ours.close()
    made.kill()
    made.wait()


@pytest.mark.parametrize(
    "server", [(HEAD, b"x"), (b"HTTP/1.1 206 x\r\n", b"x")], ids=["body", "headers"], indirect=True
)
def test_what_is_fetched(child: tuple[subprocess.Popen[bytes], socket.socket]) -> None:
    process, sock = child
    row = ["o", "aa", SIZE, 0, "t", "0"]
    with pytest.raises(UserWorkerError, match="less than 1048576 bytes") as caught:
        UserWorker(sock).fetch_objects("s3://mine/", [row, row])
    assert caught.value.errno == errno.EAGAIN, "it is tried again"
    assert process.wait(10) == 0, "and its files are gone with it"


@pytest.mark.parametrize("server", [(b"HTTP/1.1 200 x\r\n", b"x")], ids=["headers"], indirect=True)
@pytest.mark.parametrize("size", [SIZE, 40 << 20], ids=["one call", "in parts"])
def test_what_is_put(child: tuple[subprocess.Popen[bytes], socket.socket], size: int) -> None:
    process, sock = child
    worker = UserWorker(sock)
    [(new, fd)] = worker.create_files("s3://mine/", ["aa"], job="7")
    os.truncate(fd, size)
    os.close(fd)
    with pytest.raises(UserWorkerError, match="less than 1048576 bytes"):
        worker.commit_files("s3://mine/", [(new, "aa", 0o644, 0)])
    assert process.wait(10) == 0
