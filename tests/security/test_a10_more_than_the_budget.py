"""What a user may try with his own jobs to spend more than his budget: each time no more is spent than was reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.model.job import JobState
from burstd.model.policy import Policy
from burstd.sim.job import JobSpec
from policies import budget, idle, limits
from policies.purse import Limit
from tests.crash.conftest import template
from tests.crash.world import World, memory_folder

__all__ = ["template"]
pytestmark = pytest.mark.crash

_DAY_S = 86_400.0
_LIMIT = Decimal("0.45")
_CHAIN: tuple[Policy, ...] = (
    idle.plugin.make(idle.Settings(keep_alive_s=60)),
    limits.plugin.make(limits.Settings(users={"*": limits.Limit(nodes=2)})),
    budget.plugin.make(
        budget.Settings(overhead_s=480, projects={"*": Limit(limit=_LIMIT)}, users={"*": Limit(limit=1)})
    ),
)
_TEN_MINUTES = JobSpec(user="ann", account="atlas", cpus_per_node=4, run_s=30 * _DAY_S, time_limit_s=600)
Trick = Callable[[World], list[str]]


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    with memory_folder(tmp_path) as folder:
        made = World(folder, template=template, alpha="sim")
        yield made
        made.kill()


def _until_bound(world: World, job: str) -> None:
    for _ in range(600):
        if world.slurm.job(job).reservation:
            return
        world.run(1)
    raise AssertionError(f"job {job} was never bound")


def _lengthened_once_bound(world: World) -> list[str]:
    """``scontrol update TimeLimit=`` between the binding and the start, which is the next thing that Slurm does."""
    job = world.slurm.submit(_TEN_MINUTES)
    _until_bound(world, job)
    world.slurm.limit_time(job, 30 * _DAY_S)
    return [job]


def _lengthened_while_it_boots(world: World) -> list[str]:
    job = world.slurm.submit(_TEN_MINUTES)
    while not world.claims():
        world.run(1)
    world.slurm.limit_time(job, 30 * _DAY_S)
    return [job]


def _requeued_again_and_again(world: World) -> list[str]:
    job = world.slurm.submit(_TEN_MINUTES)
    for _ in range(4):
        world.run(120)
        world.slurm.requeue(job)
    return [job]


def _het(world: World) -> list[str]:
    short = replace(_TEN_MINUTES, cpus_per_node=1)
    return [world.slurm.submit(short, short), world.slurm.submit(replace(short, time_limit_s=30 * _DAY_S))]


@pytest.mark.parametrize(
    "trick",
    [_lengthened_once_bound, _lengthened_while_it_boots, _requeued_again_and_again, _het],
    ids=lambda trick: trick.__name__.strip("_"),
)
def test_no_more_is_spent_than_there_is(world: World, trick: Trick) -> None:
    world.obey(_CHAIN)
    jobs = trick(world)
    world.run(2400)
    for job in jobs:
        world.slurm.cancel(job)
    world.calm()
    now = world.clock.now()
    # What ends it: Slurm counts minutes, and two minutes are its own after a limit.
    slack = sum((claim.offer.price * Decimal(180) / 3600 for claim in world.all_claims()), Decimal(0))
    assert sum((claim.cost(now) for claim in world.all_claims()), Decimal(0)) <= _LIMIT + slack
    assert {account for claim in world.all_claims() for account in claim.accounts} <= {"atlas"}
    assert all(s is not JobState.RUNNING for job in jobs for s in world.states(job))
