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
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from burstd.model.errors import SchedulerRefused, SchedulerUnavailable
from burstd.model.job import Job, JobState
from burstd.model.shape import Gres
from burstd.testing.slurm_cluster import ClusterUnderTest, job, node, running, submit, until

ROUNDS = 8
"""How often closing and submitting are made to meet."""

V100 = (Gres("gpu", "v100", 2),)
ASKED: Sequence[tuple[str, dict[str, Any]]] = (
    ("", {"nodes": 1, "cpus": 1, "gres_per_node": (), "gres_per_job": (), "exclusive": False, "time_limit_s": 0}),
    ("-J $'a|b\\nc é \\x1f' --comment=$'x|y\\tz'", {"name": "a|b\nc é \x1f", "comment": "x|y\tz"}),
    ("--array=0-9999%7", {"tasks": 10_000, "tasks_limit": 7, "array_tasks": "0-9999"}),
    ("--array=1-10:3,15", {"tasks": 5, "tasks_limit": 0}),
    ("--array=5", {"tasks": 1, "array_tasks": "5"}),
    ("--gres=gpu:v100:2", {"gres_per_node": V100, "gres_per_job": ()}),
    ("--gpus=8", {"gres_per_node": (), "gres_per_job": (Gres("gpu", "", 8),), "nodes": 1}),
    ("-N2 --gpus-per-node=v100:2", {"nodes": 2, "nodes_max": 2, "gres_per_node": V100}),
    ("-n4 --gpus-per-task=1", {"cpus": 4, "gres_per_job": (Gres("gpu", "", 4),)}),
    ("--gpus-per-socket=v100:1 --sockets-per-node=2 -n2", {"gres_per_node": V100}),
    ("-n4 --ntasks-per-node=1", {"nodes": 4, "cpus": 4}),
    ("-c2", {"cpus": 2}),
    ("-n2 --mincpus=2", {"cpus_per_node": 2}),
    ("--mem=500", {"memory_mib": 500, "memory_per_cpu": False}),
    ("-n3 --mem-per-cpu=100", {"memory_mib": 100, "memory_per_cpu": True, "cpus": 3}),
    ("--gpus-per-node=2 --mem-per-gpu=300", {"memory_mib": 600, "memory_per_cpu": False}),
    ("--exclusive", {"exclusive": True}),
    ("--exclusive=user", {"exclusive": False}),
    ("-C 'cloud&cloud'", {"constraint": "cloud&cloud"}),
    ("-w {0} -x {1},{2}", {"node_list": ("{0}",), "excluded_nodes": ("{1}", "{2}")}),
    ("-L solver:1", {"licenses": "solver:1"}),
    ("--hold", {"reason": "JobHeldUser", "priority": 0}),
    ("-d singleton", {"dependency": "singleton(unfulfilled)"}),
    ("-t 1-02:03", {"time_limit_s": 93780.0}),
    ("--requeue", {"requeue": True}),
    ("--no-requeue", {"requeue": False}),
    ("-p onprem,burst --gres=gpu:v100:2", {"partitions": ("onprem", "burst")}),
)
"""Options of sbatch, and what the job's row must say. {0}, {1} ... stand for slots."""


class SchedulerContract:
    """What holds for every Scheduler on every Slurm. The fixture ``cluster`` is the subclass's module's."""

    @pytest.fixture(autouse=True)
    def fresh(self, cluster: ClusterUnderTest) -> Iterator[None]:
        """Every test begins with all slots behind the gate and an empty queue."""
        cluster.scheduler.set_gate(cluster.slots)
        yield
        cluster.shell("scancel -u ada; scancel -u bob")
        until(lambda: not cluster.scheduler.jobs(), "an empty queue")
        for reservation in cluster.scheduler.reservations():
            if reservation.job_id:
                cluster.scheduler.unbind(reservation.job_id)

    def up(self, cluster: ClusterUnderTest, count: int) -> Sequence[str]:
        """The first slots, with machines that are registered behind the gate."""
        slots = cluster.slots[:count]
        missing = [s for s in slots if s not in cluster.machines()]
        if missing:
            until(lambda: all(node(cluster, s).powered_down for s in missing), f"{missing} powered down")
            cluster.scheduler.set_address(cluster.boot(missing))
            for slot in missing:
                cluster.start_slurmd(slot)
        until(lambda: all(n.up and not n.busy for n in cluster.scheduler.nodes() if n.name in slots), f"{slots} up")
        return slots

    @staticmethod
    def _called_since(cluster: ClusterUnderTest, before: int, slot: str, kind: str) -> bool:
        return any(k == kind and slot in nodes for k, nodes in cluster.calls()[before:])

    def test_jobs_of_every_kind_are_seen_as_they_were_asked_for(self, cluster: ClusterUnderTest) -> None:
        """Each row of ASKED, all in the queue at once, comes back as it was asked for."""
        expected = {}
        commands = []
        for options, fields in ASKED:
            partition = "" if "-p " in options else "-p burst "
            filled = options.format(*cluster.slots) if "{" in options else options
            commands.append(f"sbatch --parsable -o /dev/null {partition}{filled} --wrap 'sleep 9'")
            filled_fields = {
                k: tuple(w.format(*cluster.slots) for w in v) if k in ("node_list", "excluded_nodes") else v
                for k, v in fields.items()
            }
            expected[len(commands) - 1] = filled_fields
        ids = cluster.shell("set -e; " + "; ".join(commands), "ada").split()
        rows = {j.id: j for j in cluster.scheduler.jobs()}
        assert set(rows) == set(ids)
        wrong = {}
        for index, fields in expected.items():
            row = rows[ids[index]]
            assert row.state is JobState.PENDING
            assert row.user == "ada"
            found = {name: getattr(row, name) for name in fields}
            if found != fields:
                wrong[ASKED[index][0]] = (found, fields)
        assert not wrong

    def test_times_dependencies_and_components_are_seen(self, cluster: ClusterUnderTest) -> None:
        """Times are the system clock's, reasons have their short names, a het job has a row for each component."""
        now = time.time()
        first = submit(cluster, "")
        later = submit(cluster, "--begin=now+1hour")
        after = submit(cluster, f"-d afterok:{first}")
        het = submit(cluster, "-p burst --gres=gpu:1 : -p burst -N2")
        rows = {j.id: j for j in cluster.scheduler.jobs()}
        assert set(rows) == {first, later, after, f"{het}+0", f"{het}+1"}
        assert abs(rows[first].submitted - now) < 5
        assert abs(rows[later].eligible - now - 3600) < 5
        assert rows[after].dependency.startswith(f"afterok:{first}")
        parts = [rows[f"{het}+{i}"] for i in range(2)]
        assert [(p.het_job_id, p.het_offset, p.nodes) for p in parts] == [(het, 0, 1), (het, 1, 2)]
        until(lambda: (row := job(cluster, later)) and row.reason == "BeginTime", "the reason BeginTime")
        until(lambda: (row := job(cluster, after)) and row.reason == "Dependency", "the reason Dependency")
        until(lambda: (row := job(cluster, first)) and row.reason == "ReqNodeNotAvail", "the reason ReqNodeNotAvail")

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
        slot, *_ = self.up(cluster, 1)
        array = submit(cluster, "--array=1-3 --gres=gpu:v100:3")
        until(lambda: (row := job(cluster, array)) and row.reason == "ReqNodeNotAvail", "the array waiting")
        before = time.monotonic()
        cluster.scheduler.set_gate(cluster.slots[1:])
        until(lambda: running(cluster, f"{array}_1"), "its first task running")
        cluster.say(f"gate opened to job running: {time.monotonic() - before:.2f} s")
        rows = {j.id: j for j in cluster.scheduler.jobs()}
        assert set(rows) == {array, f"{array}_1"}
        assert (rows[array].tasks, rows[array].array_tasks) == (2, "2-3")
        assert (rows[f"{array}_1"].node_list, rows[f"{array}_1"].array_job_id) == ((slot,), array)
        assert rows[f"{array}_1"].start > 1e9
        busy = node(cluster, slot)
        assert busy.busy
        assert busy.cpus_allocated >= 1
        assert busy.gres_used == (Gres("gpu", "v100", 3),)
        cluster.shell(f"scancel {array}_[2-3]; scontrol requeue {array}_1")
        until(lambda: (row := job(cluster, f"{array}_1")) and row.state is JobState.PENDING, "it pending again")
        row = job(cluster, f"{array}_1")
        assert row is not None
        assert (row.restarts, row.tasks) == (1, 1)

    def test_a_gang_is_let_in_as_one(self, cluster: ClusterUnderTest) -> None:
        """Two nodes opened in one update are there for a job that needs both."""
        slots = self.up(cluster, 2)
        gang = submit(cluster, "-N2 --exclusive")
        until(lambda: (row := job(cluster, gang)) and row.reason == "ReqNodeNotAvail", "the gang waiting")
        before = time.monotonic()
        cluster.scheduler.set_gate(cluster.slots[2:])
        until(lambda: running(cluster, gang), "the gang running")
        cluster.say(f"gate opened to gang of two running: {time.monotonic() - before:.2f} s")
        row = job(cluster, gang)
        assert row is not None
        assert row.node_list == tuple(slots)

    def test_closing_never_races_with_starting(self, cluster: ClusterUnderTest) -> None:
        """Where a job got in before the gate closed it shows at once; afterwards none gets in."""
        (slot,) = self.up(cluster, 1)

        def kept_out(job_id: str) -> bool:
            row = job(cluster, job_id)
            return row is not None and row.reason == "ReqNodeNotAvail"

        got_in = 0
        for attempt in range(ROUNDS):
            cluster.scheduler.set_gate(cluster.slots[1:])
            late = submit(cluster, "--gres=gpu:4")
            # Earlier and earlier in Slurm's own work on the job.
            time.sleep(1.2 - 1.2 * attempt / ROUNDS)
            cluster.scheduler.set_gate(cluster.slots)
            seen = running(cluster, late)
            got_in += seen
            if not seen:
                until(partial(kept_out, late), "it kept out")
                assert not node(cluster, slot).busy
            cluster.shell(f"scancel {late}")
            until(lambda: not node(cluster, slot).busy, "an idle node")
        cluster.say(f"closing while submitting: {got_in} of {ROUNDS} jobs got in before the gate closed, none after")

    def test_a_bound_job_starts_with_thousands_before_it(self, cluster: ClusterUnderTest) -> None:
        """It starts on nodes that the gate holds, nobody else does, and it runs on when it is unbound."""
        slots = self.up(cluster, 2)
        crowd = submit(cluster, "--array=0-4999 --gres=gpu:4")
        # A task that was changed by itself is a job of its own.
        cluster.shell(f"scontrol update jobid={crowd}_[0-4998] nice=1")
        wanted = submit(cluster, "-N2 --gres=gpu:1", user="bob")
        assert sum(j.tasks for j in cluster.scheduler.jobs()) == 5001
        before = time.monotonic()
        cluster.scheduler.bind(wanted, "bob", slots)
        until(lambda: cluster.shell(f"squeue -h -j {wanted} -o %T").strip() == "RUNNING", "the bound job running")
        cluster.say(f"bound to running, 5,000 jobs before it: {time.monotonic() - before:.2f} s")
        bound = [r for r in cluster.scheduler.reservations() if r.job_id]
        assert [(r.job_id, r.nodes, r.users) for r in bound] == [(wanted, frozenset(slots), ("bob",))]
        cluster.scheduler.unbind(wanted)
        assert running(cluster, wanted)
        assert not [r for r in cluster.scheduler.reservations() if r.job_id]
        assert [j.id for j in cluster.scheduler.jobs() if j.state is JobState.RUNNING] == [wanted]
        cluster.scheduler.unbind(wanted)

    def test_a_binding_taken_back_leaves_the_job_waiting(self, cluster: ClusterUnderTest) -> None:
        """It may be made twice; taken back, the job is not held; for a job that is gone nothing is left."""
        waiting = submit(cluster, "-N2")
        slot = cluster.slots[-1]
        for _ in range(2):
            cluster.scheduler.bind(waiting, "ada", [slot])
        row = job(cluster, waiting)
        assert row is not None
        assert row.reservation
        assert [(r.job_id, r.nodes) for r in cluster.scheduler.reservations() if r.job_id] == [
            (waiting, frozenset({slot}))
        ]
        cluster.scheduler.unbind(waiting)
        until(lambda: (row := job(cluster, waiting)) and row.reason == "ReqNodeNotAvail", "the job waiting as before")
        row = job(cluster, waiting)
        assert row is not None
        assert (row.state, row.reservation) == (JobState.PENDING, "")
        gone = submit(cluster, "")
        cluster.shell(f"scancel {gone}")
        with pytest.raises(SchedulerRefused):
            cluster.scheduler.bind(gone, "ada", [slot])
        assert not [r for r in cluster.scheduler.reservations() if r.job_id]

    def test_drain_resume_down_address_and_comment(self, cluster: ClusterUnderTest) -> None:
        """Each for several nodes in one call."""
        scheduler = cluster.scheduler
        slot, other, dead = self.up(cluster, 3)
        scheduler.drain([slot, other], "burstd: it = drained\n and why")
        drained = node(cluster, slot)
        assert drained.drained
        assert drained.reason == "burstd: it = drained and why"
        scheduler.resume([slot, other])
        assert not node(cluster, slot).drained
        cluster.kill(dead)
        scheduler.down([dead], "burstd: it died")
        assert node(cluster, dead).state == "DOWN"
        scheduler.power_down([dead], force=True)
        last = cluster.slots[-2:]
        scheduler.set_address([(last[1], "10.9.9.1"), (last[0], "10.9.9.2")])
        assert [node(cluster, s).address for s in last] == ["10.9.9.2", "10.9.9.1"]
        waiting = submit(cluster, "")
        scheduler.set_comment([waiting], "burstd: waits | for a node, é")
        row = job(cluster, waiting)
        assert row is not None
        assert row.comment == "burstd: waits | for a node, é"
        assert scheduler.comments([waiting, "999999"]) == {waiting: row.comment}
        assert scheduler.comments(["999999"]) == {}
        with pytest.raises(SchedulerRefused):
            scheduler.set_comment(["999999"], "x")
        with pytest.raises(SchedulerRefused):
            scheduler.drain(["no-such-node"], "x")

    def test_many_jobs_get_one_comment(self, cluster: ClusterUnderTest) -> None:
        """Also components, and the tasks of an array that are pending: those that run keep theirs, and it stays one."""
        scheduler = cluster.scheduler
        slots = self.up(cluster, 1)
        one, array = submit(cluster, "--begin=now+1hour"), submit(cluster, "--array=1-6 --gres=gpu:v100:4")
        het = submit(cluster, "-p burst -N2 : -p burst --gres=gpu:1")
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        until(lambda: running(cluster, f"{array}_1"), "its first task running")
        scheduler.set_gate(cluster.slots)
        cluster.shell(f"scancel {array}_3")
        pending = f"{array}_[2,4-6]"
        with pytest.raises(SchedulerRefused):
            scheduler.set_comment([one, "999999", pending, f"{het}+1"], "burstd: waits: for a, b = [c]")
        scheduler.set_comment([f"{array}_1"], "burstd: on it")
        scheduler.set_comment([f"{array}_[1-2,4-6]", f"{het}+0"], "burstd: all")
        scheduler.set_comment([pending], "burstd: waits")
        rows = {j.id: j for j in scheduler.jobs()}
        assert scheduler.comments([*rows]) == {row: job.comment for row, job in rows.items()}
        assert {row: job.comment for row, job in rows.items()} == {
            one: "burstd: waits: for a, b = [c]",
            array: "burstd: waits",
            f"{array}_1": "burstd: all",
            f"{het}+0": "burstd: all",
            f"{het}+1": "burstd: waits: for a, b = [c]",
        }
        assert (rows[array].tasks, rows[array].array_tasks) == (4, "2,4-6")
        scheduler.set_comment([one], "")
        assert [j.comment for j in scheduler.jobs() if j.id == one] == [""]

    def test_running_jobs_begin_anew_and_need_not_wait(self, cluster: ClusterUnderTest) -> None:
        """Of several those that may are requeued, though the call is refused; then they start when they are told to."""
        scheduler = cluster.scheduler
        slots = self.up(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        one, stays, array = (submit(cluster, f"-c1 {words}") for words in ("", "--no-requeue", "--array=5-6"))
        task = f"{array}_5"
        until(lambda: all(running(cluster, j) for j in (one, stays, task, f"{array}_6")), "the jobs running")
        with pytest.raises(SchedulerRefused, match=f"job {stays}"):
            scheduler.requeue_jobs([one, stays, task])
        assert running(cluster, stays)
        assert running(cluster, f"{array}_6")
        rows: list[Job] = []

        def paused() -> bool:
            rows[:] = [row for row in scheduler.jobs() if row.id in (one, task) and row.reason == "BeginTime"]
            return len(rows) == 2

        until(paused, "Slurm's pause")
        assert {(row.state, row.restarts) for row in rows} == {(JobState.PENDING, 1)}
        assert all(60 < row.eligible - time.time() < 130 for row in rows)
        scheduler.requeue_jobs([one, task])
        assert {row.restarts for row in scheduler.jobs() if row.id in (one, task)} == {1}
        until(lambda: all(row.eligible - time.time() < 117 for row in rows), "their credentials out of date")
        scheduler.start_now([one, task])
        until(lambda: running(cluster, one) and running(cluster, task), "both running again")
        with pytest.raises(SchedulerRefused):
            scheduler.requeue_jobs(["999999"])

    def test_a_job_that_is_over_does_not_begin_anew(self, cluster: ClusterUnderTest) -> None:
        """Neither one that was cancelled since it was seen to run, nor one that ended, nor one that is ending."""
        scheduler = cluster.scheduler
        slots = self.up(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        words = "sbatch --parsable -o /dev/null -p burst -c1"
        ended = cluster.shell(f"{words} --wrap true", "ada").strip()
        cancelled, runs = submit(cluster, "-c1"), submit(cluster, "-c1")
        until(lambda: running(cluster, cancelled) and running(cluster, runs), "the jobs running")
        until(lambda: job(cluster, ended) is None, "the short one over")
        cluster.shell(f"scancel {cancelled}")
        scheduler.requeue_jobs([cancelled, ended, runs])
        until(lambda: job(cluster, cancelled) is None, "the cancelled one over")
        scheduler.requeue_jobs([cancelled, ended])
        assert (job(cluster, cancelled), job(cluster, ended)) == (None, None)
        again = job(cluster, runs)
        assert again is not None
        assert (again.state, again.restarts) == (JobState.PENDING, 1)

    def test_a_het_job_begins_anew_by_its_number(self, cluster: ClusterUnderTest) -> None:
        """All its components do."""
        scheduler = cluster.scheduler
        slots = self.up(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        het = submit(cluster, "-p burst -c2 : -p burst -c2")
        parts = [f"{het}+{i}" for i in range(2)]
        until(lambda: all(running(cluster, part) for part in parts), "the components running")
        scheduler.requeue_jobs([het])
        until(lambda: all((row := job(cluster, p)) and row.reason == "BeginTime" for p in parts), "Slurm's pause")
        until(lambda: all((row := job(cluster, p)) and row.eligible - time.time() < 117 for p in parts), "some time")
        scheduler.start_now([het])
        until(lambda: all(running(cluster, part) for part in parts), "the components running again")

    def test_a_drain_goes_with_the_machine_and_can_be_taken_off_a_slot(self, cluster: ClusterUnderTest) -> None:
        """Power-down takes it off and leaves the reason; one that came later is taken off by ``resume``."""
        scheduler = cluster.scheduler
        slot = self.up(cluster, 1)[0]
        scheduler.drain([slot], "burstd: rebalance hint")
        scheduler.power_down([slot])
        cluster.kill(slot)
        until(lambda: node(cluster, slot).powered_down, "the slot powered down")
        left = node(cluster, slot)
        assert (left.drained, left.reason) == (False, "burstd: rebalance hint")
        scheduler.drain([slot], "burstd: rebalance hint")
        assert node(cluster, slot).drained
        scheduler.resume([slot])
        assert (node(cluster, slot).drained, node(cluster, slot).powered_down) == (False, True)
        assert self.up(cluster, 1)[0] == slot

    def test_a_slot_is_powered_up_and_down_and_used_again(self, cluster: ClusterUnderTest) -> None:
        """Slurm calls its programs, and a machine makes the slot a node; also one that Slurm was not told of."""
        scheduler = cluster.scheduler
        slot = cluster.slots[7]
        until(lambda: node(cluster, slot).powered_down, "the slot powered down")
        called = partial(self._called_since, cluster, len(cluster.calls()), slot)
        scheduler.power_up([slot])
        until(lambda: "POWERING_UP" in node(cluster, slot).flags, "it powering up")
        until(partial(called, "resume"), "a call of ResumeProgram")
        scheduler.set_address(cluster.boot([slot]))
        cluster.start_slurmd(slot)
        until(lambda: node(cluster, slot).up, "it up")
        assert node(cluster, slot).slurmd_start > 1e9
        scheduler.power_down([slot])
        until(partial(called, "suspend"), "a call of SuspendProgram")
        cluster.kill(slot)
        until(lambda: node(cluster, slot).powered_down, "it powered down")
        # Without being told: a slot that is powered down takes a slurmd that registers, and nothing is called.
        calls = len(cluster.calls())
        scheduler.set_address(cluster.boot([slot]))
        cluster.start_slurmd(slot)
        until(lambda: node(cluster, slot).up, "it up again")
        assert not cluster.calls()[calls:]

    def test_a_boot_that_fails_leaves_job_and_slot_usable(self, cluster: ClusterUnderTest) -> None:
        """A slot that was given up by Slurm, and one that was taken back, can be used again; the job waits on."""
        scheduler = cluster.scheduler
        given_up, taken_back = cluster.slots[4:6]
        waiting = submit(cluster, f"-w {given_up}")
        before = len(cluster.calls())
        scheduler.power_up([given_up, taken_back])
        until(lambda: all("POWERING_UP" in node(cluster, s).flags for s in (given_up, taken_back)), "both powering up")
        scheduler.power_down([taken_back], force=True)
        failed = partial(self._called_since, cluster, before, given_up, "resumefail")
        until(failed, "a call of ResumeFailProgram", cluster.resume_timeout_s + 20)
        until(lambda: node(cluster, given_up).state == "DOWN", "the one given up DOWN")
        until(lambda: node(cluster, taken_back).powered_down, "the one taken back powered down")
        row = job(cluster, waiting)
        assert row is not None
        assert (row.state, row.restarts) == (JobState.PENDING, 0)
        assert "Held" not in row.reason
        scheduler.power_down([given_up], force=True)
        until(lambda: node(cluster, given_up).powered_down and node(cluster, given_up).state == "IDLE", "it idle again")
        scheduler.set_address(cluster.boot([given_up]))
        cluster.start_slurmd(given_up)
        until(lambda: node(cluster, given_up).up, "it up")

    def test_without_a_gate_slurm_asks_for_nodes_by_itself(self, cluster: ClusterUnderTest) -> None:
        """The job that finds no gate makes Slurm call ResumeProgram."""
        slot = cluster.slots[6]
        until(lambda: node(cluster, slot).powered_down, "the slot powered down")
        before = len(cluster.calls())
        cluster.scheduler.set_gate([])
        submit(cluster, f"-w {slot}")
        until(partial(self._called_since, cluster, before, slot, "resume"), "a call of ResumeProgram")
        cluster.shell("scancel -u ada")
        until(lambda: not cluster.scheduler.jobs(), "an empty queue")
        cluster.scheduler.power_down([slot], force=True)
        until(lambda: node(cluster, slot).powered_down, "the slot powered down again")

    def test_slurmctld_may_come_and_go(self, cluster: ClusterUnderTest) -> None:
        """Down it is unavailable, which is no empty queue; back again it has kept gate, nodes, addresses and jobs."""
        slots = self.up(cluster, 2)
        scheduler = cluster.scheduler
        cluster.scheduler.set_gate(cluster.slots[1:])
        inside = submit(cluster, f"-w {slots[0]}")
        until(lambda: running(cluster, inside), "a job running")
        waiting = submit(cluster, "--array=1-5 --gres=gpu:v100:2")
        addresses = [(n.name, n.address) for n in scheduler.nodes() if n.name in slots]
        cluster.stop_slurmctld()
        with pytest.raises(SchedulerUnavailable):
            scheduler.nodes()
        cluster.start_slurmctld()
        until(lambda: all(node(cluster, s).up for s in slots), "the nodes up")
        assert next(r.nodes for r in scheduler.reservations() if r.name == "burstd") == frozenset(cluster.slots[1:])
        assert [(n.name, n.address) for n in scheduler.nodes() if n.name in slots] == addresses
        rows = {j.id: j for j in scheduler.jobs()}
        assert {i: (j.state, j.tasks) for i, j in rows.items()} == {
            inside: (JobState.RUNNING, 1),
            waiting: (JobState.PENDING, 5),
        }
