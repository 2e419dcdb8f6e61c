"""burstctl wait: what it says, when it ends, and its exit code."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.api.auth import Authorizer
from burstd.api.job_connections.ends import WaitService
from burstd.api.job_connections.server import JobConnection, JobConnectionServer
from burstd.cli.commands.wait import exit_code
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.slurm.commands.accounting import AccountedJob, read_accounted_jobs
from burstd.slurm.commands.job_facts import JobFacts
from burstd.slurm.commands.run import SlurmCommands
from tests.api.fake_backend import PLAN, FakeBackend
from tests.api.world import JOBS, NOW, OTHER_USER, SLURM, SNAPSHOT, USER, job
from tests.security.fuzz import fuzzed

from .conftest import NOBODY, Run, as_user

Looks = Callable[..., None]
SWEEP = JOBS[3]


def view(jobs: Sequence[Job] = (), ended: Sequence[Job] = ()) -> SlurmView:
    return replace(SLURM, jobs=(JOBS[2], *jobs), ended=tuple(ended))


def over(job_id: str, state: JobState = JobState.COMPLETED, code: str = "0:0", **fields: Any) -> Job:
    return job(job_id, USER, state, exit_code=code, end=1.0, **fields)


class Slurm:
    """What slurmctld and slurmdbd say of jobs that are not in the queue."""

    def __init__(self) -> None:
        self.parts: list[JobFacts] = []
        self.accounted: list[AccountedJob] | None = None

    def read_parts(self, _: str) -> Sequence[JobFacts]:
        return self.parts

    def read_accounting(self, _: str) -> Sequence[AccountedJob]:
        if self.accounted is None:
            raise SchedulerRefused("Slurm accounting storage is disabled")
        return self.accounted


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def looks(control: Path, backend: FakeBackend, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    """The queue at each look of a client, in turn."""
    service = WaitService(backend, slurm.read_parts, slurm.read_accounting)
    server = JobConnectionServer(control.with_name("jobs.sock"), backend, Authorizer(""), {"wait": service})

    def set_looks(*views: SlurmView | Unavailable) -> None:
        left = iter(views)

        def show_next_view(_: JobConnection, seconds: float) -> None:
            assert seconds > 0
            backend.loop = (replace(SNAPSHOT, slurm=next(left)), PLAN)

        show_next_view(None, 1.0)  # type: ignore[arg-type]
        monkeypatch.setattr(JobConnection, "pause", show_next_view)

    server.start()
    yield set_looks
    server.close()


def test_it_says_what_a_job_waits_for_and_how_it_ended(run: Run, looks: Looks) -> None:
    waits, runs = job("105", USER, reason="JobHeldUser"), job("105", USER, JobState.RUNNING, node_list=("op1",))
    looks(
        view([waits]), view([waits]), Unavailable("slurmctld is away", NOW), view([runs]), view([runs]),
        view(ended=[over("105", JobState.FAILED, "7:0")]),
    )  # fmt: skip
    outcome = run("wait", "105")
    assert outcome.out.splitlines() == [
        "Job 105: waits: held by its user (Slurm: JobHeldUser)",
        "Job 105: Slurm cannot be read: slurmctld is away",
        "Job 105: running on op1",
        "Job 105 has ended: FAILED, exit code 7:0",
    ]
    assert (outcome.code, outcome.err) == (7, "")


def test_start_is_enough(run: Run, looks: Looks) -> None:
    runs = job("104_2", USER, JobState.RUNNING, node_list=("op1",), array_job_id="104")
    looks(view([SWEEP]), view([replace(SWEEP, array_tasks="1,3", tasks=2), runs]))
    first, started = run("wait", "104", "--start").out.splitlines()
    assert first.startswith("Job 104: 0 run, 3 wait; ")
    assert started == "Job 104 runs"
    looks(view([SWEEP]), view(ended=[over("104_2", JobState.CANCELLED, array_job_id="104")]))
    assert run("wait", "104_2", "--start", "--json").code == 1


def test_the_highest_exit_code_of_an_array_counts_also_of_tasks_that_slurm_forgot(
    run: Run, looks: Looks, slurm: Slurm
) -> None:
    last = job("104_3", USER, JobState.RUNNING, node_list=("op1",), array_job_id="104")
    rest = over("104", JobState.FAILED, "9:0", array_job_id="104", array_tasks="3")  # a row of before it was a task
    looks(view([last], [over("104_2", code="3:0", array_job_id="104"), rest]), view())
    slurm.accounted = [
        AccountedJob("104_1", USER, "COMPLETED", "5:0"), AccountedJob("104_3", USER, "COMPLETED", "0:0"),
    ]  # fmt: skip
    outcome = run("wait", "104", "--json")
    assert outcome.code == 5
    assert [one["exit_code"] for one in json.loads(outcome.out.splitlines()[-1])["ended"]] == ["5:0", "3:0", "0:0"]


def test_why_a_job_did_not_start_is_waited_for(run: Run, looks: Looks, slurm: Slurm) -> None:
    failed = over("700", JobState.FAILED, "0:53", node_list=("gpu1",))
    looks(view(ended=[failed]))
    outcome = run("wait", "700")
    assert (outcome.code, outcome.out) == (
        1, "Job 700 has ended: FAILED, exit code 0:53: its launch on gpu1 failed: x\n"
    )  # fmt: skip
    slurm.accounted = [AccountedJob("701", USER, "FAILED", "0:53")]
    looks(view(ended=[replace(failed, id="701")]), view())
    assert run("wait", "701").out == (
        "Job 701 has ended: FAILED, exit code 0:53: it did not start, as slurmd's log of its node says\n"
    )


def test_a_job_that_has_left_the_queue_is_looked_up(run: Run, looks: Looks, slurm: Slurm) -> None:
    looks(view())
    outcome = run("wait", "90")
    assert (outcome.code, outcome.err) == (5, "burstctl: Neither Slurm nor its accounting knows a job 90.\n")
    slurm.accounted = [AccountedJob("90", USER, "TIMEOUT", "0:0")]
    looks(view())
    assert run("wait", "90").out == "Job 90 has ended: TIMEOUT, exit code 0:0\n"
    slurm.accounted[0] = replace(slurm.accounted[0], state="FAILED", exit_code="0:53")
    looks(view())
    outcome = run("wait", "90")
    assert (outcome.code, outcome.out) == (
        1, "Job 90 has ended: FAILED, exit code 0:53: it did not start, as slurmd's log of its node says\n"
    )  # fmt: skip
    slurm.accounted[0] = replace(slurm.accounted[0], user=OTHER_USER)
    looks(view())
    with as_user(NOBODY):
        assert run("wait", "90").code == 4
        assert run("wait", "103").code == 4


def test_it_gives_up_in_time(run: Run, looks: Looks) -> None:
    looks(*[view([SWEEP])] * 1000)
    outcome = run("wait", "104", "--timeout", "0s")
    assert (outcome.code, outcome.err) == (124, "burstctl: have not ended in time: 104.\n")
    assert run("wait", "104", "--timeout", "soon").code == 2


def test_it_goes_on_when_burstd_is_started_again(
    run: Run, looks: Looks, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks(view([SWEEP]), view([SWEEP]), view(ended=[over("104_2", array_job_id="104")]))
    socket, away = control.with_name("jobs.sock"), control.with_name("away.sock")
    pause = JobConnection.pause

    def hang_up(connection: JobConnection, seconds: float) -> None:
        monkeypatch.setattr(JobConnection, "pause", pause)
        socket.rename(away)
        connection.socket.shutdown(2)
        pause(connection, seconds)

    monkeypatch.setattr(JobConnection, "pause", hang_up)
    monkeypatch.setattr("burstd.cli.commands.wait.time.sleep", lambda _: away.exists() and away.rename(socket))
    outcome = run("wait", "104_2")
    assert (outcome.code, outcome.out.count("Job 104_2: ")) == (0, 1)
    assert outcome.err == "burstctl: burstd hung up; burstctl goes on when it runs again.\n"


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        ("COMPLETED", "0:0", 0), ("FAILED", "7:0", 7), ("FAILED", "0:9", 1), ("TIMEOUT", "0:0", 1),
        ("CANCELLED", "0:15", 1), ("COMPLETED", "", 0), ("NODE_FAIL", "1:0", 1),
    ],
)  # fmt: skip
def test_exit_codes_are_those_of_sbatch(state: str, status: str, code: int) -> None:
    assert exit_code(state, status) == code


def test_what_sacct_prints() -> None:
    printed = "123_1|ada|COMPLETED|0:0\n123_[2-3]|ada|CANCELLED by 1000|0:0\n"
    commands = SlurmCommands(lambda argv, *_: _done(argv, printed))
    assert read_accounted_jobs(commands, "123") == [
        AccountedJob("123_1", "ada", "COMPLETED", "0:0"), AccountedJob("123_[2-3]", "ada", "CANCELLED", "0:0"),
    ]  # fmt: skip
    assert read_accounted_jobs(commands, "123; reboot") == []
    with pytest.raises(SchedulerUnavailable, match="sacct does not tell of job 9 as expected"):
        read_accounted_jobs(SlurmCommands(lambda argv, *_: _done(argv, "what\n")), "9")


@fuzzed
@given(st.text(max_size=200))
def test_fuzz_what_sacct_prints(text: str) -> None:
    with contextlib.suppress(SchedulerUnavailable):
        for one in read_accounted_jobs(SlurmCommands(lambda argv, *_: _done(argv, text)), "1"):
            assert exit_code(one.state, one.exit_code) >= 0


def _done(argv: Sequence[str], printed: str) -> Any:
    assert argv[0] == "sacct"
    return subprocess.CompletedProcess(argv, 0, printed, "")
