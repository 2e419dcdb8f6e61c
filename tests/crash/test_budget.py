"""Machines that a budget pays for, from launch to end: nobody rides along, and no chain of policies passes a limit."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from burstd.domain.claim import Cause, ClaimState
from burstd.domain.plugins.policy import Policy, Target, Want
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Pin, Snapshot
from policies import budget, idle
from tests.crash.world import TUNING, World, memory_folder
from tests.virtual.job import JobSpec
from tests.virtual.machines import Machine

pytestmark = pytest.mark.crash

FAULTS = ("launch refused", "answers lost", "requests lost", "requests late", "bad boot")
"""Not those that keep a machine from being ended: what it costs then is beyond anybody's reach."""
OVERHEAD_S = 480.0
"""Boot, proof and gang of the world (120 + 60 + 180 s), and the end."""
IDLE = idle.plugin.make(idle.IdleSettings(keep_alive_s=60))


def limits(**given: Any) -> Policy:
    made: Policy = budget.plugin.make(budget.plugin.settings(**{"overhead_s": OVERHEAD_S, **given}))
    return made


def atlas(**fields: Any) -> JobSpec:
    """A job of ten minutes at most on a whole node of the cheaper cloud: 0.30 at most."""
    base = JobSpec(user="ann", account="atlas", cpus_per_node=4, run_s=100, time_limit_s=600)
    return replace(base, **fields)


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[World]:
    with memory_folder(tmp_path) as folder:
        made = World(folder, template=template, alpha="sim")
        yield made
        made.kill()


def spent_by_payer(world: World) -> dict[tuple[str, str], Decimal]:
    """What each payer has spent, and what machines that are not gone have cost or hold, whichever is more."""
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    now = world.clock.now()
    for spent in world.store.spending():
        sums[spent.kind, spent.name] += spent.amount
    for claim in world.all_claims():
        if claim.state is not ClaimState.GONE:
            for key in (("", ""), *(("project", a) for a in claim.accounts), *(("user", u) for u in claim.users)):
                sums[key] += max(claim.cost(now), claim.reserved)
    return sums


def test_the_second_job_waits_for_money_and_starts_when_the_limit_is_raised(world: World) -> None:
    world.set_policies((IDLE, limits(projects={"atlas": {"limit": "0.45"}})))
    first, second = (world.slurm.submit(spec) for spec in (atlas(run_s=500), atlas()))
    world.run(200)
    assert world.states(first) == [JobState.RUNNING]
    assert world.states(second) == [JobState.PENDING]
    *_, why = world.store.remarks(f"job:{second}")
    assert why.remark.reason == "project atlas has 0.15 of 0.45 EUR left this month; this may cost up to 0.30"
    world.set_policies((IDLE, limits(projects={"atlas": {"limit": "0.90"}})))
    world.run(300)
    assert world.states(second) == [JobState.COMPLETED]
    world.calm()
    assert sum(s.amount for s in world.store.spending() if s.name == "atlas") == sum(
        line.cost for line in world.store.bill("account", 0) if line.key == "atlas"
    )


def test_tasks_of_several_nodes_do_not_wait_for_each_others_machines(tmp_path: Path, template: Path) -> None:
    """The cheaper cloud has room for one node of each."""
    w = World(tmp_path, template=template, alpha="sandbox", policies=(limits(limit=10**6),))
    jobs = [w.slurm.submit(atlas(user="bob", run_s=200)), w.slurm.submit(JobSpec(run_s=40, array=2, nodes=2))]
    w.run_until(lambda: all(state is JobState.COMPLETED for job in jobs for state in w.states(job)), 600)
    assert len(w.all_claims()) < 6, w.report()
    w.calm(0.5)


def test_nobody_rides_along(world: World) -> None:
    world.set_policies((IDLE, limits(projects={"atlas": {"limit": 1}, "belle": {"limit": 0}})))
    mine = world.slurm.submit(atlas(cpus_per_node=1, run_s=300))
    # It is first in the queue, fits beside the other, would run for a day, and has no money.
    rider = world.slurm.submit(
        atlas(account="belle", cpus_per_node=1, time_limit_s=86400, run_s=86400, priority=2**32 - 2)
    )
    world.run(250)
    assert world.states(mine) == [JobState.RUNNING]
    world.run(1000)
    assert world.states(mine) == [JobState.COMPLETED]
    assert world.states(rider) == [JobState.PENDING]
    assert not world.claims()
    world.slurm.cancel(rider)
    world.calm()


@pytest.mark.parametrize(
    "specs",
    [
        (atlas(nodes=3),),
        (atlas(array=6, cpus_per_node=2, run_s=50),),
        (atlas(array=3, array_limit=1),),
        (atlas(array=2, nodes=2),),
        (atlas(cpus_per_node=1), atlas(cpus_per_node=1, account="belle")),
    ],
    ids=["gang", "array", "array one at a time", "array of gangs", "het"],
)
def test_jobs_of_all_kinds_run_on_machines_of_their_own(world: World, specs: tuple[JobSpec, ...]) -> None:
    world.set_policies((IDLE, limits(limit=50)))
    job = world.slurm.submit(*specs)
    world.run(1500)
    assert set(world.states(job)) == {JobState.COMPLETED}
    world.calm()
    assert all(claim.reserved and claim.cost(world.clock.now()) <= claim.reserved for claim in world.all_claims())


def test_an_array_goes_on_where_its_first_task_was_as_long_as_the_money_does(world: World) -> None:
    world.set_policies((IDLE, limits(limit="0.35")))
    job = world.slurm.submit(atlas(array=8, run_s=60, time_limit_s=120))
    world.run(1500)
    assert set(world.states(job)) == {JobState.COMPLETED}
    assert len([claim for claim in world.all_claims() if claim.in_service_from]) <= 3
    world.calm()


def test_a_machine_that_comes_too_late_for_its_job_is_given_back(world: World) -> None:
    world.set_policies((IDLE, limits(limit=50)))
    job = world.slurm.submit(atlas())
    world.run(60)
    world.slurm.limit(job, "JobHeldUser")
    world.run(500)
    world.slurm.limit(job, "")
    world.run(1000)
    assert world.states(job) == [JobState.COMPLETED]
    first = world.all_claims()[-1]
    assert first.cost(world.clock.now()) <= first.reserved
    world.calm()


def test_a_job_that_slurm_starts_by_itself_holds_nobody_up(world: World) -> None:
    world.set_policies((IDLE, limits(limit=50)))
    world.run(20)
    world.kill()
    world.slurm.lose_reservations()
    mine = world.slurm.submit(atlas())
    world.clock.advance(5)
    assert world.states(mine) == [JobState.CONFIGURING]
    world.start()
    other = world.slurm.submit(atlas(account="belle", user="bob"))
    world.run(150)
    assert {*world.states(mine), *world.states(other)} <= {JobState.RUNNING, JobState.COMPLETED}
    assert all(claim.reserved for claim in world.all_claims())


def test_a_node_of_nobody_costs_little_more_than_is_reserved_for_it(world: World) -> None:
    world.set_policies((IDLE, limits(limit=1, unlimited_s=600)))
    world.store.set_scale_override(Pin("cpu", 1, "floor", None, "root", world.clock.now()))
    world.run(200)
    for _ in range(10):
        world.slurm.submit(atlas(run_s=590))
    world.run(3000)
    spare = next(claim for claim in world.all_claims() if not claim.jobs)
    assert spare.state is ClaimState.GONE
    # One job of ten minutes began before it was used up.
    assert spare.reserved < spare.cost(world.clock.now()) < spare.reserved + Decimal("0.2")
    assert spent_by_payer(world)["", ""] <= 1


def test_machines_that_boot_too_long_are_not_tried_for_ever(tmp_path: Path, template: Path) -> None:
    with memory_folder(tmp_path) as folder:
        world = World(folder, template=template, alpha="sandbox", tuning=replace(TUNING, boot_timeout_s=1800))
        boot = world.machines.boot

        def slow(address: str, answers_in_s: float, *, validation_error: str = "") -> Machine:
            return boot(address, answers_in_s + 690, validation_error=validation_error)

        world.machines.boot = slow  # type: ignore[method-assign]
        world.set_policies((IDLE, limits(limit=5, overhead_s=600)))
        world.slurm.submit(atlas())
        world.run(900)
        [late] = [breaker for breaker in world.store.breakers() if breaker.cause == "too_late"]
        assert late.until > world.clock.now() + 1200
        world.kill()


class RandomPolicy:
    """A policy that does something else each time, hardly ever anything sensible."""

    def __init__(self, seed: int, *, hard: bool) -> None:
        self.name = f"rubbish{seed}"
        self.hard = hard
        self._dice = random.Random(seed)  # noqa: S311

    def evaluate(self, snapshot: Snapshot, target: Target) -> Any:
        """Raises, lies, invents, forges, forgets."""
        del snapshot
        dice = self._dice
        wants = list(target.wants)
        match dice.randrange(14):
            case 0:
                raise RuntimeError("broken")
            case 1:
                return dice.choice((None, 7, replace(target, wants=None), replace(target, remarks=())))  # type: ignore[arg-type]
            case 2:
                return replace(target, wants=(), remarks=())
            case 3:
                pool = dice.choice(sorted(target.offers))
                more = Want(pool, dice.randrange(1, 4), dice.choice(list(Cause)), "so be it", target.offers[pool])
                return replace(target, wants=(more, *wants))
            case 4:
                return replace(target, wants=(*wants, *(replace(w, slots=()) for w in wants)))
            case 5:
                return replace(target, wants=tuple(replace(w, accounts=(), users=(), reserved=()) for w in wants))
            case 6:
                return replace(target, wants=tuple(replace(w, offers=w.offers[::-1], reserved=()) for w in wants))
            case 7:
                return replace(target, wants=tuple(replace(w, offers=target.offers[w.pool]) for w in wants))
            case 8:
                return replace(target, wants=tuple(replace(w, jobs=w.jobs[:1], users=("eve",)) for w in wants))
            case 9:
                return replace(target, wants=tuple(replace(w, jobs=()) for w in wants))
            case 10:
                return replace(target, wants=tuple(reversed(wants)))
            case 11:
                return replace(target, releases=())
            case 12:
                return replace(target, wants=tuple(replace(w, slots=(), nodes=w.nodes + 1, gang="") for w in wants))
            case _:
                return target


KEYS: Mapping[tuple[str, str], str] = {
    ("", ""): "1.2",
    ("project", "atlas"): "0.5",
    ("project", "belle"): "0.3",
    ("user", "ann"): "0.7",
    ("user", "bob"): "0.6",
}
"""So tight that hardly two machines may be had at a time."""
LIMITS = limits(
    limit=KEYS["", ""],
    projects={name: {"limit": limit} for (kind, name), limit in KEYS.items() if kind == "project"},
    users={name: {"limit": limit} for (kind, name), limit in KEYS.items() if kind == "user"},
)
JOBS = {
    "small": (atlas(cpus_per_node=1),),
    "small, of others": (atlas(cpus_per_node=1, account="belle", user="bob", time_limit_s=300),),
    "long": (atlas(run_s=5000, time_limit_s=1200),),
    "of nobody": (atlas(account="", user="bob", run_s=30, time_limit_s=60),),
    "gang": (atlas(nodes=2, account="belle", time_limit_s=300),),
    "array": (atlas(array=5, cpus_per_node=2, run_s=40, time_limit_s=240),),
    "array of gangs": (atlas(array=2, nodes=2, run_s=20, time_limit_s=60, user="bob"),),
    "het": (atlas(cpus_per_node=1, time_limit_s=60), atlas(cpus_per_node=1, account="belle", time_limit_s=60)),
    "without end": (atlas(account="carol", time_limit_s=0, run_s=9000),),
    "without a budget": (atlas(account="carol", user="eve", run_s=400),),
}


class Spending(RuleBasedStateMachine):
    """Users submit what they like, policies do what they like, clouds refuse; what Slurm ends by its limit ends."""

    template: Path

    @initialize(
        before=st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), max_size=2),
        after=st.lists(st.tuples(st.integers(1, 10**6), st.booleans()), max_size=2),
        alpha=st.sampled_from(["sandbox", "sim", "batches"]),
        spot=st.booleans(),
    )
    def begin(self, before: list[tuple[int, bool]], after: list[tuple[int, bool]], alpha: str, spot: bool) -> None:
        self.folder = ExitStack()
        folder = self.folder.enter_context(memory_folder())
        self.world = World(folder, template=self.template, alpha=alpha, spot=spot)
        first, last = ([RandomPolicy(seed, hard=hard) for seed, hard in some] for some in (before, after))
        self.world.set_policies((*first, IDLE, LIMITS, *last))
        self.jobs: list[str] = []

    @precondition(lambda self: len(self.jobs) < 12)
    @rule(kind=st.sampled_from(sorted(JOBS)))
    def submit(self, kind: str) -> None:
        self.jobs.append(self.world.slurm.submit(*JOBS[kind]))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 11), what=st.sampled_from(["cancel", "hold", "release", "requeue"]))
    def change_a_job(self, which: int, what: str) -> None:
        slurm, job = self.world.slurm, self.jobs[which % len(self.jobs)]
        match what:
            case "cancel":
                slurm.cancel(job)
            case "requeue":
                slurm.requeue(job)
            case _:
                slurm.limit(job, "JobHeldUser" if what == "hold" else "")

    @rule(s=st.sampled_from([2.0, 20.0, 60.0, 60.0, 120.0, 300.0]))
    def run(self, s: float) -> None:
        self.world.run(s)

    @rule()
    def restart(self) -> None:
        self.world.kill()
        self.world.start()

    @rule(nodes=st.integers(0, 3), pool=st.sampled_from(["cpu", "gpu"]), kind=st.sampled_from(["floor", "exact"]))
    def scale(self, nodes: int, pool: str, kind: str) -> None:
        self.world.store.set_scale_override(Pin(pool, nodes, kind, None, "root", self.world.clock.now()))

    @rule(cloud=st.sampled_from(["alpha", "beta"]), kind=st.sampled_from(FAULTS), n=st.integers(1, 3))
    def cloud_refuses(self, cloud: str, kind: str, n: int) -> None:
        self.world.kits[cloud].fail(kind, n)

    @rule(slot=st.sampled_from(["c1", "c2", "g1"]))
    def slurm_powers_up_by_itself(self, slot: str) -> None:
        self.world.slurm.power_up([slot])

    @invariant()
    def no_limit_is_passed(self) -> None:
        if not hasattr(self, "world"):
            return
        for key, amount in spent_by_payer(self.world).items():
            # A share is cut to millionths.
            if key in KEYS and amount > Decimal(KEYS[key]) + Decimal("0.001"):
                stories = "\n".join(self.world.story(claim) for claim in self.world.all_claims())
                raise AssertionError(f"{key} has spent and promised {amount} of {KEYS[key]}\n{stories}")

    @invariant()
    def nobody_rides_along(self) -> None:
        if not hasattr(self, "world"):
            return
        claims = {claim.slot: claim for claim in self.world.claims()}
        for claim in self.world.all_claims():
            assert claim.reserved, f"nothing was reserved: {self.world.story(claim)}"
        for job in self.world.slurm.active:
            for claim in (claims[node] for node in job.nodes if node in claims and job.state is JobState.RUNNING):
                own = {job.id, job.array_job_id, job.het_job_id} & {j.partition("+")[0] for j in claim.jobs}
                opened = any("+" in j for j in claim.jobs)
                assert own or opened, f"job {job.id} is on {self.world.story(claim)}"

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.kill()
            self.folder.close()


@pytest.mark.thorough
def test_no_chain_of_policies_passes_a_limit(template: Path) -> None:
    Spending.template = template
    run_state_machine_as_test(
        Spending,
        settings=settings(
            derandomize=True, max_examples=25, stateful_step_count=30, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink),
        ),
    )  # fmt: skip
