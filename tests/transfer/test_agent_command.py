"""A command in a running job: with the job's user, environment, directory and output, and for a limited time."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, AgentAnsweredError, AgentRig

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
JOB = "41000017"


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    return AgentRig(tmp_path / "node")


@contextmanager
def job(rig: AgentRig) -> Iterator[Path]:
    """A job at work in a directory of its own; its output file."""
    folder = rig.top / "work"
    folder.mkdir()
    os.chown(folder, ADA, ADA)
    with (folder / "out").open("ab") as output:
        os.chown(folder / "out", ADA, ADA)
        output.write(b"the job's own\n")
        output.flush()
        process = subprocess.Popen(
            ["sh", "-c", "umask 027; echo; exec sleep 1000"], user=ADA, group=ADA, extra_groups=[], cwd=folder,
            stdout=output, env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "BURST_OUT": "/x y"},
        )  # fmt: skip
    try:
        while b"\n\n" not in (folder / "out").read_bytes():
            assert process.poll() is None
        yield folder / "out"
    finally:
        process.kill()
        process.wait()


def run(rig: AgentRig, command: str, limit_s: float = 30.0) -> dict[str, Any]:
    return rig.run(rig.delivery_request(JOB) | {"do": "command", "command": command, "limit_s": limit_s})


def test_it_runs_as_a_part_of_the_job(rig: AgentRig) -> None:
    with job(rig) as output:
        done = run(rig, 'echo "$(id -u) $BURST_OUT $(pwd) $(umask)"; echo two >&2; touch made; exit 7')
        assert done["exit_code"] == 7
        assert output.read_text().splitlines()[2:] == [f"{ADA} /x y {output.parent} 0027", "two"]
        assert (output.parent / "made").stat().st_uid == ADA
        assert run(rig, "kill -TERM $$")["exit_code"] == 128 + 15


def test_its_time_is_limited(rig: AgentRig) -> None:
    with job(rig) as output:
        assert run(rig, "sleep 1000 & echo $!; wait", 0.5)["exit_code"] is None
        child = Path("/proc") / output.read_text().split()[-1]
        assert not child.exists() or (child / "stat").read_text().split()[2] == "Z", "with all that it has started"


@pytest.mark.parametrize("output", ["pipe", "full pipe", "socket", "closed"])
def test_an_output_that_cannot_be_written_delays_nothing(rig: AgentRig, output: str) -> None:
    """Nobody reads the job's pipe, or nobody reads on, or there is no output to open."""
    with other_job(rig, output) as folder:
        assert run(rig, "echo >made", 60.0)["exit_code"] == 0
        assert (folder / "made").exists()
        done = run(rig, "echo; echo again >&2", 0.5)
        assert done["exit_code"] == (None if output == "full pipe" else 0), "its limit holds"


@pytest.mark.parametrize("home", ["there", "gone"])
def test_a_working_directory_that_is_gone(rig: AgentRig, home: str) -> None:
    with other_job(rig, "closed", HOME=str(rig.top / home)) as folder:
        (rig.top / "there").mkdir(mode=0o755)
        folder.rmdir()
        expected = rig.top / "there" if home == "there" else Path("/")
        assert run(rig, f'test "$(pwd)" = {expected}')["exit_code"] == 0


@contextmanager
def other_job(rig: AgentRig, output: str, **env: str) -> Iterator[Path]:
    """A job at work in a directory, with no file for its output."""
    folder, pipe = rig.top / "work", rig.top / "pipe"
    folder.mkdir()
    os.chown(folder, ADA, ADA)
    os.mkfifo(pipe)
    os.chown(pipe, ADA, ADA)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    near, far = socket.socketpair()
    stdout = far.detach() if output == "socket" else os.open(pipe, os.O_WRONLY)
    if output == "full pipe":
        os.set_blocking(stdout, False)
        with suppress(BlockingIOError):
            while True:
                os.write(stdout, b"x")
    shell = f"{'exec >&-; ' if output == 'closed' else ''}cd {folder}; exec sleep 1000"
    process = subprocess.Popen(
        ["sh", "-c", shell], user=ADA, group=ADA, extra_groups=[], stdout=stdout,
        env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, **env},
    )  # fmt: skip
    os.close(stdout)
    if output != "full pipe":
        os.close(reader)
    try:
        while Path(f"/proc/{process.pid}/exe").resolve().name != "sleep":
            assert process.poll() is None
        yield folder
    finally:
        process.kill()
        process.wait()
        near.close()


def test_a_job_that_is_not_there(rig: AgentRig) -> None:
    with pytest.raises(AgentAnsweredError, match=f"job {JOB} has no process on the node"):
        run(rig, "true")
