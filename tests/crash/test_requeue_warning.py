"""Jobs that are told before they are requeued for other projects, with burstd killed at any moment meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.plan import JobRun, WarnJobs
from tests.crash.faults import Crash
from tests.crash.test_directed import COMPLETED, PENDING, RUNNING
from tests.crash.world import SLURM, World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

CONF = replace(SLURM, requeue_delay_s=121.0)
GRACE_S = 30.0
STEADY = JobSpec(run_s=100)
ENDS = JobSpec(run_s=100, ends_on_sigterm=True)


@contextmanager
def running_job(template: Path, spec: JobSpec) -> Iterator[tuple[World, str]]:
    with memory_folder() as folder:
        world = World(folder, template=template, alpha="sim", conf=CONF)
        job = world.slurm.submit(spec)
        world.run_until(lambda: world.states(job) == [RUNNING], 120)
        yield world, job
        world.kill()


def warn(w: World, job: str) -> None:
    """As the plan of a decision has it; burstd may die of it."""
    assert w.reconciler is not None
    run = JobRun(job, (job,), 0, "b asks", "reclaim")
    try:
        w.reconciler._executor.slurm.apply(WarnJobs((run,), w.clock.now() + GRACE_S, takes_checkpoint=False))
    except Crash:
        w.kill()


def events(w: World, job: str) -> list[str]:
    found = w.store.events(subject=f"job:{job}")
    return [e.new for e in found if e.new in ("warned", "requeued", "not requeued")]


def test_it_is_told_once_and_requeued_when_its_time_is_over(template: Path) -> None:
    with running_job(template, STEADY) as (w, job):
        for _ in range(2):
            warn(w, job)
        w.run(GRACE_S - 5)
        assert (w.states(job), w.slurm.job(job).warned) == ([RUNNING], 1)
        w.kill()
        w.start()
        w.run_until(lambda: w.slurm.job(job).restarts == 1, 10)
        assert events(w, job) == ["warned", "requeued"]
        w.run_until(lambda: w.states(job) == [COMPLETED], 600)
        assert (w.slurm.job(job).restarts, w.slurm.job(job).warned) == (1, 1)
        assert w.store.metadata("warned") == ""


@pytest.mark.parametrize("down_s", [0.0, 60.0], ids=["at once", "burstd is down meanwhile"])
def test_one_that_ends_of_the_signal_begins_anew(template: Path, down_s: float) -> None:
    with running_job(template, ENDS) as (w, job):
        warn(w, job)
        if down_s:
            w.kill()
            w.run(down_s)
            assert w.slurm.ended[-1].id == job
            w.start()
        w.run_until(lambda: w.states(job) == [PENDING], 30)
        w.run_until(lambda: w.states(job) == [COMPLETED], 600)
        assert (w.slurm.job(job).restarts, events(w, job)) == (1, ["warned", "requeued"])


def test_one_that_is_cancelled_in_its_grace_does_not(template: Path) -> None:
    with running_job(template, STEADY) as (w, job):
        warn(w, job)
        w.slurm.cancel(job)
        w.run(GRACE_S * 2)
        assert (w.slurm.job(job).restarts, w.slurm.job(job).state.value) == (0, "CANCELLED")
        assert events(w, job) == ["warned", "requeued", "not requeued"]
        assert w.store.metadata("warned") == ""


def places(template: Path, spec: JobSpec) -> list[int]:
    """Where burstd can die in what it does to warn and to requeue."""
    with running_job(template, spec) as (w, job):
        with w.recorded_places():
            warn(w, job)
            w.run(GRACE_S + 15)
        return w.crash_points.distinct_places("batch", "set_metadata", "warn_jobs", "requeue")


@pytest.mark.parametrize("spec", [STEADY, ENDS], ids=["goes on", "ends of the signal"])
def test_killed_anywhere_it_is_requeued_once_and_never_lost(template: Path, spec: JobSpec) -> None:
    found = places(template, spec)
    assert len(found) > 8
    for place in found:
        with running_job(template, spec) as (w, job):
            w.crash_points.arm(place)
            warn(w, job)
            w.run(GRACE_S + 15)
            assert w.reconciler is None, place
            where = w.crash_points.passed[-1]
            w.start()
            if not (w.store.metadata("warned") or w.slurm.job(job).warned or w.slurm.job(job).restarts):
                # It was not written down that it goes: whoever asks still has it told again.
                warn(w, job)
            w.run_until(lambda job=job, w=w: w.slurm.job(job).restarts == 1, 60)  # type: ignore[misc]
            w.run_until(lambda job=job, w=w: w.states(job) == [COMPLETED], 300)  # type: ignore[misc]
            assert (w.slurm.job(job).restarts, w.slurm.job(job).warned <= 1) == (1, True), where
