"""Who may not call as Slurm does not connect either: he would fill the queue, and no hook would get through."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.slurm.hooks.power_server import PowerServer
from burstd.slurm.hooks.stage_server import StageReply, StageServer
from tests.api.client import connect_as

SLURM, OTHER = 3064, 3065

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="burstd-") as found:
        Path(found).chmod(0o755)
        yield Path(found)


def connects(path: Path, uid: int) -> bool:
    """As a child: root may, so that who connects must have become another user."""
    child = os.fork()
    if child == 0:
        done = 2
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX) as wire:
                done = wire.connect_ex(str(path)) != 0
        finally:
            os._exit(done)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_only_slurm_connects_for_hooks_of_data(folder: Path) -> None:
    path = folder / "stage.sock"
    server = StageServer(path, lambda uid: uid == SLURM, lambda _call: StageReply("ok"))
    server.start()
    try:
        assert not connects(path, SLURM), "nobody knows so far who SlurmUser is"
        server.allow_connect(SLURM)
        assert connects(path, SLURM)
        assert not connects(path, OTHER)
        with connect_as(path, SLURM, SLURM) as wire:
            wire.sendall(b'{"hook": "setup", "job": "7"}\n')
            assert b'"ok"' in wire.recv(1000)
    finally:
        server.close()


def test_only_slurm_connects_for_power(folder: Path) -> None:
    path = folder / "power.sock"
    server = PowerServer(path, folder, lambda _call: None, frozenset({SLURM}))
    server.start()
    try:
        assert connects(path, SLURM)
        assert not connects(path, OTHER)
        server.allow_caller(OTHER)
        assert connects(path, OTHER), "SlurmUser is another now"
    finally:
        server.stop()
