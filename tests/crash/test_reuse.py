"""Machines that pass to another pool, and burstd killed at any step: one owner, one node, one bill without a seam."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from burstd.domain.billing.costs import cost_of
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import JobState
from tests.crash import test_machine
from tests.crash.world import CPU_SLOTS, OTHER_SLOTS, World, memory_folder
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

FIRST = JobSpec(run_s=30, cpus_per_node=4)
SECOND = JobSpec(run_s=40, cpus_per_node=4, partitions=("other",), user="bob")
RUNNING, COMPLETED = JobState.RUNNING, JobState.COMPLETED


def check_nodes(w: World) -> None:
    """Jobs run on machines whose slurmd has the name of the job's node."""
    for job in w.slurm.active:
        for name in job.nodes if job.state is RUNNING else ():
            node = w.slurm.node(name)
            machine = w.machines.running_at(node.address) if node.slurmd else None
            assert machine is None or machine.node == name, f"{name} is {machine} under job {job.id}\n{w.report()}"


def check_seams(w: World) -> list[tuple[Claim, Claim]]:
    """What one machine has cost lies end to end, is booked to the micro unit, and is nobody's twice. The seams."""
    by_machine: dict[str, list[Claim]] = {}
    for claim in w.all_claims():
        if claim.instance_id and claim.billed_from is not None:
            by_machine.setdefault(claim.instance_id, []).append(claim)
    seams: list[tuple[Claim, Claim]] = []
    for claims in by_machine.values():
        claims.sort(key=lambda claim: (claim.billed_from, claim.billed_until))
        for before, after in pairwise(claims):
            if after.reused_from:
                assert before.billed_until == after.billed_from, f"{w.story(before)}\n{w.story(after)}"
                assert before.slot == after.reused_from
                seams.append((before, after))
    costs = [
        cost_of(c.offer.price, c.billed_until - c.billed_from)
        for c in w.all_claims()
        if c.billed_until is not None and c.billed_from is not None
    ]
    assert sum(one.amount for one in w.store.spending() if not one.kind) == sum(costs)
    return seams


@pytest.fixture
def world(tmp_path: Path, template: Path) -> World:
    return World(tmp_path, template=template, alpha="sim", reuse=True)


def begin(w: World) -> str:
    """A job in one pool has ended, and its machine is idle; a job of the other pool comes. Returns its id."""
    first = w.slurm.submit(FIRST)
    w.run_until(lambda: w.states(first) == [COMPLETED], 300)
    return w.slurm.submit(SECOND)


def until_completed(w: World, job: str) -> None:
    w.run_until(lambda: w.states(job) == [COMPLETED], 600)


def ends_well(w: World, job: str) -> None:
    w.heal()
    w.calm(2.0)
    assert w.states(job) == [COMPLETED]
    w.check_replay()
    w.check_bill()
    check_seams(w)


def test_an_idle_machine_serves_the_other_pool_and_is_billed_to_both(world: World) -> None:
    second = begin(world)
    began = world.clock.now()
    world.run_until(lambda: world.states(second) == [RUNNING], 120)
    assert world.clock.now() - began < 30, "as a boot takes"
    assert len(world.launched_instances()) == 1
    [claim] = world.claims()
    assert (claim.slot in OTHER_SLOTS, claim.pool, claim.users, claim.reused_from in CPU_SLOTS) == (
        True, "other", ("bob",), True,
    )  # fmt: skip
    ends_well(world, second)
    [(before, after)] = check_seams(world)
    assert (before.pool, before.users, after.pool, after.users) == ("cpu", ("ann",), "other", ("bob",))


def test_one_that_fails_is_ended_and_the_job_gets_a_new_machine(world: World) -> None:
    second = begin(world)
    machine = world.machines.running_at(world.claims()[0].address)
    assert machine is not None
    machine.validation_error = "it is not as it should be"
    world.run_until(lambda: world.states(second) == [RUNNING], 300)
    assert len(world.launched_instances()) == 2
    assert [b.key for b in world.store.breakers() if b.until > world.clock.now()] == ["reuse/other"]
    ends_well(world, second)


def test_a_job_that_got_in_before_the_gate_keeps_its_node(world: World) -> None:
    second = begin(world)
    third = world.slurm.submit(FIRST)
    ends_well(world, second)
    assert world.states(third) == [COMPLETED]


@pytest.mark.parametrize("lost", ["older copy", "all"])
def test_a_lost_record_follows_the_machine_to_its_node(world: World, tmp_path: Path, lost: str) -> None:
    first = world.slurm.submit(FIRST)
    world.run_until(lambda: world.states(first) == [RUNNING], 300)
    world.kill()
    shutil.copy(world.path, tmp_path / "copy")
    world.start()
    world.run_until(lambda: world.states(first) == [COMPLETED], 300)
    second = world.slurm.submit(JobSpec(run_s=900, cpus_per_node=4, partitions=("other",), user="bob"))
    world.run_until(lambda: world.states(second) == [RUNNING], 120)
    [slot] = world.slurm.job(second).nodes
    world.kill()
    world.lose_record()
    if lost == "older copy":
        shutil.copy(tmp_path / "copy", world.path)
    world.start()
    world.run_until(lambda: any(c.slot == slot and c.state is ClaimState.IN_SERVICE for c in world.claims()), 300)
    world.run_until(lambda: world.states(second) == [COMPLETED], 900)
    assert (len(world.launched_instances()), world.slurm.job(second).restarts) == (1, 0)
    assert world.all_claims()[0].users == ("bob",)
    ends_well(world, second)


def test_killed_at_every_step_of_a_handover(tmp_path: Path, template: Path) -> None:
    with memory_folder(tmp_path) as folder:
        w = World(folder, template=template, alpha="sim", reuse=True)
        begin(w)
        with w.recorded_places():
            w.run(25)
        found = w.crash_points.distinct_places()
        w.kill()
    places: set[str] = set()
    for number in found:
        with memory_folder(tmp_path) as folder:
            w = World(folder, template=template, alpha="sim", reuse=True)
            second = begin(w)
            w.crash_points.arm(number)
            w.run(25)
            places.add(w.crash_points.passed[-1])
            assert w.reconciler is None
            w.start()
            until_completed(w, second)
            check_nodes(w)
            ends_well(w, second)
            w.kill()
    assert {place for place in places if "hand_over_claim" in place}, places
    assert {place for place in places if "power_down" in place}, places


class CountingWorld(World):
    """Looks at what each machine has cost as well."""

    seams = 0
    """How often one was handed over, in all worlds."""

    def check_bill(self) -> None:
        super().check_bill()
        CountingWorld.seams += len(check_seams(self))


class Handovers(test_machine.Crashes):
    """The same, with two pools that hand machines to each other."""

    lie = None  # type: ignore[assignment]
    """Clouds that lie are the other machine's matter."""

    @initialize(
        beta=st.sampled_from([Idempotency.SETTLE, Idempotency.NAME]),
        alpha=st.sampled_from(["sandbox", "sim", "batches"]),
        spot=st.booleans(),
        places=st.integers(0, 30),
    )
    def begin(self, beta: Idempotency, alpha: str, spot: bool, places: int) -> None:
        self.folder = ExitStack()
        self.world = CountingWorld(
            self.folder.enter_context(memory_folder()), template=self.template, alpha=alpha, beta=beta, spot=spot,
            reuse=True,
        )  # fmt: skip
        self.jobs: list[str] = []
        self.a_job_here_and_then_one_there(back=False, places=places, s=20.0, start=True)

    @precondition(lambda self: self.world.slurm.running and len(self.jobs) < 9)
    @rule(back=st.booleans(), places=st.integers(0, 30), s=st.sampled_from([2.0, 7.0, 20.0]), start=st.booleans())
    def a_job_here_and_then_one_there(self, back: bool, places: int, s: float, start: bool) -> None:
        partitions = ("other", "burst") if back else ("burst", "other")
        specs = [replace(FIRST, partitions=(partition,)) for partition in partitions]
        self.jobs.append(self.world.slurm.submit(specs[0]))
        self.world.run(FIRST.run_s + 20)
        if self.world.slurm.running:
            self.jobs.append(self.world.slurm.submit(specs[1]))
        if places:
            self.world.crash_points.arm(places)
        self.world.run(s)
        if start:
            self.world.start()

    @invariant()
    def runs_where_it_should(self) -> None:
        if hasattr(self, "world"):
            check_nodes(self.world)


@pytest.mark.thorough
def test_any_order_of_crashes_and_faults_with_handovers(template: Path) -> None:
    Handovers.template = template
    chosen = test_machine._LONG if os.environ.get("BURSTD_HYPOTHESIS") == "long" else test_machine._SHORT
    run_state_machine_as_test(Handovers, settings=settings(chosen, max_examples=chosen.max_examples // 3))
    assert CountingWorld.seams > 0
