"""A machine that runs out of descriptors for a while loses no server for good."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from burstd.slurm.hooks import power_server, stage_server
from burstd.slurm.hooks.power_client import ACKNOWLEDGED

SERVERS = """
import os, resource, select, sys
from pathlib import Path
from burstd.slurm.hooks.power_server import PowerServer
from burstd.slurm.hooks.stage_server import StageReply, StageServer

folder = Path(sys.argv[1])
PowerServer(folder / "power", folder, lambda call: None).start()
StageServer(folder / "stage", lambda uid: True, lambda call: StageReply("ok")).start()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
print("full", flush=True)
while not select.select([sys.stdin], [], [], 0.005)[0]:
    # Whatever becomes free is taken at once.
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
for descriptor in held:
    os.close(descriptor)
sys.stdin.readline()
sys.stdin.readline()
"""


def connect(path: Path) -> socket.socket:
    """Waits while the queue of connections is full."""
    wire = socket.socket(socket.AF_UNIX)
    wire.connect(str(path))
    wire.settimeout(20)
    return wire


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_servers_of_the_hooks_go_on_after_accept_has_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    argv = [sys.executable, "-u", "-c", SERVERS, str(tmp_path)]
    with (
        log.open("wb") as out,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdin is not None
        try:
            # Each server has the descriptor of one connection ready, and one that it closes may be its next.
            while not ("power programs" in (failed := log.read_text()) and "hooks of" in failed):
                assert process.poll() is None, failed
                for name in ("power", "stage") if "full\n" in failed else ():
                    # One whose queue is full does not accept any more.
                    with suppress(BlockingIOError), socket.socket(socket.AF_UNIX) as wire:
                        wire.setblocking(False)
                        wire.connect(str(tmp_path / name))
            assert "Traceback" not in failed
            assert "Too many open files" in failed
            process.stdin.write(b"\n")
            process.stdin.flush()
            with connect(tmp_path / "power") as power, connect(tmp_path / "stage") as stage:
                power.sendall(json.dumps({"kind": "resume", "nodes": "cl1", "time": 1.0}).encode())
                power.shutdown(socket.SHUT_WR)
                assert power.recv(16) == ACKNOWLEDGED
                stage.sendall(json.dumps({"hook": "setup", "job": "7"}).encode() + b"\n")
                assert json.loads(stage.recv(1 << 16))["result"] == "ok"
        finally:
            process.kill()


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"kind":"resume","nodes":"n","time":1' + b"0" * 400 + b"}",
        b'{"kind":"resume","nodes":"n","time":NaN}',
        b'{"kind":"resume","nodes":"n","time":-1}',
        b'{"kind":["resume"],"nodes":"n","time":1}',
        b'{"kind":"resume","nodes":"n","time":1' + b"0" * 5000 + b"}",
        b"\xff\xfe", b"{}", b"[]", b"null", b"",
    ],
)  # fmt: skip
def test_a_power_call_that_is_none_ends_nothing(line: bytes) -> None:
    assert power_server.parse_power_call(line) is None


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"hook":"setup","job":"../7"}',
        b'{"hook":"setup","job":"7\\n"}',
        b'{"hook":"setup","job":"7","uid":-1}',
        b'{"hook":"setup","job":"7","uid":4294967295}',
        b'{"hook":"setup","job":"7","uid":true}',
        b'{"hook":"setup","job":"7","gid":1.5}',
        b'{"hook":"setup","job":"12345678901"}',
        b'{"hook":["setup"],"job":"7"}',
    ],
)
def test_a_hook_that_is_none_ends_nothing(line: bytes) -> None:
    assert stage_server.parse_stage_call(line) is None
