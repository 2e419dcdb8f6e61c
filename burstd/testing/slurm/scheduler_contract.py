"""The contract of a Scheduler, as tests on a real Slurm. Subclass SchedulerContract, give it a cluster, run pytest.

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[ClusterUnderTest]:
        ...

    class TestMine(SchedulerContract):
        pass

Needs pytest, and a cluster that the tests have to themselves.
"""

from __future__ import annotations

import time
from functools import partial

import pytest

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.domain.slurm.node import LIFE_SIGN
from burstd.domain.slurm.shape import Gres
from burstd.testing.slurm.cluster import (
    ClusterUnderTest,
    ended_jobs,
    find_job,
    find_node,
    is_running,
    submit_job,
    wait_until,
)
from burstd.testing.slurm.jobs_contract import JobsContract

ROUNDS = 8
"""How often closing and submitting are made to meet."""


class SchedulerContract(JobsContract):
    """What holds for every Scheduler on every Slurm. The fixture ``cluster`` is the subclass's module's."""

    def test_all_slots_are_seen_also_without_machines(self, cluster: ClusterUnderTest) -> None:
        """A powered-down CLOUD node is there with its shape."""
        nodes = {n.name: n for n in cluster.scheduler.nodes()}
        assert set(cluster.slots) < set(nodes)
        last = nodes[cluster.slots[-1]]
        assert last.powered_down
        assert "CLOUD" in last.flags
        assert (last.cpus, last.memory_mib, last.partitions) == (2, 1000, ("burst",))
        assert (last.gres, last.gres_used) == ((Gres("gpu", "v100", 4),), ())
        assert last.features == {"cloud"}
        onprem = [n for n in nodes.values() if n.partitions == ("onprem",)]
        assert onprem
        assert all(n.up and n.version and n.boot_time > 1e9 for n in onprem)
        assert cluster.scheduler.version() >= (22, 5, 0)

    def test_the_gate_is_made_changed_and_taken_away(self, cluster: ClusterUnderTest) -> None:
        """Any list of nodes, none included, twice too; an unknown node changes nothing."""
        scheduler, slots = cluster.scheduler, cluster.slots

        def gate() -> frozenset[str]:
            return next((r.nodes for r in scheduler.reservations() if r.name == "burstd"), frozenset())

        for wanted in (slots[:3], slots[2:], (), (), slots):
            scheduler.set_gate(wanted)
            assert gate() == frozenset(wanted)
        found = next(r for r in scheduler.reservations() if r.name == "burstd")
        assert found.users == ("root",)
        assert "IGNORE_JOBS" in found.flags
        assert found.end - time.time() > 364 * 86400
        assert not found.job_id
        with pytest.raises(SchedulerRefused):
            scheduler.set_gate(["no-such-node"])
        assert gate() == frozenset(slots)

    def test_a_job_starts_when_the_gate_opens(self, cluster: ClusterUnderTest) -> None:
        """A booted node is used at once; the task that runs has a row of its own, and one when it is requeued."""
        slot, *_ = self.registered_slots(cluster, 1)
        assert cluster.scheduler.licenses() == {"solver": 1}
        array = submit_job(cluster, "--array=1-3 --gres=gpu:v100:3 -L solver:1")
        wait_until(lambda: (row := find_job(cluster, array)) and row.reason == "ReqNodeNotAvail", "the array waiting")
        before = time.monotonic()
        cluster.scheduler.set_gate(cluster.slots[1:])
        wait_until(lambda: is_running(cluster, f"{array}_1"), "its first task running")
        cluster.report(f"gate opened to job running: {time.monotonic() - before:.2f} s")
        rows = {j.id: j for j in cluster.scheduler.jobs()}
        assert set(rows) == {array, f"{array}_1"}
        assert (rows[array].tasks, rows[array].array_tasks) == (2, "2-3")
        assert (rows[f"{array}_1"].node_list, rows[f"{array}_1"].array_job_id) == ((slot,), array)
        assert rows[f"{array}_1"].start > 1e9
        busy = find_node(cluster, slot)
        assert busy.busy
        assert busy.cpus_allocated >= 1
        assert busy.gres_used == (Gres("gpu", "v100", 3),)
        assert cluster.scheduler.licenses() == {"solver": 0}
        cluster.shell(f"scancel {array}_[2-3]; scontrol requeue {array}_1")
        wait_until(
            lambda: (row := find_job(cluster, f"{array}_1")) and row.state is JobState.PENDING, "it pending again"
        )
        row = find_job(cluster, f"{array}_1")
        assert row is not None
        assert (row.restarts, row.tasks) == (1, 1)

    def test_a_gang_is_let_in_as_one(self, cluster: ClusterUnderTest) -> None:
        """Two nodes opened in one update are there for a job that needs both."""
        slots = self.registered_slots(cluster, 2)
        gang = submit_job(cluster, "-N2 --exclusive")
        wait_until(lambda: (row := find_job(cluster, gang)) and row.reason == "ReqNodeNotAvail", "the gang waiting")
        before = time.monotonic()
        cluster.scheduler.set_gate(cluster.slots[2:])
        wait_until(lambda: is_running(cluster, gang), "the gang running")
        cluster.report(f"gate opened to gang of two running: {time.monotonic() - before:.2f} s")
        row = find_job(cluster, gang)
        assert row is not None
        assert row.node_list == tuple(slots)

    def test_closing_never_races_with_starting(self, cluster: ClusterUnderTest) -> None:
        """Where a job got in before the gate closed it shows at once; afterwards none gets in."""
        (slot,) = self.registered_slots(cluster, 1)

        def kept_out(job_id: str) -> bool:
            row = find_job(cluster, job_id)
            return row is not None and row.reason == "ReqNodeNotAvail"

        got_in = 0
        for attempt in range(ROUNDS):
            cluster.scheduler.set_gate(cluster.slots[1:])
            late = submit_job(cluster, "--gres=gpu:4")
            # Earlier and earlier in Slurm's own work on the job.
            time.sleep(1.2 - 1.2 * attempt / ROUNDS)
            cluster.scheduler.set_gate(cluster.slots)
            seen = is_running(cluster, late)
            got_in += seen
            if not seen:
                wait_until(partial(kept_out, late), "it kept out")
                assert not find_node(cluster, slot).busy
            cluster.shell(f"scancel {late}")
            wait_until(lambda: not find_node(cluster, slot).busy, "an idle node")
        cluster.report(f"closing while submitting: {got_in} of {ROUNDS} jobs got in before the gate closed, none after")

    def test_a_bound_job_starts_with_thousands_before_it(self, cluster: ClusterUnderTest) -> None:
        """It starts on nodes that the gate holds, nobody else does, and it runs on when it is unbound."""
        slots = self.registered_slots(cluster, 2)
        crowd = submit_job(cluster, "--array=0-4999 --gres=gpu:4")
        # A task that was changed by itself is a job of its own.
        cluster.shell(f"scontrol update jobid={crowd}_[0-4998] nice=1")
        wanted = submit_job(cluster, "-N2 --gres=gpu:1", user="bob")
        assert sum(j.tasks for j in cluster.scheduler.jobs()) == 5001
        before = time.monotonic()
        cluster.scheduler.bind(wanted, "bob", slots)
        wait_until(lambda: cluster.shell(f"squeue -h -j {wanted} -o %T").strip() == "RUNNING", "the bound job running")
        cluster.report(f"bound to running, 5,000 jobs before it: {time.monotonic() - before:.2f} s")
        bound = [r for r in cluster.scheduler.reservations() if r.job_id]
        assert [(r.job_id, r.nodes, r.users) for r in bound] == [(wanted, frozenset(slots), ("bob",))]
        cluster.scheduler.unbind(wanted)
        assert is_running(cluster, wanted)
        assert not [r for r in cluster.scheduler.reservations() if r.job_id]
        assert [j.id for j in cluster.scheduler.jobs() if j.state is JobState.RUNNING] == [wanted]
        cluster.scheduler.unbind(wanted)

    def test_components_of_a_het_job_are_bound_one_by_one(self, cluster: ClusterUnderTest) -> None:
        """They start together once all are bound, nobody else gets on their nodes, and they run on when unbound."""
        slots = self.registered_slots(cluster, 2)
        cluster.scheduler.set_gate(cluster.slots)
        rival = submit_job(cluster, "--gres=gpu:1")
        het = submit_job(cluster, "-p burst --gres=gpu:4 : -p burst --gres=gpu:4", user="bob")
        parts = [f"{het}+{i}" for i in range(2)]
        cluster.scheduler.bind(parts[0], "bob", slots[:1])
        wait_until(lambda: (row := find_job(cluster, parts[0])) and bool(row.reservation), "one component bound")
        assert not any(is_running(cluster, part) for part in parts)
        cluster.scheduler.bind(parts[1], "bob", slots[1:])
        wait_until(lambda: all(is_running(cluster, part) for part in parts), "the components running")
        bound = {r.job_id: r.nodes for r in cluster.scheduler.reservations() if r.job_id}
        assert bound == {part: frozenset({slot}) for part, slot in zip(parts, slots, strict=True)}
        for part in parts:
            cluster.scheduler.unbind(part)
        assert all(is_running(cluster, part) for part in parts)
        assert not is_running(cluster, rival)
        assert not [r for r in cluster.scheduler.reservations() if r.job_id]

    def test_a_binding_taken_back_leaves_the_job_waiting(self, cluster: ClusterUnderTest) -> None:
        """It may be made twice; taken back, the job is not held; for a job that is gone nothing is left."""
        waiting = submit_job(cluster, "-N2")
        slot = cluster.slots[-1]
        for _ in range(2):
            cluster.scheduler.bind(waiting, "ada", [slot])
        row = find_job(cluster, waiting)
        assert row is not None
        assert row.reservation
        assert [(r.job_id, r.nodes) for r in cluster.scheduler.reservations() if r.job_id] == [
            (waiting, frozenset({slot}))
        ]
        cluster.scheduler.unbind(waiting)
        wait_until(
            lambda: (row := find_job(cluster, waiting)) and row.reason == "ReqNodeNotAvail", "the job waiting as before"
        )
        row = find_job(cluster, waiting)
        assert row is not None
        assert (row.state, row.reservation) == (JobState.PENDING, "")
        gone = submit_job(cluster, "")
        cluster.shell(f"scancel {gone}")
        with pytest.raises(SchedulerRefused):
            cluster.scheduler.bind(gone, "ada", [slot])
        assert not [r for r in cluster.scheduler.reservations() if r.job_id]

    def test_a_running_job_is_given_less_time(self, cluster: ClusterUnderTest) -> None:
        """Its user lengthened its limit when it was bound, which Slurm lets him."""
        (slot,) = self.registered_slots(cluster, 1)
        cluster.scheduler.set_gate(cluster.slots)
        longer = submit_job(cluster, "--time=5 --gres=gpu:1", user="bob")
        cluster.shell(f"scontrol hold {longer}", "bob")
        cluster.scheduler.bind(longer, "bob", [slot])
        cluster.shell(f"scontrol update jobid={longer} timelimit=60", "bob")
        cluster.shell(f"scontrol release {longer}", "bob")
        wait_until(partial(is_running, cluster, longer), "the bound job running")
        cluster.scheduler.limit_time(longer, 450.0)
        row = find_job(cluster, longer)
        assert row is not None
        assert row.time_limit_s == 420.0
        cluster.shell(f"scancel {longer}")
        cluster.scheduler.unbind(longer)

    def test_a_running_job_is_cancelled_and_one_that_waits_is_not(self, cluster: ClusterUnderTest) -> None:
        """One that was requeued since it was looked at must not be."""
        (slot,) = self.registered_slots(cluster, 1)
        cluster.scheduler.set_gate([name for name in cluster.slots if name != slot])
        running = submit_job(cluster, "--time=5 --gres=gpu:1")
        wait_until(partial(is_running, cluster, running), "the job running")
        cluster.scheduler.set_gate(cluster.slots)
        waiting = submit_job(cluster, "--time=5 --gres=gpu:1")
        for job in (running, waiting):
            cluster.scheduler.cancel_running(job)
        wait_until(lambda: not is_running(cluster, running), "the job cancelled")
        row = find_job(cluster, waiting)
        assert row is not None
        assert row.state is JobState.PENDING
        cluster.shell(f"scancel {waiting}")
        wait_until(lambda: {running, waiting} <= ended_jobs(cluster).keys(), "both over")
        assert ended_jobs(cluster)[running].node_list
        assert not ended_jobs(cluster)[waiting].ran

    def test_what_a_pending_job_asks_for_is_changed(self, cluster: ClusterUnderTest) -> None:
        """A list that leaves it no node is taken, and does not hold it for good."""
        cluster.scheduler.set_gate(cluster.slots)
        waiting = submit_job(cluster, "")
        gone = submit_job(cluster, "")
        cluster.shell(f"scancel {gone}")
        every = frozenset(cluster.slots)
        update = JobUpdate(every, every, (Gres("gpu", "", 2),), 200, 2, start_now=True)
        with pytest.raises(SchedulerRefused):
            cluster.scheduler.update_jobs([gone, waiting], update)
        row = find_job(cluster, waiting)
        assert row is not None
        assert set(row.excluded_nodes) == every
        assert (row.gres_per_node, row.memory_mib, row.memory_per_cpu, row.cpus) == (
            update.gres_per_node,
            200,
            False,
            2,
        )
        (slot,) = self.registered_slots(cluster, 1)
        cluster.scheduler.update_jobs([waiting], JobUpdate(every - {slot}, every - {slot}))
        cluster.scheduler.set_gate([name for name in cluster.slots if name != slot])
        wait_until(partial(is_running, cluster, waiting), "the job running on the node that is left")
        with pytest.raises(SchedulerRefused):
            cluster.scheduler.update_jobs([waiting], JobUpdate(frozenset(), frozenset()))
        cluster.shell(f"scancel {waiting}")

    def test_drain_resume_down_address_and_comment(self, cluster: ClusterUnderTest) -> None:
        """Each for several nodes in one call."""
        scheduler = cluster.scheduler
        slot, other, dead = self.registered_slots(cluster, 3)
        scheduler.drain([slot, other], "burstd: it = drained\n and why")
        drained = find_node(cluster, slot)
        assert drained.drained
        assert drained.reason == "burstd: it = drained and why"
        scheduler.resume([slot, other])
        assert not find_node(cluster, slot).drained
        assert find_node(cluster, slot).extra == ""
        sign = f"{LIFE_SIGN}1}}"
        scheduler.set_extra([slot, other], sign)
        assert [find_node(cluster, name).extra for name in (slot, other, dead)] == [sign, sign, ""]
        cluster.kill(dead)
        scheduler.down([dead], "burstd: it died")
        assert find_node(cluster, dead).state == "DOWN"
        scheduler.power_down([dead], force=True)
        last = cluster.slots[-2:]
        scheduler.set_address([(last[1], "10.9.9.1"), (last[0], "10.9.9.2")])
        assert [find_node(cluster, s).address for s in last] == ["10.9.9.2", "10.9.9.1"]
        waiting = submit_job(cluster, "")
        scheduler.set_comment([waiting], "burstd: waits | for a node, é")
        row = find_job(cluster, waiting)
        assert row is not None
        assert row.comment == "burstd: waits | for a node, é"
        assert scheduler.comments([waiting, "999999"]) == {waiting: row.comment}
        assert scheduler.comments(["999999"]) == {}
        with pytest.raises(SchedulerRefused):
            scheduler.set_comment(["999999"], "x")
        with pytest.raises(SchedulerRefused):
            scheduler.drain(["no-such-node"], "x")

    def test_a_drain_goes_with_the_machine_and_can_be_taken_off_a_slot(self, cluster: ClusterUnderTest) -> None:
        """Power-down takes it off and leaves the reason; one that came later is taken off by ``resume``."""
        scheduler = cluster.scheduler
        slot = self.registered_slots(cluster, 1)[0]
        scheduler.drain([slot], "burstd: rebalance hint")
        scheduler.power_down([slot])
        cluster.kill(slot)
        wait_until(lambda: find_node(cluster, slot).powered_down, "the slot powered down")
        left = find_node(cluster, slot)
        assert (left.drained, left.reason) == (False, "burstd: rebalance hint")
        scheduler.drain([slot], "burstd: rebalance hint")
        assert find_node(cluster, slot).drained
        scheduler.resume([slot])
        assert (find_node(cluster, slot).drained, find_node(cluster, slot).powered_down) == (False, True)
        assert self.registered_slots(cluster, 1)[0] == slot

    def test_a_slot_is_powered_up_and_down_and_used_again(self, cluster: ClusterUnderTest) -> None:
        """Slurm calls its programs, and a machine makes the slot a node; also one that Slurm was not told of."""
        scheduler = cluster.scheduler
        slot = cluster.slots[7]
        wait_until(lambda: find_node(cluster, slot).powered_down, "the slot powered down")
        called = partial(_called_since, cluster, len(cluster.power_calls()), slot)
        scheduler.power_up([slot])
        wait_until(lambda: "POWERING_UP" in find_node(cluster, slot).flags, "it powering up")
        wait_until(partial(called, "resume"), "a call of ResumeProgram")
        scheduler.set_address(cluster.boot([slot]))
        cluster.start_slurmd(slot)
        wait_until(lambda: find_node(cluster, slot).up, "it up")
        assert find_node(cluster, slot).slurmd_start > 1e9
        scheduler.power_down([slot])
        wait_until(partial(called, "suspend"), "a call of SuspendProgram")
        cluster.kill(slot)
        wait_until(lambda: find_node(cluster, slot).powered_down, "it powered down")
        # Without being told: a slot that is powered down takes a slurmd that registers, and nothing is called.
        calls = len(cluster.power_calls())
        scheduler.set_address(cluster.boot([slot]))
        cluster.start_slurmd(slot)
        wait_until(lambda: find_node(cluster, slot).up, "it up again")
        assert not cluster.power_calls()[calls:]

    def test_a_boot_that_fails_leaves_job_and_slot_usable(self, cluster: ClusterUnderTest) -> None:
        """A slot that was given up by Slurm, and one that was taken back, can be used again; the job waits on."""
        scheduler = cluster.scheduler
        given_up, taken_back = cluster.slots[4:6]
        waiting = submit_job(cluster, f"-w {given_up}")
        before = len(cluster.power_calls())
        scheduler.power_up([given_up, taken_back])
        wait_until(
            lambda: all("POWERING_UP" in find_node(cluster, s).flags for s in (given_up, taken_back)),
            "both powering up",
        )
        scheduler.power_down([taken_back], force=True)
        failed = partial(_called_since, cluster, before, given_up, "resumefail")
        wait_until(failed, "a call of ResumeFailProgram", cluster.resume_timeout_s + 20)
        wait_until(lambda: find_node(cluster, given_up).state == "DOWN", "the one given up DOWN")
        wait_until(lambda: find_node(cluster, taken_back).powered_down, "the one taken back powered down")
        row = find_job(cluster, waiting)
        assert row is not None
        assert (row.state, row.restarts) == (JobState.PENDING, 0)
        assert "Held" not in row.reason
        scheduler.power_down([given_up], force=True)
        wait_until(
            lambda: find_node(cluster, given_up).powered_down and find_node(cluster, given_up).state == "IDLE",
            "it idle again",
        )
        scheduler.set_address(cluster.boot([given_up]))
        cluster.start_slurmd(given_up)
        wait_until(lambda: find_node(cluster, given_up).up, "it up")

    def test_without_a_gate_slurm_asks_for_nodes_by_itself(self, cluster: ClusterUnderTest) -> None:
        """The job that finds no gate makes Slurm call ResumeProgram."""
        slot = cluster.slots[6]
        wait_until(lambda: find_node(cluster, slot).powered_down, "the slot powered down")
        before = len(cluster.power_calls())
        cluster.scheduler.set_gate([])
        submit_job(cluster, f"-w {slot}")
        wait_until(partial(_called_since, cluster, before, slot, "resume"), "a call of ResumeProgram")
        cluster.shell("scancel -u ada")
        wait_until(lambda: not cluster.scheduler.jobs(), "an empty queue")
        cluster.scheduler.power_down([slot], force=True)
        wait_until(lambda: find_node(cluster, slot).powered_down, "the slot powered down again")

    def test_slurmctld_may_come_and_go(self, cluster: ClusterUnderTest) -> None:
        """Down it is unavailable, which is no empty queue; back again it has kept gate, nodes, addresses and jobs."""
        slots = self.registered_slots(cluster, 2)
        scheduler = cluster.scheduler
        cluster.scheduler.set_gate(cluster.slots[1:])
        inside = submit_job(cluster, f"-w {slots[0]}")
        wait_until(lambda: is_running(cluster, inside), "a job running")
        waiting = submit_job(cluster, "--array=1-5 --gres=gpu:v100:2")
        addresses = [(n.name, n.address) for n in scheduler.nodes() if n.name in slots]
        cluster.stop_slurmctld()
        with pytest.raises(SchedulerUnavailable):
            scheduler.nodes()
        cluster.start_slurmctld()
        wait_until(lambda: all(find_node(cluster, s).up for s in slots), "the nodes up")
        assert next(r.nodes for r in scheduler.reservations() if r.name == "burstd") == frozenset(cluster.slots[1:])
        assert [(n.name, n.address) for n in scheduler.nodes() if n.name in slots] == addresses
        rows = {j.id: j for j in scheduler.jobs()}
        assert {i: (j.state, j.tasks) for i, j in rows.items()} == {
            inside: (JobState.RUNNING, 1),
            waiting: (JobState.PENDING, 5),
        }


def _called_since(cluster: ClusterUnderTest, before: int, slot: str, kind: str) -> bool:
    return any(k == kind and slot in nodes for k, nodes in cluster.power_calls()[before:])
