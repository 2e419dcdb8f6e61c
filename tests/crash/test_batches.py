"""One launch call for many claims: whose machines they are, whatever becomes of the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.errors import ClientTokenSpent, CloudUnavailable, RateLimited
from burstd.domain.slurm.job import JobState
from tests.crash.clouds import SimKit
from tests.crash.world import World
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

THREE = JobSpec(run_s=300, nodes=3, exclusive=True)


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    return World(tmp_path, template=template, alpha="batches")


def until(world: World, state: JobState, job: str, seconds: float = 600) -> None:
    deadline = world.clock.now() + seconds
    while set(world.states(job)) != {state}:
        assert world.clock.now() < deadline, world.report()
        world.run(1)


def ends_well(world: World, *jobs: str) -> None:
    world.heal()
    world.calm()
    world.check_replay()
    world.check_bill()
    assert all(set(world.states(job)) == {JobState.COMPLETED} for job in jobs)


def launches(world: World) -> int:
    return world.calls.count("alpha.launch")


def test_three_machines_come_from_one_call_and_are_told_apart(world: World) -> None:
    job = world.slurm.submit(THREE)
    until(world, JobState.RUNNING, job)
    assert launches(world) == 1
    claims = world.claims()
    assert len({c.batch for c in claims}) == 1
    assert sorted(c.offer.zone for c in claims) == ["z1", "z1", "z2"], "each bears the offer that it was given"
    truth = {one.claim_id: one.id for one in world.running_instances()}
    assert {c.id: c.instance_id for c in claims} == truth
    ends_well(world, job)
    assert len(world.launched_instances()) == 3


@pytest.mark.parametrize("died", [False, True])
def test_a_lost_answer_is_asked_for_again_for_all_at_once(world: World, died: bool) -> None:
    world.run(5)
    world.kits["alpha"].fail("answers lost", 1)
    job = world.slurm.submit(THREE)
    while not launches(world):
        world.run(0.5)
    if died:
        world.kill()
        world.clock.advance(90)
        world.start()
    until(world, JobState.RUNNING, job)
    assert launches(world) == 2
    ends_well(world, job)
    assert len(world.launched_instances()) == 3


def test_machines_whose_answer_never_comes_are_ended_and_paid_for(world: World) -> None:
    world.run(5)
    job = world.slurm.submit(THREE)
    for _ in range(40):
        world.kits["alpha"].fail("answers lost", 3)
        world.run(2)
    world.kits["alpha"].heal()
    alpha = [claim for claim in world.all_claims() if claim.offer.provider == "alpha"]
    first = sorted(alpha, key=lambda claim: claim.created)[:3]
    assert {claim.error for claim in first} == {"unknown"}
    until(world, JobState.COMPLETED, job, 3000)
    ends_well(world, job)
    lost = [one for one in world.launched_instances() if one.claim_id in {c.id for c in first}]
    assert len(lost) == 3
    assert {c.instance_id for c in world.all_claims() if c.cost(world.clock.now())} >= {one.id for one in lost}


def test_a_batch_that_comes_short_goes_on_with_the_next_offer(world: World) -> None:
    taken = [world.slurm.submit(JobSpec(run_s=2000, cpus_per_node=4)) for _ in range(2)]
    for job in taken:
        until(world, JobState.RUNNING, job)
    gang = world.slurm.submit(JobSpec(run_s=60, nodes=2, exclusive=True))
    until(world, JobState.RUNNING, gang)
    mine = [c for c in world.claims() if c.gang]
    assert sorted(c.offer.provider for c in mine) == ["alpha", "beta"]
    assert all(c.state is ClaimState.IN_SERVICE for c in mine)
    ends_well(world, *taken, gang)


def test_a_spent_token_is_not_used_again(world: World) -> None:
    world.run(5)
    alpha = world.kits["alpha"]
    assert isinstance(alpha, SimKit)
    alpha.provider.faults.refuse.append(ClientTokenSpent("busy inside"))
    job = world.slurm.submit(THREE)
    until(world, JobState.RUNNING, job)
    spent = [c for c in world.all_claims() if c.error == "rate"]
    assert len(spent) == 3
    assert all(c.state is ClaimState.GONE and c.attempts == 1 for c in spent)
    ends_well(world, job)


def test_a_machine_found_without_its_answer_is_billed_as_what_it_is(world: World) -> None:
    taken = world.slurm.submit(JobSpec(run_s=2000, nodes=2, exclusive=True))
    until(world, JobState.RUNNING, taken)
    world.kits["alpha"].fail("answers lost", 1)
    job = world.slurm.submit(JobSpec(run_s=60, cpus_per_node=4))
    until(world, JobState.RUNNING, job)
    mine = next(c for c in world.claims() if job in c.jobs)
    assert (mine.offer.provider, mine.offer.zone) == ("alpha", "z2")
    ends_well(world, taken, job)


def test_a_cloud_that_throttles_is_left_for_the_other(world: World) -> None:
    world.run(5)
    alpha = world.kits["alpha"]
    assert isinstance(alpha, SimKit)
    alpha.provider.faults.refuse.extend(RateLimited("slower") for _ in range(50))
    job = world.slurm.submit(THREE)
    until(world, JobState.RUNNING, job, 240)
    assert {c.offer.provider for c in world.claims()} == {"beta"}
    throttled = [c for c in world.all_claims() if c.error]
    assert {(c.error, c.offer.instance_type) for c in throttled} == {("rate", "cpu.m")}
    ends_well(world, job)


def test_a_cloud_that_ends_machines_while_they_boot_is_left_for_the_other(world: World) -> None:
    alpha = world.kits["alpha"]
    job = world.slurm.submit(JobSpec(run_s=60, cpus_per_node=4))
    for _ in range(300):
        world.run(1)
        for one in world.running_instances():
            if one.provider == "alpha":
                alpha.end_instance(one.id)
    until(world, JobState.COMPLETED, job, 300)
    assert sum(one.provider == "alpha" for one in world.launched_instances()) <= 3, (
        "each zone once or twice, then the other cloud"
    )
    ends_well(world, job)


def test_leftovers_that_cannot_be_listed_keep_no_machine_and_no_slot(world: World, monkeypatch: Any) -> None:
    alpha = world.kits["alpha"]
    assert isinstance(alpha, SimKit)

    def denied() -> Any:
        raise CloudUnavailable("DescribePlacementGroups is not allowed")

    monkeypatch.setattr(alpha.provider, "leftovers", denied)
    world.kill()
    world.start()
    job = world.slurm.submit(THREE)
    until(world, JobState.COMPLETED, job)
    world.run(600)
    assert not world.running_instances()
    assert not world.claims()
    monkeypatch.undo()
    ends_well(world, job)
