"""B7, B8, B12: clouds and daemons that go wrong for minutes, in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from burstd.api.auth import Caller
from burstd.api.backend import DaemonInfo
from burstd.api.routers.status import status_view
from burstd.domain.billing.commitments import Commitments
from burstd.domain.claim import ClaimState as S
from burstd.domain.slurm.job import JobState
from tests.crash.clouds import SimKit
from tests.crash.world import World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash
RUNNING, COMPLETED = JobState.RUNNING, JobState.COMPLETED


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    with memory_folder(tmp_path) as folder:
        w = World(folder, template=template, alpha="sim")
        yield w
        w.kill()


def sim(w: World, name: str = "alpha") -> SimKit:
    kit = w.kits[name]
    assert isinstance(kit, SimKit)
    return kit


def ends_well(w: World, *jobs: str) -> None:
    w.heal()
    w.calm(2.0)
    assert [set(w.states(job)) for job in jobs] == [{COMPLETED}] * len(jobs)
    assert [w.slurm.job(job).restarts for job in jobs] == [0] * len(jobs)
    w.check_bill()


def alarm(w: World) -> str:
    assert w.reconciler is not None
    return w.reconciler.alarm


def test_b07_an_end_that_is_taken_and_not_carried_out_is_an_alarm_with_its_cost(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=20))
    world.run_until(lambda: world.states(job) == [COMPLETED], 120)
    sim(world).provider.faults.terminate_ignored = 10**6
    world.run_until(lambda: [c.state for c in world.claims()] == [S.TERMINATING], 200)
    claim = world.claims()[0]
    world.run(200)
    assert "which it was told to end" not in alarm(world)
    world.run(200)
    assert f"still lists instance {claim.instance_id} of {claim.slot}" in alarm(world)
    assert "it has cost 0.1" in alarm(world), "at 1.0/h for eight to eleven minutes"
    ends_well(world, job)
    assert alarm(world) == ""


def test_b07_a_machine_that_goes_on_running_after_its_end_was_taken_is_billed_until_it_is_gone(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=20))
    world.run_until(lambda: world.states(job) == [COMPLETED], 120)
    sim(world).provider.faults.terminate_ignored = 10**6
    world.run_until(lambda: [c.billed_until is not None for c in world.claims()] == [True], 200)
    (claim,) = world.claims()
    world.run(450)
    (later,) = world.claims()
    assert world.clock.now() - (later.billed_until or 0.0) < 120
    ends_well(world, job)
    assert world.store.claim(claim.id).cost(world.clock.now()) > claim.cost(world.clock.now()) + claim.offer.price / 12


def test_b07_such_a_machine_counts_in_the_cost_per_hour_and_against_budgets(world: World) -> None:
    job = world.slurm.submit(JobSpec(run_s=20))
    world.run_until(lambda: world.states(job) == [COMPLETED], 120)
    sim(world).provider.faults.terminate_ignored = 10**6
    world.run_until(lambda: [c.billed_until is not None for c in world.claims()] == [True], 200)
    world.run(300)
    facts = DaemonInfo("1", "site", 0.0)
    for over in (False, True):
        assert world.reconciler is not None
        assert world.reconciler.latest is not None
        snapshot, plan = world.reconciler.latest
        said = status_view(facts, (snapshot, plan), Caller("root", admin=True), snapshot.now)
        pool = next(pool for pool in said.pools if pool.name == "cpu")
        costs = [claim.offer.price for claim in snapshot.claims]
        assert [money.amount for money in said.cost_per_hour] == costs
        assert [money.amount for money in pool.cost_per_hour] == costs
        assert all(Commitments(snapshot, 600.0).remaining_s(claim) > 0 for claim in snapshot.claims)
        assert len(costs) == (0 if over else 1)
        if not over:
            ends_well(world, job)
            world.run(60)


@pytest.mark.parametrize("slept_s", [200.0, 1200.0])
def test_b08_a_daemon_that_slept_looks_before_it_ends_what_boots(world: World, slept_s: float) -> None:
    job = world.slurm.submit(JobSpec(run_s=60))
    world.run_until(lambda: [c.state for c in world.claims()] == [S.BOOTING], 60)
    claim = world.claims()[0]
    world.clock.advance(slept_s)
    world.run_until(lambda: world.states(job) == [RUNNING], 60)
    assert world.claim_on(claim.slot).id == claim.id
    ends_well(world, job)
    assert len(world.launched_instances()) == 1


def test_b12_an_interface_that_fails_for_three_minutes_harms_no_job(world: World) -> None:
    jobs = [world.slurm.submit(JobSpec(run_s=300, cpus_per_node=4)) for _ in range(2)]
    world.run_until(lambda: all(world.states(job) == [RUNNING] for job in jobs), 120)
    late = world.slurm.submit(JobSpec(run_s=30, cpus_per_node=4))
    for name in world.kits:
        world.kits[name].fail("down", 2)
    world.run(180)
    for name in world.kits:
        world.kits[name].heal()
    ends_well(world, *jobs, late)


def test_b12_a_list_that_lags_by_a_minute_doubles_and_loses_nothing(world: World) -> None:
    for name in world.kits:
        sim(world, name).provider.faults.list_lag_s = 60.0
    jobs = [world.slurm.submit(JobSpec(run_s=60, cpus_per_node=4)) for _ in range(3)]
    world.run_until(lambda: all(set(world.states(job)) <= {RUNNING, COMPLETED} for job in jobs), 200)
    ends_well(world, *jobs)
    assert len(world.launched_instances()) == 3


def test_b12_capacity_that_flaps_serves_every_job_in_the_end(world: World) -> None:
    jobs = [world.slurm.submit(JobSpec(run_s=40, cpus_per_node=4)) for _ in range(6)]
    for at in range(12):
        for name in world.kits:
            world.kits[name].fail("launch refused", 1 + at % 2)
        world.run(20)
        world.check()
    ends_well(world, *jobs)


@pytest.mark.parametrize("fate", [1, 2])
def test_b12_machines_that_never_answer_or_fail_are_replaced(world: World, fate: int) -> None:
    for name in world.kits:
        world.kits[name].fail("bad boot", fate)
    job = world.slurm.submit(JobSpec(run_s=30))
    world.run_until(lambda: world.states(job) == [RUNNING], 900)
    ends_well(world, job)


@pytest.mark.parametrize("back_s", [None, 5.0])
def test_b12_a_machine_that_freezes_or_reboots_by_itself_is_replaced(world: World, back_s: float | None) -> None:
    """Frozen, it is listed as running for ever; rebooted, it answers again without a slurmd."""
    job = world.slurm.submit(JobSpec(run_s=120))
    world.run_until(lambda: world.states(job) == [RUNNING], 90)
    claim = world.claims()[0]
    world.machines.end(claim.address)
    if back_s is not None:
        world.machines.boot(claim.address, back_s)
    world.run_until(lambda: world.slurm.job(job).restarts == 1, 300)
    world.run_until(lambda: world.states(job) == [RUNNING] and world.claims()[0].id != claim.id, 400)
    world.heal()
    world.calm(2.0)
    assert world.states(job) == [COMPLETED]
