"""A user who connects to the control socket without end keeps the administrator out no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from burstd.daemon.control import ControlServer
from burstd.daemon.sockets import listen, listen_for_root
from tests.control.client import Client
from tests.control.office import FakeOffice, record_of_the_world

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

FLOOD = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("begun", flush=True)
while os.getppid() == int(sys.argv[2]):
    with socket.socket(socket.AF_UNIX) as wire:
        wire.setblocking(False)
        wire.connect_ex(sys.argv[1])
"""
ANSWERS = 3


def test_root_is_answered_while_others_fill_the_queue() -> None:
    with record_of_the_world() as record, tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        Path(folder).chmod(0o755)
        control, own = Path(folder) / "control.sock", Path(folder) / "root.sock"
        server = ControlServer(FakeOffice(record), "", listen(control, {}), listen_for_root(own))
        server.start()
        argv = [sys.executable, "-S", "-c", FLOOD, str(control), str(os.getpid())]
        crowd = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(3)]
        try:
            for one in crowd:
                assert one.stdout is not None
                assert one.stdout.readline() == b"begun\n"
            for _ in range(ANSWERS):
                with Client(own) as client:
                    assert client.get("/v1/status")["you"]["admin"]
            words = ["--socket", str(control), "--json", "status"]
            argv = [sys.executable, "-c", "from burstd.cli.main import main; main()", *words]
            said = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert (said.returncode, json.loads(said.stdout)["you"]["admin"]) == (0, True), said.stderr
            assert all(one.poll() is None for one in crowd)
        finally:
            for one in crowd:
                one.kill()
                one.wait()
            server.stop()


def test_nobody_else_connects_to_it(tmp_path: Path) -> None:
    with listen_for_root(tmp_path / "root.sock"):
        assert (tmp_path / "root.sock").stat().st_mode & 0o777 == 0o600
