"""The part of a Scheduler's contract that is about jobs. See scheduler_contract.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from burstd.domain.errors import SchedulerRefused
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Gres
from burstd.testing.slurm.cluster import ClusterUnderTest, find_job, is_running, submit_job, wait_until
from burstd.testing.slurm.slurm_tests import SlurmTests

V100 = (Gres("gpu", "v100", 2),)
ASKED: Sequence[tuple[str, dict[str, Any]]] = (
    (
        "",
        {
            "nodes": 1,
            "cpus": 1,
            "gres_per_node": (),
            "gres_per_job": (),
            "exclusive": False,
            "exclusive_user": False,
            "time_limit_s": 0,
        },
    ),
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
    ("--exclusive", {"exclusive": True, "exclusive_user": False}),
    ("--exclusive=user", {"exclusive": False, "exclusive_user": True}),
    ("-C 'cloud&cloud'", {"constraint": "cloud&cloud"}),
    ("-w {0} -x {1},{2}", {"node_list": ("{0}",), "excluded_nodes": ("{1}", "{2}")}),
    ("-L solver:1", {"licenses": "solver:1"}),
    ("--hold", {"reason": "JobHeldUser", "priority": 0}),
    ("-D /var -o /srv/logs/%u/x", {"work_dir": "/var", "output_dir": "/srv/logs"}),
    ("-d singleton", {"dependency": "singleton(unfulfilled)"}),
    ("-t 1-02:03", {"time_limit_s": 93780.0}),
    ("--requeue", {"requeue": True}),
    ("--no-requeue", {"requeue": False}),
    ("-p onprem,burst --gres=gpu:v100:2", {"partitions": ("onprem", "burst")}),
)
"""Options of sbatch, and what the job's row must say. {0}, {1} ... stand for slots."""


class JobsContract(SlurmTests):
    """Jobs are seen as they were asked for, are told something, and begin anew."""

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
        first = submit_job(cluster, "")
        later = submit_job(cluster, "--begin=now+1hour")
        after = submit_job(cluster, f"-d afterok:{first}")
        het = submit_job(cluster, "-p burst --gres=gpu:1 : -p burst -N2")
        rows = {j.id: j for j in cluster.scheduler.jobs()}
        assert set(rows) == {first, later, after, f"{het}+0", f"{het}+1"}
        assert abs(rows[first].submitted - now) < 5
        assert abs(rows[later].eligible - now - 3600) < 5
        assert rows[after].dependency.startswith(f"afterok:{first}")
        parts = [rows[f"{het}+{i}"] for i in range(2)]
        assert [(p.het_job_id, p.het_offset, p.nodes) for p in parts] == [(het, 0, 1), (het, 1, 2)]
        wait_until(lambda: (row := find_job(cluster, later)) and row.reason == "BeginTime", "the reason BeginTime")
        wait_until(lambda: (row := find_job(cluster, after)) and row.reason == "Dependency", "the reason Dependency")
        wait_until(
            lambda: (row := find_job(cluster, first)) and row.reason == "ReqNodeNotAvail", "the reason ReqNodeNotAvail"
        )

    def test_many_jobs_get_one_comment(self, cluster: ClusterUnderTest) -> None:
        """Also components, and the tasks of an array that are pending: those that run keep theirs, and it stays one."""
        scheduler = cluster.scheduler
        slots = self.registered_slots(cluster, 1)
        one, array = submit_job(cluster, "--begin=now+1hour"), submit_job(cluster, "--array=1-6 --gres=gpu:v100:4")
        het = submit_job(cluster, "-p burst -N2 : -p burst --gres=gpu:1")
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        wait_until(lambda: is_running(cluster, f"{array}_1"), "its first task running")
        scheduler.set_gate(cluster.slots)
        cluster.shell(f"scancel {array}_3")
        pending = f"{array}_[2,4-6]"
        with pytest.raises(SchedulerRefused):
            scheduler.set_comment([one, "999999", pending, f"{het}+1"], "burstd: waits: for a, b = [c]")
        scheduler.set_comment([f"{array}_1"], "burstd: on it")
        scheduler.set_comment([f"{array}_[1-2,4-6]", f"{het}+0"], "burstd: all")
        scheduler.set_comment([pending], "burstd: waits")
        rows = {j.id: j for j in scheduler.jobs()}
        assert scheduler.comments([array]) == {row: j.comment for row, j in rows.items() if row.startswith(array)}
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
        slots = self.registered_slots(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        one, stays, array = (submit_job(cluster, f"-c1 {words}") for words in ("", "--no-requeue", "--array=5-6"))
        task = f"{array}_5"
        wait_until(lambda: all(is_running(cluster, j) for j in (one, stays, task, f"{array}_6")), "the jobs running")
        with pytest.raises(SchedulerRefused, match=f"job {stays}"):
            scheduler.requeue_jobs([one, stays, task])
        assert is_running(cluster, stays)
        assert is_running(cluster, f"{array}_6")
        rows: list[Job] = []

        def paused() -> bool:
            rows[:] = [row for row in scheduler.jobs() if row.id in (one, task) and row.reason == "BeginTime"]
            return len(rows) == 2

        wait_until(paused, "Slurm's pause")
        assert {(row.state, row.restarts) for row in rows} == {(JobState.PENDING, 1)}
        assert all(60 < row.eligible - time.time() < 130 for row in rows)
        scheduler.requeue_jobs([one, task])
        assert {row.restarts for row in scheduler.jobs() if row.id in (one, task)} == {1}
        wait_until(lambda: all(row.eligible - time.time() < 117 for row in rows), "their credentials out of date")
        scheduler.start_now([one, task])
        wait_until(lambda: is_running(cluster, one) and is_running(cluster, task), "both running again")
        with pytest.raises(SchedulerRefused):
            scheduler.requeue_jobs(["999999"])

    def test_a_held_job_is_its_users_to_release(self, cluster: ClusterUnderTest) -> None:
        """Also one that was requeued, and a het job by its number."""
        scheduler = cluster.scheduler
        scheduler.set_gate(cluster.slots)
        one, het = submit_job(cluster, "-c1"), submit_job(cluster, "-p burst -c1 : -p burst -c1")
        for held in (one, het):
            scheduler.hold(held)
        rows = {job.id: job for job in scheduler.jobs()}
        assert all(rows[i].held and rows[i].reason == "JobHeldUser" for i in (one, f"{het}+0"))
        cluster.shell(f"scontrol release {one}", "ada")
        assert [job.held for job in scheduler.jobs() if job.id == one] == [False]
        with pytest.raises(SchedulerRefused):
            scheduler.hold("999999")

    def test_a_job_that_is_over_does_not_begin_anew(self, cluster: ClusterUnderTest) -> None:
        """Neither one that was cancelled since it was seen to run, nor one that ended, nor one that is ending."""
        scheduler = cluster.scheduler
        slots = self.registered_slots(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        words = "sbatch --parsable -o /dev/null -p burst -c1"
        ended = cluster.shell(f"{words} --wrap true", "ada").strip()
        cancelled, runs = submit_job(cluster, "-c1"), submit_job(cluster, "-c1")
        wait_until(lambda: is_running(cluster, cancelled) and is_running(cluster, runs), "the jobs running")
        wait_until(lambda: find_job(cluster, ended) is None, "the short one over")
        cluster.shell(f"scancel {cancelled}")
        scheduler.requeue_jobs([cancelled, ended, runs])
        wait_until(lambda: find_job(cluster, cancelled) is None, "the cancelled one over")
        scheduler.requeue_jobs([cancelled, ended])
        assert (find_job(cluster, cancelled), find_job(cluster, ended)) == (None, None)
        again = find_job(cluster, runs)
        assert again is not None
        assert (again.state, again.restarts) == (JobState.PENDING, 1)

    def test_a_het_job_begins_anew_by_its_number(self, cluster: ClusterUnderTest) -> None:
        """All its components do."""
        scheduler = cluster.scheduler
        slots = self.registered_slots(cluster, 4)
        scheduler.set_gate([slot for slot in cluster.slots if slot not in slots])
        het = submit_job(cluster, "-p burst -c2 : -p burst -c2")
        parts = [f"{het}+{i}" for i in range(2)]
        wait_until(lambda: all(is_running(cluster, part) for part in parts), "the components running")
        scheduler.requeue_jobs([het])
        wait_until(
            lambda: all((row := find_job(cluster, p)) and row.reason == "BeginTime" for p in parts), "Slurm's pause"
        )
        wait_until(
            lambda: all((row := find_job(cluster, p)) and row.eligible - time.time() < 117 for p in parts), "some time"
        )
        scheduler.start_now([het])
        wait_until(lambda: all(is_running(cluster, part) for part in parts), "the components running again")
