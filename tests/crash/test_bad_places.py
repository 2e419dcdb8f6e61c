"""A hundred boots of which a fifth have a bad GPU: no job meets one, and the place where they are is left alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.costs import cost_of
from burstd.domain.billing.use import Kind
from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import NodeRefused
from tests.crash import world as crash_world
from tests.crash.clouds import SimKit
from tests.crash.test_directed import COMPLETED, ends_well
from tests.crash.world import World
from tests.virtual.job import JobSpec
from tests.virtual.validator import SimValidator

pytestmark = pytest.mark.crash

WAVE = 40
JOB = JobSpec(exclusive=True, run_s=60, time_limit_s=20 * 3600)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """Room for a wave of jobs in either cloud; every second machine of the cheaper one, alpha, has a bad GPU.

    The machines are those of the pool without GPUs: what the check finds is played, and its pool is no matter.
    """
    slots = tuple(f"c{n}" for n in range(1, WAVE + 1))
    monkeypatch.setattr(crash_world, "CPU_SLOTS", slots)
    monkeypatch.setattr(crash_world, "SLOTS", frozenset(slots + crash_world.GPU_SLOTS))
    prove, machines = SimValidator.validate, Counter[str]()

    def proved(
        self: SimValidator, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]
    ) -> str:
        if claim.offer.provider == "alpha" and claim.id not in machines:
            machines[claim.id] = len(machines) % 2
        proof = prove(self, claim, pool, console, reached)
        if machines[claim.id]:
            raise NodeRefused(f"gpu_health of {claim.slot}: a row of memory could not be replaced", cause="gpu_health")
        return proof

    monkeypatch.setattr(SimValidator, "validate", proved)
    w = World(tmp_path, alpha="sim")
    sell(w, "alpha", WAVE + 1)  # one is a neighbour's
    sell(w, "beta", WAVE + 1)
    w.run(40)
    return w


def sell(w: World, name: str, capacity: int) -> None:
    kit = w.kits[name]
    assert isinstance(kit, SimKit)
    kit.cloud.stocks = [replace(stock, capacity=capacity) for stock in kit.cloud.stocks[:1]]


def wave(w: World) -> list[str]:
    """As many jobs as there are slots, each on a machine of its own; all end, and so do the machines."""
    jobs = [w.slurm.submit(JOB) for _ in range(WAVE)]
    wait(w, lambda: all(w.states(job) == [COMPLETED] for job in jobs))
    wait(w, lambda: not w.claims())
    return jobs


def wait(w: World, condition: Callable[[], bool]) -> None:
    """As World.run_until, with a look every half minute: a look at a hundred machines takes its time."""
    for _ in range(40):
        if condition():
            return
        w.run(30)
    raise AssertionError(w.report())


def test_a_hundred_boots_with_a_fifth_of_bad_gpus(world: World) -> None:
    jobs = wave(world)
    # burstd remembers over its own death, and over the time for which the breaker of the place is open.
    world.kill()
    world.start()
    world.run(2 * 3600)
    jobs += wave(world)
    claims = world.all_claims()
    bad = [claim for claim in claims if claim.error == "gpu_health"]
    assert (len(claims), len(bad), len(jobs)) == (100, 20, 80)
    assert all(claim.in_service_from is None for claim in bad)
    assert [world.slurm.job(job).restarts for job in jobs] == [0] * 80
    assert Counter(c.offer.provider for c in claims if not c.error) == {"alpha": 20, "beta": 60}
    assert Counter(c.offer.provider for c in bad) == {"alpha": 20}
    # Their cost is nobody's, in every grouping of the bill and in the sums of budgets.
    now = world.clock.now()
    wasted, whole = (
        sum(
            cost_of(c.offer.price, (now if c.billed_until is None else c.billed_until) - c.billed_from)
            for c in some
            if c.billed_from is not None
        )
        for some in (bad, claims)
    )
    for group in get_args(BillGrouping):
        lines = world.store.bill(group, 0)
        failed = [(line.key, part.cost) for line in lines for part in line.parts if part.kind is Kind.FAILED]
        assert sum(cost for _, cost in failed) == wasted > 0
        assert sum(line.cost for line in lines) == whole
        if group in ("user", "account", "job"):
            assert not any(key for key, _ in failed)
    spent = {(s.kind, s.name): s.amount for s in world.store.spending()}
    users = {("user", line.key): line.cost for line in world.store.bill("user", 0) if line.key}
    assert spent == {("", ""): whole, **users}
    assert world.reconciler is not None
    snapshot, plan = world.reconciler.preview()
    assert {place: str(record) for place, record in snapshot.places.items() if record.avoided} == {
        "alpha/r1/z1/cpu.m": "20 of 40 machines bad in 56 days, 50 % by weight"
    }
    assert [o.provider for o in plan.target.offers["cpu"]] == ["beta", "alpha"]
    # Never without a machine for history alone: where the other cloud has none left, this one is taken.
    sell(world, "beta", 0)
    last = world.slurm.submit(JOB)
    wait(world, lambda: any(c.offer.provider == "alpha" for c in world.claims()))
    ends_well(world, last)
