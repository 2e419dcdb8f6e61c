"""burstctl job shell, as a process of its own: by srun where it works, else through burstd."""

from __future__ import annotations

import getpass
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.api.auth import Authorizer
from burstd.api.job_connections.server import JobConnectionServer
from burstd.api.job_connections.shells import ShellService
from burstd.cli.session import ExitCode
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.test_job_shells import NUMBER, Node
from tests.api.world import JOBS, SLURM, SNAPSHOT

from .test_process import BURSTCTL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user"),
]
SRUN = """#!/bin/sh
echo "$@" >>"{calls}"
case "$*" in *--quiet*) {trial};; esac
echo "srun: $* $SLURM_JOB_ID"
exit 9
"""


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def server(control: Path, backend: FakeBackend, node: Node) -> Iterator[JobConnectionServer]:
    service = ShellService(backend, node.open_shell, node.read_facts)
    serving = JobConnectionServer(
        control.with_name("jobs.sock"), backend, Authorizer(""), {"shell": service}, check_interval_s=0.05
    )
    serving.start()
    yield serving
    serving.close()


def start(control: Path, *words: str, path: Path | None = None, terminal: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BURSTCTL, "job", "shell", *words], text=True, stdin=terminal or subprocess.DEVNULL,
        stdout=terminal or subprocess.PIPE, stderr=subprocess.PIPE,
        env={
            **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "BURSTD_SOCKET": str(control), "TERM": "xterm",
            "PATH": f"{path}:/usr/bin:/bin" if path else "/usr/bin:/bin", "SLURM_JOB_ID": "1", "SHELL": "/bin/bash",
        },
    )  # fmt: skip


def fake_srun(folder: Path, trial: str) -> Path:
    srun = folder / "srun"
    srun.write_text(SRUN.format(calls=folder / "calls", trial=trial), encoding="utf-8")
    srun.chmod(0o755)
    return folder / "calls"


def run(control: Path, *words: str, path: Path | None = None) -> tuple[int, str, str]:
    process = start(control, *words, path=path)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_srun_enters_the_job_where_it_can(
    control: Path, server: JobConnectionServer, node: Node, tmp_path: Path
) -> None:
    assert node.facts is not None
    node.facts = replace(node.facts, user=getpass.getuser())
    calls, to = fake_srun(tmp_path, "exit 0"), f"--jobid={NUMBER} --overlap --nodes=1 --ntasks=1 --nodelist=gpu1"
    # Nothing of the job in which burstctl runs gets there.
    assert run(control, "101", "--", "ls", "-l", path=tmp_path) == (9, f"srun: {to} ls -l \n", "")
    assert calls.read_text().splitlines() == [f"{to} --quiet true", f"{to} ls -l"]
    assert run(control, "101", path=tmp_path)[1] == f"srun: {to} /bin/bash \n"


@pytest.mark.parametrize(
    ("trial", "why"),
    [
        ("exit 3", "exit status 3"),
        ("echo 'srun: error: Unable to create step' >&2; exit 1", "Unable to create step"),
        ("exec sleep 60", "no step began within 5 s; gpu1 may not reach this host's ports"),
    ],
)
def test_burstd_enters_the_node_where_srun_cannot(
    control: Path, server: JobConnectionServer, node: Node, tmp_path: Path, trial: str, why: str
) -> None:
    assert node.facts is not None
    node.facts = replace(node.facts, user=getpass.getuser())
    fake_srun(tmp_path, trial)
    code, out, err = run(control, "101", "--", "sh", "-c", "id -un; exit 7", path=tmp_path)
    assert (code, out) == (7, "nobody\n")
    assert err.startswith(f"burstctl: srun cannot enter the job ({why}): burstd enters its node.")


def test_whoever_wants_srun_alone_is_told_why_it_fails(
    control: Path, server: JobConnectionServer, node: Node, tmp_path: Path
) -> None:
    assert node.facts is not None
    assert run(control, "--via", "srun", "101", "id") == (
        ExitCode.NEGATIVE, "", "burstctl: srun cannot enter job 101: it is not installed here.\n",
    )  # fmt: skip
    fake_srun(tmp_path, "exit 0")
    told = run(control, "--via", "srun", "101", "id", path=tmp_path)[2]
    assert told == f"burstctl: srun cannot enter job 101: the job is {node.facts.user}'s.\n"


def test_every_key_reaches_the_node_and_the_terminal_is_as_before(
    control: Path, server: JobConnectionServer, backend: FakeBackend
) -> None:
    ours, theirs = pty.openpty()
    process = start(control, "--via", "node", "101", "--", "sh", "-c", 'trap "echo int; exit 4" INT; echo $TERM; cat',
                    terminal=theirs)  # fmt: skip
    try:
        expect(ours, b"xterm\r\n")
        # A paste that is longer than what terminals keep: neither side waits for the other for ever.
        for n in range(100):
            os.write(ours, b"x" * 1000 + b" %d\n" % n)
            expect(ours, b" %d\r\n" % n)
        os.write(ours, b"\x03")
        expect(ours, b"int\r\n")
        assert process.wait(20) == 4
        os.write(theirs, b"a\nb")
        expect(ours, b"a\r\nb")
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


def expect(terminal: int, text: bytes) -> None:
    shown, deadline = b"", time.monotonic() + 20
    while text not in shown:
        assert select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0], (text, shown[-2000:])
        shown += os.read(terminal, 1 << 16)


def test_the_jobs_end_and_burstds_end_it(control: Path, server: JobConnectionServer, backend: FakeBackend) -> None:
    words = ("--via", "node", "101", "--", "sh", "-c", "echo in; exec sleep 100")
    first = start(control, *words)
    assert first.stdout is not None
    assert first.stdout.readline() == "in\n"
    backend.loop = (replace(SNAPSHOT, slurm=replace(SLURM, jobs=JOBS[1:])), PLAN)
    assert first.communicate(timeout=20)[1] == "burstctl: Job 101 does not run any more.\n"
    assert first.returncode == ExitCode.NEGATIVE
    backend.loop = (SNAPSHOT, PLAN)
    second = start(control, *words)
    assert second.stdout is not None
    assert second.stdout.readline() == "in\n"
    server.close()
    assert second.communicate(timeout=20)[1] == "burstctl: Burstd is stopping.\n"
    assert second.returncode == ExitCode.NEGATIVE
