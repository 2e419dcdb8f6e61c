"""ResumeProgram and its companions: from Slurm's call to burstd's ear, whether burstd is up or down."""

from __future__ import annotations

import json
import os
import queue
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.slurm.hooks import power_client
from burstd.slurm.hooks.power_server import PowerCall, PowerServer, PowerSocketFailed

CLIENT = Path(power_client.__file__)


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The environment that tells the client where burstd listens and where it spools."""
    (tmp_path / "spool").mkdir()
    return {"BURSTD_POWER_SOCKET": str(tmp_path / "s"), "BURSTD_POWER_SPOOL": str(tmp_path / "spool")}


@pytest.fixture
def heard() -> queue.Queue[PowerCall]:
    return queue.Queue()


@pytest.fixture
def server(places: dict[str, str], heard: queue.Queue[PowerCall]) -> Iterator[PowerServer]:
    found = PowerServer(Path(places["BURSTD_POWER_SOCKET"]), Path(places["BURSTD_POWER_SPOOL"]), heard.put, frozenset())
    yield found
    found.stop()


def call(places: dict[str, str], *words: str, name: str = "", **more: str) -> float:
    """Runs the program as slurmctld does, with next to no environment; the seconds it took."""
    program = str(CLIENT)
    if name:
        link = Path(places["BURSTD_POWER_SPOOL"]).parent / name
        if not link.exists():
            link.symlink_to(CLIENT)
        program = str(link)
    before = time.monotonic()
    argv = [sys.executable, "-S", "-E", program, *words]
    done = subprocess.run(argv, env={**places, **more}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return time.monotonic() - before


def test_a_call_is_handed_over(
    server: PowerServer, places: dict[str, str], heard: queue.Queue[PowerCall], tmp_path: Path
) -> None:
    server.start()
    jobs = {"all_nodes_resume": "cl[1-2]", "jobs": [{"job_id": 7, "nodes_resume": "cl[1-2]"}]}
    (tmp_path / "resume.json").write_text(json.dumps(jobs), encoding="utf-8")
    before = time.time()
    call(places, "resume", "cl[1-2]", SLURM_RESUME_FILE=str(tmp_path / "resume.json"))
    call(places, "cl3", name="burstd-suspend")
    call(places, "cl4", name="burstd-resumefail")
    call(places, "cl5", name="burstd-resume")
    found = [heard.get(timeout=5) for _ in range(4)]
    assert [(c.kind, c.nodes) for c in found] == [
        ("resume", "cl[1-2]"), ("suspend", "cl3"), ("resumefail", "cl4"), ("resume", "cl5"),
    ]  # fmt: skip
    assert found[0].resume_file == jobs
    assert found[1].resume_file is None
    assert all(before <= c.time <= time.time() for c in found)
    assert list(Path(places["BURSTD_POWER_SPOOL"]).iterdir()) == []


def test_calls_while_burstd_is_down_are_read_when_it_is_up(
    server: PowerServer, places: dict[str, str], heard: queue.Queue[PowerCall]
) -> None:
    spool = Path(places["BURSTD_POWER_SPOOL"])
    for number in range(3):
        call(places, "suspend", f"cl{number}")
    left = sorted(spool.iterdir())
    assert len(left) == 3
    assert all(stat.S_IMODE(f.stat().st_mode) == 0o600 for f in left)
    (spool / "00-broken.json").write_text("{", encoding="utf-8")
    (spool / ".unfinished").write_text("", encoding="utf-8")
    server.start()
    assert [heard.get(timeout=5).nodes for _ in range(3)] == ["cl0", "cl1", "cl2"]
    assert [f.name for f in spool.iterdir()] == [".unfinished"]
    server.stop()
    call(places, "suspend", "cl9")
    assert len(list(spool.glob("*.json"))) == 1


@pytest.mark.slow
def test_a_call_that_burstd_does_not_answer_is_spooled(places: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(places["BURSTD_POWER_SOCKET"])
        deaf.listen(1)
        assert call(places, "resume", "cl1") < 10
    (left,) = Path(places["BURSTD_POWER_SPOOL"]).glob("*.json")
    assert json.loads(left.read_text(encoding="utf-8"))["nodes"] == "cl1"


def test_it_never_fails_slurmctld(places: dict[str, str], tmp_path: Path) -> None:
    nowhere = {**places, "BURSTD_POWER_SPOOL": str(tmp_path / "none")}
    call(nowhere, "resume", "cl1")
    call(places)
    call(places, "dance", "cl1")
    call(places, "resume", "cl1", SLURM_RESUME_FILE="/nonexistent")
    assert len(list(Path(places["BURSTD_POWER_SPOOL"]).glob("*.json"))) == 1


def test_settings_come_from_the_environment_then_the_file(tmp_path: Path) -> None:
    file = tmp_path / "power.conf"
    file.write_text("# where burstd is\nsocket = /run/x.sock\nother=1\n", encoding="utf-8")
    assert power_client.socket_and_spool({}, str(file)) == ("/run/x.sock", power_client.SPOOL)
    assert power_client.socket_and_spool({"BURSTD_POWER_SOCKET": "/e"}, str(file)) == ("/e", power_client.SPOOL)
    assert power_client.socket_and_spool({}, str(tmp_path / "none")) == (power_client.SOCKET, power_client.SPOOL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can call as somebody else")
def test_a_stranger_is_not_heard(server: PowerServer, places: dict[str, str], heard: queue.Queue[PowerCall]) -> None:
    server.start()
    path = places["BURSTD_POWER_SOCKET"]
    for folder in list(Path(path).parents)[:3]:
        folder.chmod(0o755)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            os.setuid(65534)
            code = power_client.send_power_call(path, b'{"kind": "resume", "nodes": "cl1", "time": 1}\n')
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert heard.empty()


def test_a_place_that_cannot_be_is_named(tmp_path: Path, heard: queue.Queue[PowerCall]) -> None:
    server = PowerServer(tmp_path / "none" / "s", tmp_path, heard.put, frozenset())
    with pytest.raises(PowerSocketFailed, match="none/s"):
        server.start()
