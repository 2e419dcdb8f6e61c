"""Any order of jobs, loops, crashes and faults: nothing is ever doubled or killed, and in the end nothing is left.

``BURSTD_HYPOTHESIS=long`` looks much further than the default.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

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

from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.shape import Gres
from policies import budget
from tests.crash.clouds import FAULTS
from tests.crash.workers import Delay
from tests.crash.world import ADMIN_REASON, SLOTS, World, memory_folder
from tests.doubles.lying_cloud import ALL
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

_SHORT = settings(
    derandomize=True, max_examples=60, stateful_step_count=40, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink),
)  # fmt: skip
_LONG = settings(_SHORT, derandomize=False, max_examples=2000, stateful_step_count=80)

JOBS = {
    "small": (JobSpec(run_s=30),),
    "whole node": (JobSpec(run_s=200, cpus_per_node=4, user="bob"),),
    "one GPU": (JobSpec(run_s=60, gres_per_node=(Gres("gpu", "", 1),)),),
    "two V100, once": (JobSpec(run_s=100, gres_per_node=(Gres("gpu", "v100", 2),), requeue=False),),
    "gang of 2": (JobSpec(run_s=60, nodes=2, exclusive=True),),
    "gang of 3": (JobSpec(run_s=50, nodes=3, cpus_per_node=2, user="bob"),),
    "array": (JobSpec(run_s=40, array=4, cpus_per_node=2),),
    "array, one at a time": (JobSpec(run_s=40, array=3, array_limit=1),),
    "array of gangs": (JobSpec(run_s=40, array=2, nodes=2),),
    "anywhere": (JobSpec(run_s=60, partitions=("onprem", "burst"), cpus_per_node=2),),
    "held": (JobSpec(run_s=20, limited_by="JobHeldUser"),),
    "later": (JobSpec(run_s=20, begin_in_s=90),),
    "too long": (JobSpec(run_s=600, time_limit_s=150),),
    "het": (JobSpec(run_s=40), JobSpec(run_s=40, gres_per_node=(Gres("gpu", "", 1),))),
    "last": (JobSpec(run_s=30, priority=1),),
}

BUDGET = budget.plugin.make(budget.BudgetSettings(limit=Decimal(10**6), overhead_s=480))
clouds = st.sampled_from(["alpha", "beta"])


few = st.integers(1, 3)
seconds = st.sampled_from([0.5, 2.0, 7.0, 20.0, 45.0, 90.0, 200.0])


class Crashes(RuleBasedStateMachine):
    """The rules are what users, clouds, Slurm, the disk, the clock and kill -9 do."""

    template: Path

    @initialize(
        beta=st.sampled_from([Idempotency.SETTLE, Idempotency.NAME]),
        lag=st.sampled_from([0.0, 4.0]),
        alpha=st.sampled_from(["sandbox", "sim", "batches", "none"]),
        call_s=st.sampled_from([0.0, 0.3]),
        spot=st.booleans(),
        paid=st.booleans(),
    )
    def begin(self, beta: Idempotency, lag: float, alpha: str, call_s: float, spot: bool, paid: bool) -> None:
        self.folder = ExitStack()
        self.world = World(
            self.folder.enter_context(memory_folder()),
            template=self.template,
            alpha=alpha,
            beta=beta,
            lag_s=lag,
            spot=spot,
            # Then every machine is its own jobs' only (core/private.py).
            policies=(BUDGET,) if paid else (),
        )
        self.world.slurm_line.call_s = call_s
        self.jobs: list[str] = []

    # Users.

    @precondition(lambda self: self.world.slurm.running and len(self.jobs) < 10)
    @rule(kind=st.sampled_from(sorted(JOBS)))
    def submit(self, kind: str) -> None:
        self.jobs.append(self.world.slurm.submit(*JOBS[kind]))

    @precondition(lambda self: self.world.slurm.running and self.jobs)
    @rule(which=st.integers(0, 9), what=st.sampled_from(["cancel", "hold", "release", "requeue"]))
    def change_a_job(self, which: int, what: str) -> None:
        slurm, job = self.world.slurm, self.jobs[which % len(self.jobs)]
        match what:
            case "cancel":
                slurm.cancel(job)
            case "requeue":
                slurm.requeue(job)
            case _:
                slurm.limit(job, "JobHeldUser" if what == "hold" else "")

    # burstd and time.

    @rule(which=st.integers(0, 5))
    def loop_and_some_work(self, which: int) -> None:
        self.world.step()
        self.world.work(which)

    @rule(s=seconds)
    def time_passes_without_burstd(self, s: float) -> None:
        self.world.clock.advance(s)

    @rule(s=seconds)
    def run(self, s: float) -> None:
        self.world.run(s)

    @rule(s=seconds)
    def run_on(self, s: float) -> None:
        self.world.run(s)

    @rule(s=st.sampled_from([30.0, 60.0, 120.0]))
    def run_long(self, s: float) -> None:
        self.world.run(s)

    @rule(places=st.integers(1, 40), s=seconds, back=st.booleans())
    def crash(self, places: int, s: float, back: bool) -> None:
        self.world.crash_points.arm(places)
        self.world.run(s)
        if back:
            self.world.start()

    @rule(back_after=st.sampled_from([None, 0.0, 3.0, 60.0]))
    def kill(self, back_after: float | None) -> None:
        self.world.kill()
        if back_after is not None:
            self.world.clock.advance(back_after)
            self.world.start()

    @rule()
    def start(self) -> None:
        self.world.start()

    # Clouds.

    @rule(cloud=clouds, kind=st.sampled_from(FAULTS), n=few)
    def cloud_fault(self, cloud: str, kind: str, n: int) -> None:
        kit = self.world.kits.get(cloud)
        if kit is not None:
            kit.fail(kind, n)

    @precondition(lambda self: self.world.running_instances())
    @rule(which=st.integers(0, 7), kind=st.sampled_from(["lost", "taken", "hint", "omitted", "unknown", "pending"]))
    def machine_fault(self, which: int, kind: str) -> None:
        living = self.world.running_instances()
        one = living[which % len(living)]
        kit = self.world.kits[one.provider]
        if kind == "lost":
            kit.end_instance(one.id)
        elif kind in ("taken", "hint"):
            kit.interrupt_spot(one.id, 20.0 * which if kind == "taken" else None)
        else:
            kit.misreport(one.id, kind)

    @rule(cloud=clouds, lie=st.sampled_from(["", *ALL]))
    def lie(self, cloud: str, lie: str) -> None:
        if cloud in self.world.lying_clouds:
            self.world.lying_clouds[cloud].lie = lie

    @rule(
        lane=st.sampled_from(["alpha", "beta", "alpha:list", "beta:list", "nodes"]),
        before=st.sampled_from([0.0, 2.0, 15.0, 40.0]),
        after=st.sampled_from([0.0, 2.0, 15.0]),
    )
    def slow(self, lane: str, before: float, after: float) -> None:
        self.world.delays[lane] = Delay(before, after)

    # Slurm, disk, clock, administrators.

    @rule(what=st.sampled_from(["stop", "start", "lose answers", "lose the gate"]), n=few)
    def slurm_fault(self, what: str, n: int) -> None:
        match what:
            case "stop":
                self.world.slurm.stop()
            case "start":
                self.world.slurm.start()
            case "lose answers":
                self.world.slurm_line.lost_answers = n
            case _ if self.world.slurm.running:
                self.world.slurm.lose_reservations()

    @precondition(lambda self: self.world.slurm.running)
    @rule(slot=st.sampled_from(sorted(SLOTS)), what=st.sampled_from(["up", "down", "off", "drain", "resume"]))
    def admin(self, slot: str, what: str) -> None:
        slurm = self.world.slurm
        match what:
            case "up":
                slurm.power_up([slot])
            case "down":
                slurm.down([slot], ADMIN_REASON)
            case "off":
                slurm.power_down([slot], force=True)
            case "drain":
                slurm.drain([slot], ADMIN_REASON)
            case _:
                slurm.resume([slot])

    @rule(left=st.sampled_from([None, None, 0, 1, 3, 10]))
    def disk(self, left: int | None) -> None:
        self.world.disk.writes_left = left

    @rule(hours=st.sampled_from([-5.0, -0.1, 0.1, 5.0]))
    def clock_jumps(self, hours: float) -> None:
        self.world.jump(hours * 3600)

    # What must hold.

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        try:
            world.heal()
            world.calm()
            for job_id in self.jobs:
                assert all(s in _OVER for s in world.states(job_id)), world.states(job_id)
            world.check_replay()
            world.check_bill()
        finally:
            world.kill()
            self.folder.close()


_OVER = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL})


def test_any_order_of_crashes_and_faults(template: Path) -> None:
    Crashes.template = template
    chosen = _LONG if os.environ.get("BURSTD_HYPOTHESIS") == "long" else _SHORT
    run_state_machine_as_test(Crashes, settings=chosen)
