"""Which pending jobs count, how many tasks of them, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner.demand.demand import pending_demand, task_ids
from burstd.planner.demand.pending_reasons import PENDING_REASONS, pending_reason

from .worlds import NOW, job, make_snapshot


def counted(*jobs: Job, **fields: Any) -> dict[str, int]:
    return {
        pending_job.gang_id(): pending_job.tasks
        for pending_job in pending_demand(make_snapshot(*jobs, **fields)).pending_jobs
    }


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("", True),
        ("None", True),
        ("Resources", True),
        ("Priority", True),
        ("ReqNodeNotAvail", True),
        ("ReqNodeNotAvail, May be reserved for other job", True),
        ("(ReqNodeNotAvail, UnavailableNodes:cl[1-4])", True),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", True),
        ("BurstBufferStageIn", False),
        ("BurstBufferResources", False),
        ("ReqNodeNotAvail, Reserved for maintenance", False),
        ("BurstBufferOperation", False),
        ("JobHeldUser", False),
        ("JobHeldAdmin", False),
        ("BeginTime", False),
        ("Dependency", False),
        ("DependencyNeverSatisfied", False),
        ("Licenses", False),
        ("Reservation", False),
        ("PartitionDown", False),
        ("PartitionConfig", False),
        ("BadConstraints", False),
        ("JobArrayTaskLimit", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("QOSGrpGRES", False),
        ("AssocGrpCpuLimit", False),
        ("AssociationJobLimit", False),
        ("MaxGRESPerAccount", False),
        ("SomethingNew", False),
    ],
)
def test_reasons(reason: str, counts: bool) -> None:
    found = pending_demand(make_snapshot(job(reason=reason, eligible=0.0)))
    assert bool(found.pending_jobs) is counts
    assert [(r.subject, r.verdict) for r in found.remarks] == ([] if counts else [("job:1", "wait")])


def test_every_reason_that_blocks_a_job_has_a_text() -> None:
    for name, reason in PENDING_REASONS.items():
        assert reason.text, name
        assert not reason.text.endswith("."), name
    assert pending_reason("NeverSeen").text == "unknown Slurm reason: NeverSeen"


@pytest.mark.parametrize(
    ("case", "fields", "why"),
    [
        ("begins later", {"eligible": NOW + 90}, "begin time in 90 s"),
        ("depends", {"dependency": "afterok:7(unfulfilled)"}, "depends on another job (afterok:7(unfulfilled))"),
        (
            "asks for a reservation",
            {"reservation": "course"},
            "reservation course has nodes of its own",
        ),
        ("is being requeued", {"state": JobState.REQUEUED}, "the job is requeued"),
        ("held by its user", {"reason": "JobHeldUser"}, "held by its user (Slurm: JobHeldUser)"),
    ],
)
def test_what_else_blocks_a_job(case: str, fields: dict[str, Any], why: str) -> None:
    found = pending_demand(make_snapshot(job(**fields)))
    assert found.pending_jobs == (), case
    assert [r.reason for r in found.remarks] == [why]


def test_a_requeued_job_counts_once_its_time_has_come() -> None:
    assert counted(job(reason="BeginTime", eligible=NOW - 1)) == {"1": 1}
    assert counted(job(reason="BeginTime", eligible=NOW + 1)) == {}


def test_a_job_that_burstd_bound_counts() -> None:
    bound = job(reservation="burstd-1", reason="Reservation")
    assert counted(bound, bound={"1": frozenset({"cpu1"})}) == {"1": 1}


def test_arrays_count_as_many_and_heed_their_throttle() -> None:
    row = job("7", tasks=50, array_job_id="7", array_tasks="10-59", tasks_limit=8)
    running = [job(f"7_{n}", state=JobState.RUNNING, array_job_id="7", array_tasks="", reason="None") for n in range(5)]
    assert counted(row) == {"7": 8}
    assert counted(row, *running) == {"7": 3}
    requeued = job("7_3", array_job_id="7", tasks_limit=8, priority=9)
    assert counted(row, *running, requeued) == {"7_3": 1, "7": 2}
    assert counted(row, *running, *(job(f"7_{n}", state=JobState.RUNNING, array_job_id="7") for n in "678")) == {}
    assert counted(job("8", tasks=50, array_job_id="8", array_tasks="1-50")) == {"8": 50}


@pytest.mark.parametrize(
    ("jobs", "free", "expected"),
    [
        ([("1", "solver:1", 9), ("2", "solver:1", 8), ("3", "", 7)], {"solver": 1}, {"1": 1, "3": 1}),
        ([("1", "solver:3", 9), ("2", "solver:1", 8)], {"solver": 2}, {"2": 1}),
        ([("1", "solver,mesh:2", 9), ("2", "mesh", 8)], {"solver": 5, "mesh": 2}, {"1": 1}),
        ([("1", "solver", 9), ("2", "mesh", 8)], {"solver": 0, "mesh": 1}, {"2": 1}),
        ([("1", "far@server:2", 9)], {"far@server": 1}, {}),
        ([("1", "far@server:2", 9)], {"far@server": 2}, {"1": 1}),
        # Not counted by slurmctld, chosen by it, or none at all.
        (
            [("1", "other:9", 9), ("2", "solver:1|mesh:1", 8), ("3", "solver:0", 7)],
            {"solver": 0},
            dict.fromkeys("123", 1),
        ),
    ],
)
def test_jobs_that_can_have_their_licences(
    jobs: list[tuple[str, str, int]], free: dict[str, int], expected: dict[str, int]
) -> None:
    queue = [job(name, licenses=licences, priority=priority) for name, licences, priority in jobs]
    snapshot = make_snapshot(*queue)
    assert isinstance(snapshot.slurm, SlurmView)
    found = pending_demand(replace(snapshot, slurm=replace(snapshot.slurm, licenses=free)))
    assert {one.gang_id(): one.tasks for one in found.pending_jobs} == expected
    assert len(found.remarks) == len(queue) - len(expected)
    assert all("licence" in remark.reason for remark in found.remarks)


def test_a_job_of_the_site_s_own_nodes_holds_no_licence_back() -> None:
    own = job("1", licenses="solver:1", priority=9, partitions=("onprem",))
    burst = job("2", licenses="solver:1", priority=8)
    snapshot = make_snapshot(own, burst)
    assert isinstance(snapshot.slurm, SlurmView)
    found = pending_demand(replace(snapshot, slurm=replace(snapshot.slurm, licenses={"solver": 1})))
    assert [one.gang_id() for one in found.pending_jobs if one.burst] == ["2"]


def test_licences_and_a_throttle_limit_an_array_together() -> None:
    array = job("7", tasks=40, array_job_id="7", array_tasks="1-40", tasks_limit=8, licenses="solver", priority=9)
    requeued = job("7_50", array_job_id="7", tasks_limit=8, priority=8)
    snapshot = make_snapshot(array, requeued)
    assert isinstance(snapshot.slurm, SlurmView)
    found = pending_demand(replace(snapshot, slurm=replace(snapshot.slurm, licenses={"solver": 7})))
    assert [one.tasks for one in found.pending_jobs] == [7, 1], "the throttle has room for one that needs no licence"


def test_tasks_of_an_array_share_licences() -> None:
    array = job("7", tasks=40, array_job_id="7", array_tasks="1-40", licenses="solver:2", priority=9)
    snapshot = make_snapshot(array)
    assert isinstance(snapshot.slurm, SlurmView)
    for free, tasks in ((0, None), (1, None), (2, 1), (7, 3), (100, 40)):
        found = pending_demand(replace(snapshot, slurm=replace(snapshot.slurm, licenses={"solver": free})))
        assert [one.tasks for one in found.pending_jobs] == [tasks] * (tasks is not None)


def test_priority_then_age() -> None:
    jobs = (job("1", priority=1), job("2", priority=5, submitted=NOW - 5), job("3", priority=5, submitted=NOW - 9))
    assert list(counted(*jobs)) == ["3", "2", "1"]


def test_het_jobs_are_one_pending_job() -> None:
    first = job("5", het_job_id="5", priority=2)
    second = job("5+1", het_job_id="5", het_offset=1, partitions=("onprem",))
    [pending_job] = pending_demand(make_snapshot(second, first)).pending_jobs
    assert [j.id for j in pending_job.jobs] == ["5", "5+1"]
    assert pending_job.gang_id() == "5"
    held = pending_demand(make_snapshot(first, job("5+1", het_job_id="5", het_offset=1, reason="Licenses")))
    assert held.pending_jobs == ()
    assert [r.subject for r in held.remarks] == ["job:5", "job:5+1"]


def test_jobs_of_other_partitions_compete_and_get_no_remark() -> None:
    found = pending_demand(
        make_snapshot(job(partitions=("onprem",)), job("2", partitions=("onprem",), reason="Licenses"))
    )
    assert [pending_job.burst for pending_job in found.pending_jobs] == [False]
    assert found.remarks == ()


def test_nothing_is_known_without_slurm() -> None:
    from dataclasses import replace

    assert pending_demand(replace(make_snapshot(job()), slurm=Unavailable("down", 0))).pending_jobs == ()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("1-3,7,10-20:5", ["1", "2", "3", "7", "10", "15", "20"]),
        ("[0-2%4]", ["0", "1", "2"]),
        ("5", ["5"]),
        ("", []),
    ],
)
def test_task_ids(text: str, ids: list[str]) -> None:
    assert list(task_ids(text)) == ids
