"""Any order of jobs, loops, crashes and faults: nothing is ever doubled or killed, and in the end nothing is left.

``BURSTD_HYPOTHESIS=long`` looks much further than the default.
"""

from __future__ import annotations

import os
import tempfile
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

from burstd.model.errors import InsufficientCapacity, QuotaExceeded, RateLimited, SchedulerRefused
from burstd.model.instance import InstanceState
from burstd.model.job import JobState
from burstd.model.provider import Idempotency
from burstd.model.shape import Gres
from burstd.sim.cloud import Fate
from burstd.sim.job import JobSpec
from tests.crash.world import ADMINS, SLOTS, World

_SHORT = settings(
    derandomize=True, max_examples=60, stateful_step_count=40, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink),
)  # fmt: skip
_LONG = settings(_SHORT, derandomize=False, max_examples=2000, stateful_step_count=80)

JOBS = {
    "small": JobSpec(run_s=30),
    "whole node": JobSpec(run_s=200, cpus_per_node=4, user="bob"),
    "one GPU": JobSpec(run_s=60, gres_per_node=(Gres("gpu", "", 1),)),
    "two V100, once": JobSpec(run_s=100, gres_per_node=(Gres("gpu", "v100", 2),), requeue=False),
    "gang of 2": JobSpec(run_s=60, nodes=2, exclusive=True),
    "gang of 3": JobSpec(run_s=50, nodes=3, cpus_per_node=2, user="bob"),
    "array": JobSpec(run_s=40, array=4, cpus_per_node=2),
    "array, one at a time": JobSpec(run_s=40, array=3, array_limit=1),
    "array of gangs": JobSpec(run_s=40, array=2, nodes=2),
    "anywhere": JobSpec(run_s=60, partitions=("onprem", "burst"), cpus_per_node=2),
    "held": JobSpec(run_s=20, limited_by="JobHeldUser"),
    "later": JobSpec(run_s=20, begin_in_s=90),
    "too long": JobSpec(run_s=600, time_limit_s=150),
    "last": JobSpec(run_s=30, priority=1),
}
HET = (JobSpec(run_s=40), JobSpec(run_s=40, gres_per_node=(Gres("gpu", "", 1),)))
REFUSALS = (InsufficientCapacity("none left"), QuotaExceeded("no more of it"), RateLimited("slower", retry_after_s=7))

clouds = st.sampled_from(["alpha", "beta"])
few = st.integers(1, 3)
seconds = st.sampled_from([0.5, 2.0, 7.0, 20.0, 45.0, 90.0, 200.0])


class Crashes(RuleBasedStateMachine):
    """The rules are what users, clouds, Slurm, the disk, the clock and kill -9 do."""

    template: Path

    @initialize(beta=st.sampled_from([Idempotency.SETTLE, Idempotency.NAME]), lag=st.sampled_from([0.0, 0.0, 4.0]))
    def begin(self, beta: Idempotency, lag: float) -> None:
        # Memory, not disk: a kill of a process loses nothing that was handed to the kernel.
        shm = Path("/dev/shm")  # noqa: S108
        self.folder = tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None)
        self.world = World(Path(self.folder.name), template=self.template, beta=beta)
        for provider in self.world.providers.values():
            provider.faults.list_lag_s = lag
        self.jobs: list[str] = []
        self.blipped: set[str] = set()

    # Users.

    @precondition(lambda self: self.world.slurm.running and len(self.jobs) < 8)
    @rule(kind=st.sampled_from(sorted(JOBS)))
    def submit(self, kind: str) -> None:
        self.jobs.append(self.world.slurm.submit(JOBS[kind]))

    @precondition(lambda self: self.world.slurm.running and len(self.jobs) < 8)
    @rule()
    def submit_het(self) -> None:
        self.jobs.append(self.world.slurm.submit(*HET))

    @precondition(lambda self: self.world.slurm.running and self.jobs)
    @rule(which=st.integers(0, 7))
    def cancel(self, which: int) -> None:
        self.world.slurm.cancel(self.jobs[which % len(self.jobs)])

    @precondition(lambda self: self.world.slurm.running and self.jobs)
    @rule(which=st.integers(0, 7), hold=st.booleans())
    def hold_or_release(self, which: int, hold: bool) -> None:
        self.world.slurm.limit(self.jobs[which % len(self.jobs)], "JobHeldUser" if hold else "")

    # burstd and time.

    @rule()
    def step(self) -> None:
        self.world.step()

    @rule(which=st.integers(0, 5))
    def work(self, which: int) -> None:
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

    @rule(places=st.integers(1, 60), s=seconds)
    def crash(self, places: int, s: float) -> None:
        self.world.bomb.arm(places)
        self.world.run(s)

    @rule()
    def kill(self) -> None:
        self.world.kill()

    @rule()
    def start(self) -> None:
        self.world.start()

    # Clouds.

    @rule(cloud=clouds, down=st.booleans())
    def cloud_down(self, cloud: str, down: bool) -> None:
        self.world.providers[cloud].faults.down = down

    @rule(cloud=clouds, down=st.booleans())
    def list_down(self, cloud: str, down: bool) -> None:
        self.world.providers[cloud].faults.list_down = down

    @rule(cloud=clouds, n=few)
    def lose_answers(self, cloud: str, n: int) -> None:
        self.world.providers[cloud].faults.lost_answers = n

    @rule(cloud=clouds, n=few)
    def lose_requests(self, cloud: str, n: int) -> None:
        self.world.providers[cloud].faults.lost_requests = n

    @rule(cloud=clouds, late=st.sampled_from([1.0, 4.0]))
    def requests_arrive_late(self, cloud: str, late: float) -> None:
        self.world.providers[cloud].faults.late_requests.append(late)

    @rule(cloud=clouds, why=st.sampled_from(REFUSALS))
    def refuse(self, cloud: str, why: InsufficientCapacity) -> None:
        self.world.providers[cloud].faults.refuse.append(why)

    @rule(cloud=clouds, fate=st.sampled_from([Fate(hangs=True), Fate(error="no host found"), Fate(refused="1 GPU")]))
    def boot_badly(self, cloud: str, fate: Fate) -> None:
        self.world.providers[cloud].cloud.fates.append(fate)

    @rule(cloud=clouds, n=few, ignored=st.booleans())
    def terminate_badly(self, cloud: str, n: int, ignored: bool) -> None:
        faults = self.world.providers[cloud].faults
        if ignored:
            faults.terminate_ignored = n
        else:
            faults.terminate_errors = n

    @rule(cloud=clouds, n=few)
    def leak(self, cloud: str, n: int) -> None:
        self.world.providers[cloud].cloud.leaks = n

    @precondition(lambda self: self.world.living())
    @rule(which=st.integers(0, 7))
    def lose_a_machine(self, which: int) -> None:
        living = self.world.living()
        one = living[which % len(living)]
        self.world.cloud_of(one).end(one.id, "spot interruption")

    @precondition(lambda self: self.world.living())
    @rule(which=st.integers(0, 7))
    def lie(self, which: int) -> None:
        """For as long as nothing heals it, a listing leaves out a machine that lives."""
        living = self.world.living()
        one = living[which % len(living)]
        self.world.exempt.add(one.id)
        self.world.providers[one.offer.provider].faults.omitted.add(one.id)

    @precondition(lambda self: self.world.living())
    @rule(which=st.integers(0, 7), state=st.sampled_from([InstanceState.UNKNOWN, InstanceState.PENDING]))
    def mumble(self, which: int, state: InstanceState) -> None:
        living = self.world.living()
        one = living[which % len(living)]
        self.world.providers[one.offer.provider].faults.claimed[one.id] = state

    # Slurm, disk, clock, administrators.

    @rule(up=st.booleans())
    def slurmctld(self, up: bool) -> None:
        if up:
            self.world.slurm.start()
        else:
            self.world.slurm.stop()

    @rule(n=few)
    def lose_slurms_answers(self, n: int) -> None:
        self.world.line.lost_answers = n

    @precondition(lambda self: self.world.slurm.running)
    @rule()
    def lose_the_gate(self) -> None:
        self.world.slurm.lose_reservations()

    @precondition(lambda self: self.world.slurm.running)
    @rule(slot=st.sampled_from(sorted(SLOTS)), what=st.sampled_from(["up", "down", "off", "drain", "resume"]))
    def admin(self, slot: str, what: str) -> None:
        slurm = self.world.slurm
        match what:
            case "up":
                slurm.power_up([slot])
            case "down":
                slurm.down([slot], ADMINS)
            case "off":
                slurm.power_down([slot], force=True)
            case "drain":
                slurm.drain([slot], ADMINS)
            case _:
                slurm.resume([slot])

    @rule(left=st.sampled_from([None, None, 0, 1, 3, 10]))
    def disk(self, left: int | None) -> None:
        self.world.disk.writes_left = left

    @rule(hours=st.sampled_from([-5.0, -0.1, 0.1, 5.0]))
    def clock_jumps(self, hours: float) -> None:
        self.world.clock.jump(hours * 3600)

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
            self.folder.cleanup()


_OVER = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL})


def test_any_order_of_crashes_and_faults(template: Path) -> None:
    Crashes.template = template
    chosen = _LONG if os.environ.get("BURSTD_HYPOTHESIS") == "long" else _SHORT
    run_state_machine_as_test(Crashes, settings=chosen)
