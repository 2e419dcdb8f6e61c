"""Machines whose GPUs have a fault: what becomes of their jobs, with burstd alive, dead, and killed on the way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.claim import Claim, ClaimState
from burstd.planner.demand.requeued_jobs import interruptions_over_limit
from burstd.planner.offers.offers import breaker_key
from tests.crash.test_directed import COMPLETED, PENDING, RUNNING, ends_well, running
from tests.crash.test_spot import CONF, JOB, _last_snapshot
from tests.crash.world import World
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

AT = "2027-01-15T08:00:00Z"
SICK = f"burstd: unhealthy, Xid 79 on GPU 0000:2b:00.0 at {AT}, jobs are requeued"
FULL = f"burstd: unusable, /var is full at {AT}, jobs end first"
ILL = f"burstd: unhealthy, Xid 48 on GPU 0000:2b:00.0 at {AT}, jobs end first"


@pytest.fixture(params=["sandbox", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    """A site that may use spot machines."""
    return World(tmp_path, template=template, alpha=request.param, spot=True, conf=CONF)


def cut_runs(w: World, job: str) -> list[tuple[str, str, int]]:
    events = w.store.events(subject=f"job:{job}")
    return [(e.new, e.cause, e.data["run"]) for e in events if e.new in ("interrupted", "requeued")]


def fall_ill(w: World, claim: Claim, fault: str = SICK) -> None:
    w.machines.fall_ill(claim.address, fault)


def ended_for_it(w: World, claim: Claim, error: str = "health") -> bool:
    now = w.store.claim(claim.id)
    return now.state is ClaimState.GONE and now.error == error


def test_the_job_begins_anew_on_another_machine_and_it_is_no_fault_of_the_cloud(world: World) -> None:
    job = world.slurm.submit(JOB)
    first = running(world, job)
    fall_ill(world, first)
    world.run_until(lambda: world.states(job) == [PENDING], 15)
    second = running(world, job, 60)
    assert second.slot != first.slot
    world.run_until(lambda: ended_for_it(world, first), 90)
    for _ in range(2):
        assert cut_runs(world, job) == [("requeued", "health", 0)]
        world.run_until(lambda: _last_snapshot(world).interruptions == {job: frozenset({0})}, 30)
        assert interruptions_over_limit(_last_snapshot(world), [job], 1) == 0
        world.kill()
        world.start()
    opened = [e for e in world.store.events(subject=f"breaker:{breaker_key(first.offer, 'health')}") if e.new == "open"]
    assert [(e.cause, e.reason) for e in opened] == [("health", f"its machine is {SICK.removeprefix('burstd: ')}")]
    ends_well(world, job)


@pytest.mark.parametrize(("fault", "error"), [(ILL, "health"), (FULL, "")])
def test_a_mild_fault_lets_the_job_end(world: World, fault: str, error: str) -> None:
    """A full disk is held against no offer."""
    job = world.slurm.submit(replace(JOB, run_s=60))
    claim = running(world, job)
    fall_ill(world, claim, fault)
    world.run_until(lambda: "DRAIN" in world.slurm.node(claim.slot).flags, 15)
    other = world.slurm.submit(JobSpec(run_s=30))
    world.run_until(lambda: world.states(other) == [RUNNING], 60)
    assert world.slurm.job(other).nodes != (claim.slot,)
    world.run_until(lambda: world.states(job) == [COMPLETED], 90)
    world.run_until(lambda: ended_for_it(world, claim, error), 90)
    opened = world.store.events(subject=f"breaker:{breaker_key(claim.offer, 'health')}")
    assert bool(opened) is bool(error)
    assert (world.slurm.job(job).restarts, cut_runs(world, job)) == (0, [])
    ends_well(world, job, other)


def test_a_node_drains_itself_while_burstd_is_dead(world: World) -> None:
    job = world.slurm.submit(JOB)
    claim = running(world, job)
    world.kill()
    fall_ill(world, claim)
    world.clock.advance(10)
    assert world.slurm.node(claim.slot).reason == SICK
    world.start()
    world.run_until(lambda: world.states(job) == [PENDING], 10)
    ends_well(world, job)


@pytest.mark.parametrize("places", range(1, 60, 8))
def test_whatever_dies_on_the_way_the_run_counts_once(tmp_path: Path, template: Path, places: int) -> None:
    w = World(tmp_path, template=template, alpha="sim", spot=True, conf=CONF)
    job = w.slurm.submit(JOB)
    claim = running(w, job)
    fall_ill(w, claim)
    w.crash_points.arm(places)
    w.run(8)
    w.run(10)
    w.crash_points.disarm()
    w.start()
    w.run_until(lambda: w.slurm.job(job).restarts == 1 and w.states(job) == [RUNNING], 300)
    assert cut_runs(w, job) == [("requeued", "health", 0)]
    w.run_until(lambda: ended_for_it(w, claim), 90)
    ends_well(w, job)
