"""Jobs that Slurm shows as running though it never began their script."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from subprocess import PIPE
from threading import Barrier

import pytest

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.errors import NodeNotReady, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.mounts.unstarted import CHECK_AFTER_S, RECHECK_S, RECOVERY_S, BatchScripts, UnstartedJobs
from burstd.slurm.commands.job_facts import JobFacts
from providers.sandbox.boxes.box import Box
from tests.crash.workers import QueuedWorkers
from tests.mounts.rig import ADA, MountSite
from tests.mounts.test_controller import run_all
from tests.planner.worlds import NOW, claim, job
from tests.virtual.clock import VirtualClock

CLAIMS = {slot: claim(slot, ClaimState.IN_SERVICE, address="10.0.0.1") for slot in ("cpu1", "cpu2")}
RUNNING = job("7", state=JobState.RUNNING, node_list=("cpu1", "cpu2"), start=NOW - 60)


@dataclass
class World:
    """slurmctld, started 30 s ago, and nodes that have the scripts of ``begun``."""

    begun: set[tuple[str, str]] = field(default_factory=set)
    slurmctld_start: float | None = NOW - 30
    reachable: bool = True
    asked: int = 0

    def __post_init__(self) -> None:
        self.clock = VirtualClock(NOW)
        self.workers = QueuedWorkers(self.clock, {})
        self.unstarted = UnstartedJobs(self.workers, self.clock, self.read_start, self.script_begun)

    def read_start(self) -> float:
        if self.slurmctld_start is None:
            raise SchedulerUnavailable("no answer")
        return self.slurmctld_start

    def script_begun(self, machine: Claim, one: Job) -> bool:
        self.asked += 1
        if not self.reachable:
            raise NodeNotReady("no answer")
        return (one.id, machine.slot) in self.begun

    def loops(self, seconds: float, *jobs: Job) -> dict[str, int]:
        for _ in range(int(seconds)):
            self.unstarted.step(jobs, CLAIMS)
            run_all(self.workers)
            self.clock._now += 1.0
        return dict(self.unstarted.jobs())


LONG_S = CHECK_AFTER_S + 5 * RECHECK_S


def test_a_job_that_no_node_has_is_told_after_two_checks() -> None:
    world = World()
    assert world.loops(CHECK_AFTER_S + RECHECK_S, RUNNING) == {}
    assert world.loops(RECHECK_S, RUNNING) == {"7": 0}
    assert world.loops(1, replace(RUNNING, state=JobState.PENDING, node_list=())) == {}
    assert world.loops(LONG_S, replace(RUNNING, restarts=1)) == {"7": 1}
    assert World(slurmctld_start=NOW - 66).loops(LONG_S, RUNNING) == {"7": 0}, "its start is set after slurmctld's"


@pytest.mark.parametrize(
    ("world", "one"),
    [
        pytest.param(World(begun={("7", "cpu2")}), RUNNING, id="one of its nodes has it"),
        pytest.param(World(slurmctld_start=NOW - 61 - RECOVERY_S), RUNNING, id="slurmctld was there before the job"),
        pytest.param(World(slurmctld_start=None), RUNNING, id="slurmctld does not answer"),
        pytest.param(World(reachable=False), RUNNING, id="the node does not answer"),
        pytest.param(World(), replace(RUNNING, node_list=("cpu1", "op1")), id="on a node without trees as well"),
        pytest.param(World(), replace(RUNNING, state=JobState.CONFIGURING), id="its prolog runs"),
        pytest.param(World(), replace(RUNNING, het_job_id="6", het_offset=1), id="a component without a script"),
    ],
)  # fmt: skip
def test_what_may_have_begun_is_left_alone(world: World, one: Job) -> None:
    assert world.loops(LONG_S, one) == {}


def test_each_run_that_has_begun_is_looked_for_once() -> None:
    world = World(begun={("7", "cpu1")})
    world.loops(LONG_S, RUNNING)
    assert world.asked == 1
    earlier = World(slurmctld_start=NOW - 61 - RECOVERY_S)
    earlier.loops(LONG_S, RUNNING)
    assert earlier.asked == 0


def test_nodes_of_a_job_that_has_not_begun_are_asked_side_by_side() -> None:
    world, others = World(), Barrier(2, timeout=20)
    claims = {slot: claim(slot, ClaimState.IN_SERVICE) for slot in ("cpu1", "cpu2", "cpu3")}

    def begun(machine: Claim, one: Job) -> bool:
        if machine.slot != "cpu1":
            others.wait()
        return world.script_begun(machine, one)

    unstarted = UnstartedJobs(world.workers, world.clock, world.read_start, begun)
    for _ in range(int(CHECK_AFTER_S + 2 * RECHECK_S)):
        unstarted.step([replace(RUNNING, node_list=tuple(claims))], claims)
        run_all(world.workers)
        world.clock._now += 1.0
    assert dict(unstarted.jobs()) == {"7": 0}


FACTS = JobFacts(
    "41", "7", "ada", ADA.uid, ADA.gid, "", ("burst",), "RUNNING", "0:0", ("node",),
    work_dir="/", std_out="/out", std_err="",
)  # fmt: skip


@pytest.mark.boxes
def test_a_node_tells_whether_it_has_a_script(site: MountSite, node: tuple[Box, Claim]) -> None:
    box, machine = node
    one = job("7", state=JobState.RUNNING)

    def begun(facts: JobFacts = FACTS) -> bool:
        return BatchScripts(site.validator.connect, lambda _job: facts).have_begun(machine, one)

    def with_processes(*commands: str) -> bool:
        """With processes of the node that last until their standard input ends."""
        with ExitStack() as stack:
            for command in commands:
                process = stack.enter_context(box.popen(["bash", "-c", command], stdin=PIPE, stdout=PIPE))
                assert process.stdin is not None
                assert process.stdout is not None
                stack.callback(process.wait)
                stack.callback(process.stdin.close)
                process.stdin.write(b"here\n")
                process.stdin.flush()
                assert process.stdout.readline() == b"here\n"
            return begun()

    assert not begun()
    assert not with_processes("exec -a 'slurmstepd: [41.extern]' cat", "exec -a 'slurmstepd: [410.batch]' cat")
    assert with_processes("exec -a 'slurmstepd: [41.batch]' cat")
    assert with_processes("SLURM_JOB_ID=41 exec cat")
    for other in (replace(FACTS, std_out=""), replace(FACTS, state="COMPLETING"), replace(FACTS, restarts=1)):
        assert begun(other), "what has no script, or runs no more, is left alone"
