"""The simulated Slurm does what was seen of the real one: power saving, the gate, bindings, queue, failures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from tests.virtual.clock import VirtualClock
from tests.virtual.job import JobSpec
from tests.virtual.machines import Machines
from tests.virtual.power import SlurmConf
from tests.virtual.slurm import NodeSpec, SimSlurm

CLOUD = tuple(f"cl{i}" for i in range(1, 5))
SHAPE = Shape(2, 1000, (Gres("gpu", "v100", 4),), frozenset({"aws"}))


class World:
    """A cluster of one on-premise node and four cloud slots; ``auto``: ResumeProgram boots and registers at once."""

    def __init__(self, *, gate: bool = True, auto: bool = False, return_to_service: int = 2) -> None:
        self.clock = VirtualClock()
        self.slurm = SimSlurm(
            self.clock,
            [NodeSpec(("op1",), Shape(2, 1000), ("onprem",), cloud=False), NodeSpec(CLOUD, SHAPE, ("burst",))],
            SlurmConf(return_to_service=return_to_service),
        )
        self.machines = Machines(self.clock, self.slurm)
        self.called: list[tuple[str, tuple[str, ...]]] = []
        self.slurm.programs.resume = self._resume if auto else lambda nodes: self._note("resume", nodes)
        self.slurm.programs.suspend = lambda nodes: self._note("suspend", nodes)
        self.slurm.programs.resume_fail = lambda nodes: self._note("fail", nodes)
        if gate:
            self.slurm.set_gate(CLOUD)

    def _note(self, program: str, nodes: Sequence[str]) -> None:
        self.called.append((program, tuple(nodes)))

    def _resume(self, nodes: Sequence[str]) -> None:
        self._note("resume", nodes)
        for node in nodes:
            self.boot(node)

    def boot(self, node: str) -> None:
        address = f"10.0.0.{node[2:]}"
        self.machines.start_slurmd(self.machines.boot(address, 0.0), node)

    def up(self, *nodes: str) -> None:
        self.slurm.power_up(nodes)
        self.clock.advance(2)
        for node in nodes:
            self.boot(node)
        self.clock.advance(1)

    def node(self, name: str) -> Node:
        return next(n for n in self.slurm.nodes() if n.name == name)

    def job(self, job_id: str) -> Job:
        return next(j for j in self.slurm.jobs() if j.id == job_id)

    def ended(self, job_id: str) -> list[JobState]:
        return [j.state for j in self.slurm.all_of(job_id)]


def test_a_slot_goes_up_and_down_as_slurm_counts() -> None:
    w = World()
    assert w.node("cl1").powered_down
    assert w.node("cl1").reservation == "burstd"
    w.slurm.power_up(["cl1"])
    assert "POWER_UP" in w.node("cl1").flags
    w.clock.advance(1)
    assert w.node("cl1").flags >= {"POWERING_UP", "NOT_RESPONDING"}
    assert w.called == [("resume", ("cl1",))]
    w.boot("cl1")
    w.clock.advance(1)
    assert w.node("cl1").up
    assert w.node("cl1").address == "10.0.0.1"
    w.slurm.power_down(["cl1"])
    w.clock.advance(1)
    assert "POWERING_DOWN" in w.node("cl1").flags
    w.slurm.power_up(["cl1"])
    w.clock.advance(w.slurm.conf.suspend_timeout_s)
    assert w.node("cl1").powered_down, "a power_up while it powers down is ignored"
    assert w.node("cl1").address == "cl1"
    assert w.called[1:] == [("suspend", ("cl1",))]


def test_a_registration_between_power_up_and_the_scan_leaves_power_up_behind() -> None:
    w = World()
    w.slurm.power_up(["cl1"])
    w.boot("cl1")
    w.clock.advance(5)
    assert w.node("cl1").state == "IDLE"
    assert not w.node("cl1").up
    w.slurm.power_down(["cl1"])
    w.clock.advance(40)
    assert w.called == [("suspend", ("cl1",)), ("resume", ("cl1",))]


@pytest.mark.parametrize("force", [False, True])
def test_power_down_of_a_busy_node_waits_unless_forced(force: bool) -> None:
    w = World(gate=False, auto=True)
    job = w.slurm.submit(JobSpec(run_s=100))
    w.clock.advance(10)
    assert w.job(job).state is JobState.RUNNING
    w.slurm.power_down(["cl1"], force=force)
    w.clock.advance(5)
    if force:
        assert w.job(job).state is JobState.PENDING
        assert w.job(job).reason == "BeginTime"
        assert "POWERING_DOWN" in w.node("cl1").flags
    else:
        assert w.job(job).state is JobState.RUNNING
        assert "POWER_DOWN" in w.node("cl1").flags
        w.clock.advance(100)
        assert "POWERING_DOWN" in w.node("cl1").flags
        assert w.ended(job) == [JobState.COMPLETED]


def test_resume_timeout_leaves_the_node_down_and_powered_down() -> None:
    w = World(gate=False)
    job = w.slurm.submit(JobSpec())
    w.clock.advance(2)
    assert w.job(job).state is JobState.CONFIGURING
    assert w.node("cl1").busy
    w.clock.advance(600)
    assert w.job(job).state is JobState.PENDING
    node = w.node("cl1")
    assert (node.state, "POWERED_DOWN" in node.flags, node.reason) == ("DOWN", True, "ResumeTimeout reached")
    assert w.called == [("resume", ("cl1",)), ("fail", ("cl1",))]
    w.slurm.power_down(["cl1"], force=True)
    w.clock.advance(40)
    assert w.node("cl1").powered_down
    assert w.node("cl1").state == "IDLE"


def test_a_clock_set_forward_makes_slurm_give_up_a_boot_and_one_set_back_makes_it_patient() -> None:
    w = World()
    w.slurm.power_up(["cl1"])
    w.clock.advance(2)
    w.clock.jump(-7200)
    w.clock.advance(1000)
    assert "POWERING_UP" in w.node("cl1").flags
    w.clock.jump(14400)
    w.clock.advance(0)
    assert w.node("cl1").state == "DOWN"


@pytest.mark.parametrize(("return_to_service", "state"), [(0, "DOWN"), (2, "IDLE")])
def test_a_node_that_was_down_comes_back_by_itself_only_if_told_so(return_to_service: int, state: str) -> None:
    w = World(return_to_service=return_to_service)
    w.up("cl1")
    w.slurm.down(["cl1"], "broken")
    w.boot("cl1")
    w.clock.advance(1)
    assert w.node("cl1").state == state


def test_nothing_starts_behind_the_gate_and_soon_after_it_opens() -> None:
    w = World()
    job = w.slurm.submit(JobSpec(gres_per_node=(Gres("gpu", "", 4),)))
    w.up("cl1", "cl2")
    w.clock.advance(100)
    assert (w.job(job).state, w.job(job).reason) == (JobState.PENDING, "ReqNodeNotAvail")
    w.slurm.set_gate(["cl2", "cl3", "cl4"])
    w.clock.advance(1)
    assert w.job(job).node_list == ("cl1",)
    assert w.node("cl1").state == "MIXED"
    assert w.node("cl1").gres_used == (Gres("gpu", "v100", 4),)
    w.slurm.set_gate(CLOUD)
    other = w.slurm.submit(JobSpec())
    w.clock.advance(61)
    assert w.ended(job) == [JobState.COMPLETED], "a running job stays when the gate closes"
    assert w.job(other).state is JobState.PENDING


def test_a_bound_job_alone_gets_past_the_gate() -> None:
    w = World()
    small = w.slurm.submit(JobSpec())
    gang = w.slurm.submit(JobSpec(nodes=2, exclusive=True))
    w.up("cl1", "cl2")
    w.slurm.bind(gang, "ann", ["cl1", "cl2"])
    assert [r.job_id for r in w.slurm.reservations()] == ["", gang]
    w.clock.advance(1)
    assert w.job(gang).node_list == ("cl1", "cl2")
    assert w.job(small).state is JobState.PENDING
    with pytest.raises(SchedulerRefused, match="not pending"):
        w.slurm.bind(gang, "ann", ["cl3"])
    w.slurm.unbind(gang)
    assert w.job(gang).state is JobState.RUNNING
    assert len(w.slurm.reservations()) == 1


def test_a_job_that_did_not_start_goes_back_to_the_queue_when_unbound() -> None:
    w = World()
    job = w.slurm.submit(JobSpec())
    w.slurm.bind(job, "ann", ["cl1", "cl2"])
    w.slurm.unbind(job)
    w.up("cl1")
    w.slurm.set_gate(["cl2"])
    w.clock.advance(1)
    assert w.job(job).node_list == ("cl1",)


def test_a_gang_waits_for_all_its_nodes_and_small_jobs_do_not_take_them_meanwhile() -> None:
    w = World()
    w.up(*CLOUD)
    first = w.slurm.submit(JobSpec(exclusive=True, run_s=50))
    gang = w.slurm.submit(JobSpec(nodes=4, exclusive=True))
    late = w.slurm.submit(JobSpec(time_limit_s=7200))
    short = w.slurm.submit(JobSpec(time_limit_s=600, run_s=20))
    w.slurm.set_gate([])
    w.clock.advance(1)
    assert [w.job(j).state for j in (first, short)] == [JobState.RUNNING] * 2, "a short one is filled in"
    assert (w.job(gang).reason, w.job(late).reason) == ("Resources", "Priority")
    w.clock.advance(60)
    assert len(w.job(gang).node_list) == 4


def test_without_the_gate_slurm_boots_by_itself_and_prefers_what_is_up() -> None:
    w = World(gate=False, auto=True)
    one = w.slurm.submit(JobSpec(cpus_per_node=2))
    w.clock.advance(3)
    assert w.job(one).node_list == ("cl1",)
    w.up("cl4")
    two = w.slurm.submit(JobSpec(cpus_per_node=2))
    w.clock.advance(3)
    assert w.job(two).node_list == ("cl4",)


def test_a_lost_reservation_lets_waiting_jobs_through() -> None:
    w = World(auto=True)
    job = w.slurm.submit(JobSpec())
    w.clock.advance(10)
    assert w.job(job).state is JobState.PENDING
    w.slurm.lose_reservations()
    w.clock.advance(3)
    assert w.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("requeue", [True, False])
def test_a_machine_that_dies_under_a_job_is_seen_after_the_slurmd_timeout(requeue: bool) -> None:
    w = World()
    w.up("cl1")
    w.slurm.set_gate(["cl2", "cl3", "cl4"])
    job = w.slurm.submit(JobSpec(run_s=1000, requeue=requeue))
    w.clock.advance(1)
    w.machines.end("10.0.0.1")
    w.clock.advance(40)
    assert "NOT_RESPONDING" in w.node("cl1").flags
    assert w.job(job).state is JobState.RUNNING
    w.clock.advance(270)
    assert (w.node("cl1").state, w.node("cl1").reason) == ("DOWN", "Not responding")
    if requeue:
        assert (w.job(job).reason, w.job(job).restarts) == ("BeginTime", 1)
        w.boot("cl1")
        w.clock.advance(130)
        assert w.job(job).state is JobState.RUNNING
    else:
        assert w.ended(job) == [JobState.NODE_FAIL]


def test_jobs_run_on_while_slurmctld_is_down_and_their_end_is_heard_afterwards() -> None:
    w = World()
    w.up("cl1")
    w.slurm.set_gate(["cl2", "cl3", "cl4"])
    job = w.slurm.submit(JobSpec(run_s=100))
    w.clock.advance(1)
    w.slurm.power_up(["cl2"])
    w.clock.advance(2)
    w.slurm.stop()
    for call in (w.slurm.jobs, w.slurm.nodes, w.slurm.reservations, lambda: w.slurm.set_gate(CLOUD)):
        with pytest.raises(SchedulerUnavailable):
            call()
    w.boot("cl2")
    w.clock.advance(500)
    w.slurm.start()
    assert w.node("cl2").up
    assert w.job(job).state is JobState.COMPLETING
    w.clock.advance(1)
    assert w.ended(job) == [JobState.COMPLETED]
    assert len(w.slurm.reservations()) == 1


def test_arrays_are_one_row_while_they_wait_and_keep_to_their_throttle() -> None:
    w = World(gate=False, auto=True)
    job = w.slurm.submit(JobSpec(array=5, array_limit=2, run_s=30))
    assert [(j.id, j.tasks, j.array_tasks) for j in w.slurm.jobs()] == [(job, 5, "0-4")]
    w.clock.advance(5)
    assert sorted((j.id, j.state) for j in w.slurm.jobs()) == [
        (job, JobState.PENDING),
        (f"{job}_0", JobState.RUNNING),
        (f"{job}_1", JobState.RUNNING),
    ]
    assert (w.job(job).array_tasks, w.job(job).reason) == ("2-4", "JobArrayTaskLimit")
    w.clock.advance(100)
    assert w.ended(job) == [JobState.COMPLETED] * 5


def test_a_het_job_starts_with_all_its_parts_or_not_at_all() -> None:
    w = World(gate=False, auto=True)
    small, whole = JobSpec(partitions=("onprem",), cpus_per_node=2), JobSpec(nodes=2, exclusive=True)
    blocker = w.slurm.submit(small)
    het = w.slurm.submit(whole, small)
    w.clock.advance(30)
    assert [j.state for j in w.slurm.all_of(het)] == [JobState.PENDING] * 2
    assert all(w.node(n).powered_down for n in CLOUD)
    w.slurm.cancel(blocker)
    w.clock.advance(10)
    assert [j.state for j in w.slurm.all_of(het)] == [JobState.RUNNING] * 2
    assert [j.id for j in w.slurm.jobs()] == [f"{het}+0", f"{het}+1"]


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(gres_per_node=(Gres("gpu", "a100", 1),)),
        JobSpec(memory_mib=1001),
        JobSpec(nodes=5),
        JobSpec(constraint="intel"),
        JobSpec(partitions=("nowhere",)),
    ],
)
def test_what_the_nodes_could_never_do_is_refused_at_submission(spec: JobSpec) -> None:
    with pytest.raises(SchedulerRefused, match="configuration"):
        World().slurm.submit(spec)


def test_held_limited_later_and_cancelled_jobs_do_not_start() -> None:
    w = World(gate=False, auto=True)
    held = w.slurm.submit(JobSpec(limited_by="JobHeldUser"))
    later = w.slurm.submit(JobSpec(begin_in_s=100))
    gone = w.slurm.submit(JobSpec())
    w.slurm.cancel(gone)
    w.clock.advance(50)
    assert (w.job(held).reason, w.job(held).priority, w.job(later).reason) == ("JobHeldUser", 0, "BeginTime")
    assert w.ended(gone) == [JobState.CANCELLED]
    w.slurm.limit(held, "")
    w.clock.advance(60)
    assert [w.job(j).state for j in (held, later)] == [JobState.RUNNING] * 2
    w.slurm.requeue(held)
    w.clock.advance(1)
    assert (w.job(held).state, w.job(held).restarts) == (JobState.RUNNING, 1)


def test_the_time_limit_ends_a_job() -> None:
    w = World(gate=False, auto=True)
    job = w.slurm.submit(JobSpec(run_s=1000, time_limit_s=60))
    w.clock.advance(70)
    assert w.ended(job) == [JobState.TIMEOUT]


def test_two_partitions_are_tried_in_order() -> None:
    w = World()
    both = JobSpec(partitions=("onprem", "burst"), cpus_per_node=2)
    one, two = w.slurm.submit(both), w.slurm.submit(both)
    w.clock.advance(1)
    assert w.job(one).node_list == ("op1",)
    w.up("cl1")
    w.slurm.set_gate(["cl2"])
    w.clock.advance(1)
    assert w.job(two).node_list == ("cl1",)


@pytest.mark.slow
def test_ten_thousand_jobs_pass_through_and_nothing_is_left_allocated() -> None:
    clock = VirtualClock()
    names = tuple(f"n{i}" for i in range(200))
    slurm = SimSlurm(clock, [NodeSpec(names, Shape(8, 8000), ("onprem",), cloud=False)])
    for i in range(10_000):
        cpus, nodes = 1 + i % 8, 1 + (i % 50 == 0)
        clock.advance(3)
        slurm.submit(JobSpec(partitions=("onprem",), cpus_per_node=cpus, nodes=nodes, run_s=100 + i % 700))
    assert len(slurm.jobs()) + len(slurm.ended) == 10_000
    clock.advance(100_000)
    assert {j.state for j in slurm.ended} == {JobState.COMPLETED}
    assert len(slurm.ended) == 10_000
    assert all(n.state == "IDLE" and not n.cpus_allocated and not n.gres_used for n in slurm.nodes())
