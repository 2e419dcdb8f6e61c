"""Jobs that do not use their GPUs, with burstd killed at any moment while it warns and ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.domain.claim import Claim
from burstd.domain.idle_gpus import IdleAct, IdleGpuRule
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner.lifecycle.spot_notices import INTERRUPTED
from burstd.reconciler.machines.idle_gpus import CAUSE, EVENTS, KEY, REFUSED, WARNED
from burstd.reconciler.machines.interruptions import REQUEUED
from tests.crash.test_directed import RUNNING
from tests.crash.world import TUNING, World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

WARN_S, ACT_S, LEFT_S = 60.0, 120.0, 300.0
JOB = JobSpec(run_s=20_000, time_limit_s=36_000, gres_per_node=(Gres("gpu", "", 1),))
ACTS = [IdleAct.SHORTEN, IdleAct.REQUEUE, IdleAct.CANCEL]
CALLS = {
    IdleAct.SHORTEN: "limit_time",
    IdleAct.REQUEUE: "requeue_jobs",
    IdleAct.CANCEL: "cancel_running",
}


class IdleFigures:
    """Figures of now: the first run of each job does not use its GPU but at ``used_at``, the next one does."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.lost = False
        self.used_at = 0.0

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:  # noqa: ARG002  not asked for
        return float("inf")

    def awaited(self) -> frozenset[str]:
        return frozenset()

    def uses(self) -> Mapping[str, JobUse]:
        assert self.world is not None
        now = self.world.clock.now()
        return {
            job.id: JobUse(
                job.id, job.id, job.restarts, job.spec.user, "", "burst",
                (self._node(job.nodes[0], now - max(job.started, self.used_at if not job.restarts else now), now),),
                1, job.started, run_start=int(job.started),
            )
            for job in self.world.slurm.active
            if job.state is JobState.RUNNING and not self.lost
        }  # fmt: skip

    def _node(self, name: str, idle_s: float, now: float) -> NodeUse:
        gpu = GpuUse("GPU-1", 0, "V100", GpuShare.WHOLE, 0.0, 0.0, 5, 16_384, idle_s, idle_s, idle_s, now)
        return NodeUse(
            name, 1, 1, now - 3600, now, 1.0, 1.0, 1.0, 1, 1, 1, 0, gpus=(gpu,), gpu_price=Decimal(2), currency="EUR"
        )


@contextmanager
def running_job(template: Path, act: IdleAct, spec: JobSpec = JOB) -> Iterator[tuple[World, str, list[str]]]:
    """A job that runs and is not warned yet, and the calls to Slurm that concern it, with what they set."""
    rule = IdleGpuRule(WARN_S, act, ACT_S, 0.0, LEFT_S)
    figures = IdleFigures()
    with memory_folder() as folder:
        world = World(
            folder, template=template, alpha="sim", tuning=replace(TUNING, idle_gpus={"burst": rule}), job_use=figures
        )
        figures.world = world
        calls: list[str] = []
        for name in CALLS.values():
            _count(world, name, calls)
        world.kill()
        world.start()
        job = world.slurm.submit(spec)
        world.run_until(lambda: world.states(job) == [RUNNING], 120)
        yield world, job, calls
        world.kill()


def _count(world: World, name: str, calls: list[str]) -> None:
    call: Callable[..., None] = getattr(world.slurm, name)

    def counted(*args: object) -> None:
        calls.append(f"{name} {args[1:]}")
        call(*args)

    setattr(world.slurm, name, counted)


def warned(w: World, job: str) -> None:
    w.run_until(lambda: WARNED in events(w, job), WARN_S + 40)


def events(w: World, job: str) -> list[str]:
    found = [event for event in w.store.events(subject=f"job:{job}") if event.cause == CAUSE]
    assert {event.data["user"] for event in found} <= {JOB.user}, "its user may read them"
    return [event.new for event in found]


def is_done(w: World, job: str, act: IdleAct) -> bool:
    one = w.slurm.job(job)
    match act:
        case IdleAct.CANCEL:
            return one.state is JobState.CANCELLED
        case IdleAct.REQUEUE:
            return one.restarts == 1
        case _:
            return one.spec.time_limit_s < JOB.time_limit_s


@pytest.mark.parametrize("act", ACTS)
def test_it_is_warned_and_then_it_follows_once(template: Path, act: IdleAct) -> None:
    with running_job(template, act) as (w, job, calls):
        warned(w, job)
        started = w.slurm.job(job).started
        assert WARN_S <= w.clock.now() - started < WARN_S + 30
        assert not calls
        w.run_until(lambda: is_done(w, job, act), ACT_S)
        assert w.clock.now() - started >= ACT_S
        w.run(600 if act is not IdleAct.SHORTEN else 100)
        assert (events(w, job), len(calls)) == ([WARNED, EVENTS[act]], 1)
        assert w.store.runs_with_event([job], INTERRUPTED) == w.store.runs_with_event([job], REQUEUED) == {}
        if act is IdleAct.SHORTEN:
            w.run_until(lambda: w.slurm.job(job).state is JobState.TIMEOUT, LEFT_S + 60)
            w.run(60)
        else:
            assert is_done(w, job, act)
        assert w.store.metadata(KEY) == "", "nothing is remembered of a run that is over"


def test_figures_that_are_lost_between_the_warning_and_its_end_save_it(template: Path) -> None:
    with running_job(template, IdleAct.CANCEL) as (w, job, calls):
        warned(w, job)
        assert isinstance(w.job_use, IdleFigures)
        w.job_use.lost = True
        w.run(ACT_S * 3)
        assert (w.states(job), calls, w.store.metadata(KEY)) == ([RUNNING], [], "")


def test_one_that_used_its_gpu_while_burstd_was_down_is_warned_anew(template: Path) -> None:
    act = IdleAct.CANCEL
    with running_job(template, act) as (w, job, calls):
        warned(w, job)
        w.kill()
        w.run(20)
        assert isinstance(w.job_use, IdleFigures)
        w.job_use.used_at = w.clock.now()
        w.run(ACT_S + 20)
        w.start()
        back = w.clock.now()
        w.run_until(lambda: is_done(w, job, act), ACT_S)
        assert w.clock.now() - back >= ACT_S - WARN_S
        assert (events(w, job), len(calls)) == ([WARNED, WARNED, EVENTS[act]], 1)


def test_one_that_slurm_does_not_requeue_runs_on_and_is_not_asked_for_again(template: Path) -> None:
    """The row of the queue does not say that it may not be."""
    with running_job(template, IdleAct.REQUEUE, replace(JOB, requeue=False)) as (w, job, calls):
        w.run(600)
        assert (w.states(job), w.slurm.job(job).restarts, len(calls)) == ([RUNNING], 0, 1)
        assert events(w, job) == [WARNED, EVENTS[IdleAct.REQUEUE], REFUSED]


def test_what_cannot_be_written_down_is_not_done(template: Path) -> None:
    with running_job(template, IdleAct.CANCEL) as (w, job, calls):
        warned(w, job)
        w.disk.writes_left = 0
        w.run(ACT_S)
        assert w.disk.was_full
        assert (w.states(job), calls) == ([RUNNING], [])
        w.disk.writes_left = None
        w.run_until(lambda: is_done(w, job, IdleAct.CANCEL), ACT_S)
        w.run(20)
        assert (events(w, job), len(calls)) == ([WARNED, EVENTS[IdleAct.CANCEL]], 1)


def places(template: Path, act: IdleAct) -> list[int]:
    """Where burstd can die from the warning on, until all is done."""
    with running_job(template, act) as (w, job, _):
        w.run_until(lambda: w.clock.now() - w.slurm.job(job).started > WARN_S - 20, 120)
        with w.recorded_places():
            w.run_until(lambda: is_done(w, job, act), ACT_S + 60)
            w.run(20)
        return w.crash_points.distinct_places("batch", "set_metadata", CALLS[act])


@pytest.mark.parametrize("act", ACTS)
def test_killed_anywhere_it_follows_once(template: Path, act: IdleAct) -> None:
    found = places(template, act)
    assert len(found) >= 8
    for place in found:
        with running_job(template, act) as (w, job, calls):
            w.run_until(lambda job=job, w=w: w.clock.now() - w.slurm.job(job).started > WARN_S - 20, 120)  # type: ignore[misc]
            w.crash_points.arm(place)
            w.run(ACT_S + 60)
            assert w.reconciler is None, place
            where = w.crash_points.passed[-1]
            w.start()
            w.run_until(lambda job=job, w=w: is_done(w, job, act), ACT_S + 60)  # type: ignore[misc]
            w.run(60)
            said = events(w, job)
            assert said.count(EVENTS[act]) == 1, where
            assert said.index(WARNED) < said.index(EVENTS[act]), where
            assert len(set(calls)) == 1, where
            if act is not IdleAct.SHORTEN:
                assert len(calls) == 1, where
