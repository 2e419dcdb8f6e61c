"""sbatch waits for a burstd that is being restarted, for so long and once in a while, whoever holds the socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from burstd.slurm.hooks import stage_client
from burstd.slurm.hooks.stage_client import RESTART_WAIT_S, remaining_restart_wait
from burstd.slurm.hooks.stage_server import StageReply, StageServer


@pytest.fixture
def hook_env(tmp_path: Path) -> dict[str, str]:
    return {"BURSTD_STAGE_SOCKET": str(tmp_path / "s"), "BURSTD_STAGE_SPOOL": str(tmp_path / "spool")}


def check(env: dict[str, str]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-S", "-E", str(stage_client.__file__), "check", "job=7"]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)


def answer(process: subprocess.Popen[bytes]) -> str:
    said, _ = process.communicate(timeout=60)
    return said.decode()


def wait(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


def test_a_check_waits_until_burstd_listens_again(hook_env: dict[str, str], tmp_path: Path) -> None:
    asking = check(hook_env)
    mark = tmp_path / "spool" / "away.env"
    wait(mark, asking)
    server = StageServer(tmp_path / "s", lambda _uid: True, lambda _call: StageReply("ok"))
    server.start()
    try:
        assert answer(asking) == "ok\n"
        assert not mark.exists(), "the next restart is waited for as well"
    finally:
        server.close()


@pytest.mark.slow
def test_a_check_waits_at_a_socket_that_somebody_else_holds(hook_env: dict[str, str], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(hook_env["BURSTD_STAGE_SOCKET"])
        held.listen(8)
        asking = check(hook_env)
        wait(tmp_path / "spool" / "away.env", asking)
        # burstd takes the socket over: the first connection is one that its client has given up.
        held.accept()[0].close()
        wire, _ = held.accept()
        with wire:
            assert wire.recv(1 << 16).endswith(b"\n")
            wire.sendall(StageReply("ok").encode())
        assert answer(asking) == "ok\n"


def test_who_comes_later_does_not_wait_as_long(tmp_path: Path) -> None:
    spool, mark = str(tmp_path / "spool"), tmp_path / "spool" / "away.env"
    assert remaining_restart_wait(spool) == RESTART_WAIT_S
    first = remaining_restart_wait(spool)
    assert 0 < first <= RESTART_WAIT_S
    os.utime(mark, (time.time() - 20, time.time() - 20))
    assert remaining_restart_wait(spool) == 0
    os.utime(mark, (time.time() - 600, time.time() - 600))
    assert remaining_restart_wait(spool) == RESTART_WAIT_S
    (tmp_path / "file").touch()
    assert remaining_restart_wait(str(tmp_path / "file")) == 0, "what cannot be noted is not waited for"


@pytest.mark.slow
def test_a_check_gives_up_on_busy(hook_env: dict[str, str], tmp_path: Path) -> None:
    asked = threading.Semaphore(0)

    def busy(_call: object) -> StageReply:
        asked.release()
        return StageReply("busy")

    server = StageServer(tmp_path / "s", lambda _uid: True, busy)
    server.start()
    try:
        assert answer(check(hook_env)).startswith("absent\n")
        assert asked.acquire(blocking=False)
        assert asked.acquire(blocking=False), "it has asked more than once"
    finally:
        server.close()
