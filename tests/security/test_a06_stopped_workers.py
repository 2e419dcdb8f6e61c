"""Hands that their user has stopped, which nobody but systemd can end, are counted against him alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.transfer.privsep import client as module
from burstd.transfer.privsep import worker as program
from burstd.transfer.privsep.client import UserWorkerError, start_user_worker
from tests.transfer.ground import OTHER, USER, root_only

pytestmark = [pytest.mark.boxes, root_only]


class SocketActivatedWorkers:
    """What systemd does for burstd-user-worker.socket: one process a connection."""

    def __init__(self, path: Path) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                wire, _ = self.listener.accept()
            except OSError:
                return
            fd = wire.fileno()
            argv = [sys.executable, "-I", "-S", str(program.__file__), "--fd", str(fd)]
            self.children.append(subprocess.Popen(argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, env={}, cwd="/"))
            wire.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[SocketActivatedWorkers]:
    made = SocketActivatedWorkers(tmp_path / "user-worker.sock")
    yield made
    made.close()


def test_a_user_has_so_many_workers(
    started: SocketActivatedWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WORKERS_PER_USER", 3)
    path = tmp_path / "user-worker.sock"
    for number in range(3):
        with start_user_worker(USER, USER, socket_path=path):
            os.kill(started.children[number].pid, signal.SIGSTOP)
    with pytest.raises(UserWorkerError, match=f"user {USER} has 3 user workers that have not ended") as caught:
        start_user_worker(USER, USER, socket_path=path)
    assert caught.value.errno, "it is tried again"
    assert len(started.children) == 3
    start_user_worker(OTHER, OTHER, socket_path=path).close()
    os.kill(started.children[0].pid, signal.SIGCONT)
    started.children[0].wait(20)
    until = time.monotonic() + 20
    while module.worker_processes.count(USER) == 3:
        assert time.monotonic() < until
    start_user_worker(USER, USER, socket_path=path).close()


def test_the_units_of_the_version_before_serve(tmp_path: Path) -> None:
    former = SocketActivatedWorkers(tmp_path / "hand.sock")
    try:
        start_user_worker(USER, USER, socket_path=tmp_path / "user-worker.sock").close()
        assert len(former.children) == 1
    finally:
        former.close()
