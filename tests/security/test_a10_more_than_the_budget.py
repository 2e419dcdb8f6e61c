"""What a user may try with his own jobs to spend more than his budget: each time no more is spent than was reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.plugins.policy import Policy
from burstd.domain.slurm.job import JobState
from burstd.planner.policy_chain import make_target
from policies import broker, budget, idle, limits
from policies.budget_balance import BudgetLimit
from tests.crash.world import World, memory_folder
from tests.planner.worlds import job as row
from tests.planner.worlds import make_snapshot as seen
from tests.planner.worlds import offer, wants
from tests.virtual.job import JobSpec

_DAY_S = 86_400.0
_LIMIT = Decimal("0.32")
"""For 1152 s of a machine; a job of ten minutes needs 1080."""
_CHAIN: tuple[Policy, ...] = (
    idle.plugin.make(idle.IdleSettings(keep_alive_s=60)),
    limits.plugin.make(limits.LimitsSettings(users={"*": limits.NodeLimit(nodes=2)})),
    budget.plugin.make(
        budget.BudgetSettings(
            overhead_s=480, projects={"*": BudgetLimit(limit=_LIMIT)}, users={"*": BudgetLimit(limit=1)}
        )
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


def _het(world: World) -> list[str]:
    short = replace(_TEN_MINUTES, cpus_per_node=1)
    return [world.slurm.submit(short, short), world.slurm.submit(replace(short, time_limit_s=30 * _DAY_S))]


@pytest.mark.crash
@pytest.mark.parametrize(
    "trick",
    [_lengthened_once_bound, _lengthened_while_it_boots, _het],
    ids=lambda trick: trick.__name__.strip("_"),
)
def test_no_more_is_spent_than_there_is(world: World, trick: Trick) -> None:
    world.set_policies(_CHAIN)
    jobs = trick(world)
    world.run(1600)
    for job in jobs:
        world.slurm.cancel(job)
    world.calm()
    now = world.clock.now()
    # What ends it: Slurm counts minutes, and two minutes are its own after a limit.
    slack = sum((claim.offer.price * Decimal(180) / 3600 for claim in world.all_claims()), Decimal(0))
    assert sum((claim.cost(now) for claim in world.all_claims()), Decimal(0)) <= _LIMIT + slack
    assert {account for claim in world.all_claims() for account in claim.accounts} <= {"atlas"}
    assert all(s is not JobState.RUNNING for job in jobs for s in world.states(job))


@pytest.mark.crash
def test_nobody_gets_on_the_machines_of_a_het_job(world: World) -> None:
    rich = budget.BudgetSettings(
        overhead_s=480, projects={"atlas": BudgetLimit(limit=5), "belle": BudgetLimit(limit=0)}
    )
    world.set_policies((*_CHAIN[:-1], budget.plugin.make(rich)))
    short = replace(_TEN_MINUTES, cpus_per_node=1)
    mine = world.slurm.submit(short, short)
    # First in the queue, for a month, beside the other's components, and with no money of its own.
    rider = world.slurm.submit(
        replace(short, account="belle", user="bob", time_limit_s=30 * _DAY_S, run_s=30 * _DAY_S, priority=2**32 - 2)
    )
    for _ in range(400):
        world.run(1)
        assert world.states(rider) == [JobState.PENDING]
    assert set(world.states(mine)) <= {JobState.RUNNING, JobState.COMPLETED}
    world.slurm.cancel(rider)
    world.run(1600)
    world.calm()


_POOR = {"account": "atlas", "exclusive": True, "time_limit_s": 1800.0}
"""A machine at 1 EUR/h with half an hour of overhead: one such job costs 1 EUR at most."""


@pytest.mark.parametrize(
    ("most", "fields"),
    [
        (1, {}),
        (0, {"time_limit_s": 0.0}),
        (0, {"time_limit_s": 1e12}),
        (0, {"account": ""}),
        (1, {"name": "x Account=rich", "comment": "Account=rich UserId=root(0)"}),
        (1, {"name": "\x1b[2J--account=rich", "comment": "project:rich"}),
        (1, {"comment": "burst: gpu=0", "restarts": 99}),
        (0, {"comment": "burst: gpu-model=h100"}),
        (0, {"nodes": 2, "nodes_max": 2}),
        (1, {"id": "7_[1-1000]", "array_job_id": "7", "array_tasks": "1-1000", "tasks": 1000}),
        (1, {"het_job_id": "1", "het_offset": 0}),
    ],
    ids=ascii,
)
def test_what_a_job_says_of_itself_takes_no_more(most: int, fields: dict[str, Any]) -> None:
    """Money for one job of atlas, none for one without an end or with a dearer machine; ``rich`` may spend all."""
    rules = budget.BudgetSettings(
        overhead_s=1800, projects={"*": BudgetLimit(limit=Decimal("1.60")), "rich": BudgetLimit(limit=99)}
    )
    one = row(**{"job_id": "1", **_POOR, **{("job_id" if key == "id" else key): fields[key] for key in fields}})
    snapshot = seen(one, offers=(offer(), replace(offer(), zone="z2", instance_type="h100", price=Decimal(50))))
    target = make_target(snapshot, (broker.plugin.make(broker.BrokerSettings()), budget.plugin.make(rules)))
    assert sum(nodes for _, nodes, _ in wants(target)) <= most
    assert {account for want in target.wants for account in want.accounts} <= {"atlas"}
    assert sum((r.amount for want in target.wants for r in want.reserved), Decimal(0)) <= Decimal("1.60")
    assert bool(target.wants) == bool(most) or fields.get("het_job_id")
