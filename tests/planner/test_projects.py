"""What is done for projects in one decision: shares, limits, who is requeued for whom, and machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.plan import RequeueJobs, SetProjectLimits, SetQuotaPreemption, StartJobsNow
from burstd.domain.plugins.policy import Target
from burstd.domain.project import BurstOverQuota, FairShare, OverQuotaLimits, Project, ProjectsView
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.projects.capacity import capacity_alarms, group_faults, quota_faults
from burstd.planner.timeouts import Tuning
from tests.planner.worlds import NOW, claim, make_snapshot, node, offer, pool
from tests.planner.worlds import job as any_job

F = Fraction
QUOTAS = {"a": 4, "b": 2, "c": 2, "d": 8}
PAIRS = tuple(f"{label}-{name}" for name in QUOTAS for label in "qo")
GPU_NODE = Shape(8, 8000, (Gres("gpu", "", 8),))


def projects(**changed: Mapping[str, Any]) -> dict[str, Project]:
    found = {n: Project(n, account=n, quota=F(quota), partitions=("gpu",)) for n, quota in QUOTAS.items()}
    return {name: replace(project, **changed.get(name, {})) for name, project in found.items()}


def waiting(job_id: str, project: str, gpus: int = 1, **fields: Any) -> Job:
    found = any_job(job_id, partitions=(f"q-{project}", f"o-{project}"), account=project, cpus=1)
    return replace(found, gres_per_node=(Gres("gpu", "", gpus),), **fields)


def running(job_id: str, label: str, on: str, gpus: int = 1, since: float = 1000.0, **fields: Any) -> Job:
    found = waiting(job_id, label[2:], gpus, state=JobState.RUNNING, reason="", node_list=(on,), start=NOW - since)
    return replace(found, partitions=(label,), **fields)


def tasks(first: int, count: int, project: str, gpus: int = 1, **fields: Any) -> list[Job]:
    return [waiting(str(first + n), project, gpus, **fields) for n in range(count)]


def runs(first: int, count: int, label: str, on: str, **fields: Any) -> list[Job]:
    return [running(str(first + n), label, on, since=1000.0 - n, **fields) for n in range(count)]


def site(
    jobs: Iterable[Job], names: Iterable[str] = ("n1", "n2"), features: Mapping[str, str] | None = None
) -> tuple[Node, ...]:
    """Nodes of 8 GPUs, with what runs on them."""
    found = []
    for name in names:
        there = [job for job in jobs if name in job.node_list and job.state is JobState.RUNNING]
        used = sum(g.count for job in there for g in job.gres_per_node)
        state = "MIXED" if there else "IDLE"
        found.append(
            node(
                name, state=state, partitions=("gpu", *PAIRS), cpus=8, gres=GPU_NODE.gres,
                cpus_allocated=len(there), gres_used=(Gres("gpu", "", used),) if used else (),
                features=frozenset(features[name].split(",") if features else ()),
            )
        )  # fmt: skip
    return tuple(found)


def settled(snapshot: Snapshot) -> Snapshot:
    """With the limits in force that it asks for."""
    actions = decide(snapshot, (), Tuning()).actions
    limits = {name: some for action in actions if isinstance(action, SetProjectLimits) for name, some in action.limits}
    view = snapshot.projects
    return replace(snapshot, projects=replace(view, limits={**view.limits, **limits}))


def world(*jobs: Job, nodes: Iterable[str] = ("n1", "n2"), of: dict[str, Project] | None = None, **fields: Any) -> Any:
    of = of or projects()
    view = ProjectsView(of, dict.fromkeys(of, OverQuotaLimits(F(0), 1)))
    fields = {"pools": (), "offers": ()} | fields
    return make_snapshot(*jobs, nodes=site(jobs, nodes), projects=view, **fields)


def caps(snapshot: Snapshot) -> dict[str, int]:
    return {name: int(limits.gpus or 0) for name, limits in settled(snapshot).projects.limits.items()}


def requeued(snapshot: Snapshot) -> list[str]:
    return [run.job_id for action in steps(settled(snapshot), RequeueJobs) for run in action.runs]


def steps(snapshot: Snapshot, kind: Any) -> list[Any]:
    return [action for action in decide(snapshot, (), Tuning()).actions if isinstance(action, kind)]


def shares(snapshot: Snapshot) -> dict[str, tuple[Fraction, ...]]:
    target: Target = decide(snapshot, (), Tuning()).target
    return {name: (s.demand, s.running, s.over_quota, s.share) for name, s in target.shares.items()}


FULL = [
    *runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"),
    *runs(200, 2, "q-b", "n2"), *runs(210, 2, "o-b", "n2"),
    *runs(300, 2, "q-c", "n2"), *runs(310, 2, "o-c", "n2"),
]  # fmt: skip


def test_shares_and_limits_follow_the_queue() -> None:
    asked = [*tasks(1, 16, "a"), *tasks(20, 16, "b"), *tasks(40, 16, "c")]
    assert caps(world(*asked)) == {"a": 4, "b": 2, "c": 2, "d": 0}
    some = [*asked, *tasks(60, 4, "d")]
    assert caps(world(*some)) == {"a": 2, "b": 1, "c": 1, "d": 0}
    assert shares(world(*FULL))["a"] == (F(8), F(8), F(4), F(8))
    assert steps(settled(world(*asked)), SetProjectLimits) == [], "what is in force is not set again"


@pytest.mark.parametrize(
    "job",
    [
        waiting("9", "d", dependency="afterok:1", reason="Dependency"),
        waiting("9", "d", reason="JobHeldUser"),
        waiting("9", "d", gpus=9),
        waiting("9", "d", constraint="h100"),
        waiting("9", "d", cpus_per_node=9),
        replace(waiting("9", "d"), partitions=("gpu",), account="nobody"),
    ],
    ids=["dependency", "held", "more GPUs than a node", "no such feature", "more CPUs", "no project"],
)
def test_what_cannot_start_does_not_ask(job: Job) -> None:
    assert shares(world(job))["d"][0] == 0


def test_what_asks() -> None:
    array = waiting("9", "a", array_tasks="1-40", tasks=40, tasks_limit=3, array_job_id="9")
    het = [waiting(f"8+{n}", "b", gpus=2, het_job_id="8", het_offset=n) for n in (0, 1)]
    capped = waiting("7", "c", reason="QOSGrpGRES")
    preempted = waiting("6", "d", reason="BeginTime", restarts=1, eligible=NOW + 119)
    found = shares(world(array, *het, capped, preempted))
    assert {name: some[0] for name, some in found.items()} == {"a": 3, "b": 4, "c": 1, "d": 1}


def test_a_job_that_may_not_be_requeued_asks_for_what_is_left_of_the_quota_at_most() -> None:
    kept = [replace(job, partitions=("q-a",), requeue=False) for job in tasks(1, 6, "a", reason="Priority")]
    full = [*runs(100, 3, "q-a", "n1"), *runs(110, 5, "o-b", "n1"), *runs(120, 8, "o-b", "n2")]
    assert shares(world(*kept))["a"][0] == 4
    assert shares(world(*kept, *full))["a"][0] == 4
    assert requeued(world(*kept, *full, *runs(200, 2, "o-c", "n2"))) == []
    large = replace(waiting("9", "a", gpus=5, reason="None"), partitions=("q-a",), requeue=False)
    assert shares(world(large))["a"][0] == 0
    array = replace(waiting("9", "a", array_tasks="1-9", tasks=9, array_job_id="9"), partitions=("q-a",))
    assert shares(world(array))["a"][0] == 4


def test_a_job_that_waits_for_more_nodes_leaves_the_quota_to_smaller_ones() -> None:
    kept = [replace(waiting(str(n), "d", gpus), partitions=("q-d",), requeue=False) for n, gpus in ((1, 8), (2, 2))]
    snapshot = world(*kept, nodes=("n1",))
    assert isinstance(snapshot.slurm, SlurmView)
    seven = {"n1": replace(snapshot.slurm.nodes["n1"], gres=(Gres("gpu", "", 7),))}
    assert shares(replace(snapshot, slurm=replace(snapshot.slurm, nodes=seven)))["d"][3] == 2


def test_gpus_of_others_and_of_closed_nodes_are_not_shared() -> None:
    stranger = replace(running("1", "o-a", "n1", gpus=4), partitions=("gpu",), account="nobody")
    snapshot = world(stranger, *tasks(10, 16, "a"))
    assert shares(snapshot)["a"][3] == 12
    assert not isinstance(snapshot.slurm, str)
    drained = replace(snapshot.slurm.nodes["n2"], flags=frozenset({"DRAIN"}))
    closed = replace(snapshot.slurm, nodes={**snapshot.slurm.nodes, "n2": drained})
    assert shares(replace(snapshot, slurm=closed))["a"][3] == 4


def test_a_job_larger_than_the_quota_runs_beyond_it_as_a_whole() -> None:
    assert caps(world(waiting("1", "a", gpus=8)))["a"] == 8
    assert caps(world(*tasks(1, 8, "a")))["a"] == 4
    assert caps(world(*[replace(job, partitions=("o-a",)) for job in tasks(1, 8, "a")]))["a"] == 8, "over quota alone"


def test_gpus_that_no_share_lets_anybody_use_are_lent_to_one_project() -> None:
    of = {n: Project(n, account=n, quota=F(5), partitions=("gpu",)) for n in ("a", "b", "c")}
    jobs = [waiting(str(n), name, gpus=8) for n, name in enumerate("abc")]
    assert caps(world(*jobs, of=of)) == {"a": 8, "b": 1 - 1 + 5, "c": 5}
    jobs[0] = running("0", "o-a", "n1", gpus=8)
    assert caps(world(*jobs, of=of))["b"] == 8
    jobs[1] = running("1", "o-b", "n2", gpus=8)
    assert caps(world(*jobs, of=of))["c"] == 5, "nothing is free"


def test_the_youngest_of_the_project_farthest_above_its_share_are_requeued() -> None:
    # d has got 4 back from Slurm, from a alone: b and c still have 4 each and are to have 3.
    jobs = [job for job in FULL if job.id not in ("110", "111", "112", "113")]
    jobs += [*runs(400, 4, "q-d", "n1"), *tasks(1, 8, "a"), *tasks(20, 8, "b"), *tasks(40, 8, "c")]
    assert caps(world(*jobs)) == {"a": 2, "b": 1, "c": 1, "d": 0}
    # Of 210 and 211 the latter is younger.
    assert requeued(world(*jobs)) == ["211", "311"]
    first = decide(settled(world(*jobs)), (), Tuning()).actions
    reasons = [run.reason for action in first if isinstance(action, RequeueJobs) for run in action.runs]
    assert reasons[0] == "project a asks for its share: project b has 4 GPUs, and its share is 3 GPUs"
    assert steps(world(*jobs), RequeueJobs) == [], "not before the limits are in force"


STARVING = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 8, "o-a", "n2"), *tasks(1, 8, "b")]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 2),
        ({"a": {"min_runtime_s": 2000.0}}, 0),
        ({"b": {"reclaim_after_s": 100.0}}, 0),
        ({"b": {"reclaim_after_s": 50.0}}, 2),
        ({"b": {"limit": F(2)}}, 0),
    ],
)
def test_when_jobs_are_requeued(changed: Mapping[str, Any], expected: int) -> None:
    # b has two GPUs of its quota coming from slurmctld: what it gets beyond them is burstd's to take back.
    of = {n: p for n, p in projects(**changed).items() if n in "ab"}
    assert len(requeued(world(*STARVING, of=of))) == (3 if expected else 0)


def test_jobs_that_slurm_must_not_run_again_stay() -> None:
    kept = [replace(job, requeue=False) if job.partitions == ("o-a",) else job for job in STARVING]
    assert requeued(world(*kept, of={n: p for n, p in projects().items() if n in "ab"})) == []


def test_who_is_not_needed_is_spared() -> None:
    # The youngest alone makes room for the job of two GPUs: the ones of one GPU before it are spared.
    of = {name: project for name, project in projects().items() if name in "ab"}
    jobs = [
        *runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 6, "o-a", "n2"),
        running("130", "o-a", "n2", gpus=2, since=900), running("131", "o-a", "n1", since=10), waiting("1", "b", 3),
    ]  # fmt: skip
    jobs = [job for job in jobs if job.id != "113"]
    # b's share is 3: 131 and 130 come first by age, but make no room on one node; then 125 does, with 130.
    assert requeued(world(*jobs, of=of)) == ["130", "125"]


def test_a_gang_gets_whole_nodes_and_nobody_is_pushed_below_its_share() -> None:
    of = {name: project for name, project in projects(b={"quota": F(0), "weight": F(4)}).items() if name in "ab"}
    gang = waiting("1", "b", 4, nodes=2)
    jobs = [running(str(n), "o-a", on, gpus=2, since=500 + n) for n, on in enumerate(["n1", "n2"] * 4)]
    # Shares are 10 of a (4 and half of 12) and 6 of b: eight GPUs for the gang are more than that.
    assert requeued(world(*jobs, gang, of=of)) == []
    of["b"] = replace(of["b"], quota=F(4))
    assert sorted(requeued(world(*jobs, gang, of=of))) == ["0", "1", "2", "3"]
    whole = [running(str(n), "o-a", on, gpus=8) for n, on in enumerate(["n1", "n2"])]
    of["b"] = replace(of["b"], quota=F(3))
    assert requeued(world(*whole, *tasks(10, 8, "b"), of=of)) == [], "a is to have more than one of its jobs"


def test_small_jobs_are_moved_together_for_a_large_one() -> None:
    of = {name: project for name, project in projects().items() if name in "ab"}
    jobs = [*runs(1, 4, "o-a", "n1"), *runs(11, 4, "o-a", "n2"), *runs(21, 3, "q-b", "n2"), waiting("99", "b", 5)]
    snapshot = world(*jobs, of=of)
    moved = steps(settled(snapshot), RequeueJobs)[0].runs
    assert [run.job_id for run in moved] == ["4"]
    assert (moved[0].cause, moved[0].reason) == (
        "consolidation", "makes room on n1 for job 99, and has room elsewhere",
    )  # fmt: skip
    full = world(*jobs, *runs(31, 1, "q-a", "n2"), of=of)
    assert requeued(full) == [], "the one that would be moved has no room elsewhere"
    young = [replace(job, start=NOW - 100) if job.node_list else job for job in jobs]
    assert requeued(world(*young, of=of)) == [], "they have just begun"


def test_what_slurm_preempted_is_started_again_without_its_delay() -> None:
    cut = waiting("6", "d", reason="BeginTime", restarts=1, eligible=NOW + 100)
    assert steps(world(cut), StartJobsNow) == [StartJobsNow(("6",))]
    assert steps(world(replace(cut, eligible=NOW + 120)), StartJobsNow) == [], (
        "its nodes may not know yet that it ended"
    )
    assert steps(world(replace(cut, partitions=("gpu",))), StartJobsNow) == [], "not a project's: it is its user's wish"


GPU_POOL = pool("cloud", 8, Shape(1, 8000, (Gres("gpu", "", 1),)), partitions=("gpu", *PAIRS))


def machines(snapshot: Snapshot) -> int:
    return sum(want.nodes for want in decide(snapshot, (), Tuning()).target.wants)


@pytest.mark.parametrize(
    ("changed", "waits", "expected"),
    [
        ({}, 600.0, 4),
        ({"burst_over_quota": BurstOverQuota.ALWAYS}, 600.0, 6),
        ({"burst_over_quota": BurstOverQuota.BUDGET}, 600.0, 4),
        ({"quota": F(0)}, 600.0, 0),
    ],
)
def test_machines_are_started_for_the_quota_and_beyond_it_as_the_project_says(
    changed: Mapping[str, Any], waits: float, expected: int
) -> None:
    jobs = tasks(1, 6, "a", eligible=NOW - waits, submitted=NOW - waits)
    of = projects(a=changed)
    offers = (offer(shape=GPU_POOL.shape),)
    assert machines(world(*jobs, nodes=(), of=of, pools=(GPU_POOL,), offers=offers)) == expected
    array = waiting("1", "a", array_tasks="1-6", tasks=6, array_job_id="1", eligible=NOW - waits)
    assert machines(world(array, nodes=(), of=of, pools=(GPU_POOL,), offers=offers)) == expected


def test_no_machine_is_started_beyond_the_quota_for_a_job_that_may_not_be_requeued() -> None:
    jobs = tasks(1, 6, "a", eligible=NOW - 600, submitted=NOW - 600)
    jobs = [replace(job, partitions=("q-a",), requeue=False) for job in jobs]
    of, offers = projects(a={"burst_over_quota": BurstOverQuota.ALWAYS}), (offer(shape=GPU_POOL.shape),)
    snapshot = world(*jobs, nodes=(), of=of, pools=(GPU_POOL,), offers=offers)
    assert machines(snapshot) == 4
    reasons = {remark.reason for remark in decide(snapshot, (), Tuning()).remarks if remark.subject == "job:6"}
    assert "project a has no more of its quota left, and this job may not be requeued beyond it" in str(reasons)


@pytest.mark.parametrize(("reclaim_after_s", "waits", "expected"), [(0, 5, 0), (0, 60, 4), (60, 5, 4), (60, 70, 0)])
def test_what_others_give_back_comes_before_a_machine(reclaim_after_s: float, waits: float, expected: int) -> None:
    jobs = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 8, "o-a", "n2")]
    jobs += tasks(1, 4, "d", eligible=NOW - waits, submitted=NOW - waits)
    of = projects(d={"reclaim_after_s": float(reclaim_after_s)})
    assert machines(world(*jobs, of=of, pools=(GPU_POOL,), offers=(offer(shape=GPU_POOL.shape),))) == expected


WAITS_FOR_CLOUD = projects(d={"reclaim_after_s": 60.0}, c={"reclaim_after_s": 60.0})
FULL_OF_A = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 8, "o-a", "n2")]
SOON: dict[str, Any] = {"eligible": NOW - 5, "submitted": NOW - 5}
LATE: dict[str, Any] = {"eligible": NOW - 60, "submitted": NOW - 60}
CLOUD: dict[str, Any] = {"pools": (GPU_POOL,), "offers": (offer(shape=GPU_POOL.shape),)}


def preemption(snapshot: Snapshot) -> tuple[set[str], set[str]]:
    """Projects whose quota is to preempt from now on, and those whose quota is to wait."""
    found = steps(snapshot, SetQuotaPreemption)
    assert len(found) <= 1
    return {name for step in found for name in step.preempt}, {name for step in found for name in step.wait}


def without_preemption(snapshot: Snapshot, *names: str) -> Snapshot:
    return replace(snapshot, projects=replace(snapshot.projects, without_preemption=frozenset(names)))


def array(job_id: str, project: str, tasks: int, **fields: Any) -> Job:
    return waiting(job_id, project, array_tasks=f"1-{tasks}", tasks=tasks, array_job_id=job_id, **fields)


WAITS = [
    ("nothing waits", [], CLOUD, True),
    ("machines can be started", tasks(1, 4, "d", **SOON), CLOUD, True),
    ("an array", [array("1", "d", 8, **SOON)], CLOUD, True),
    ("an array of which a part has waited: it is one row", [array("1", "d", 8, **LATE)], CLOUD, False),
    ("it has waited", tasks(1, 1, "d", **LATE), CLOUD, False),
    ("the first of them has waited", [*tasks(1, 1, "d", **LATE), *tasks(2, 3, "d", **SOON)], CLOUD, False),
    ("others wait before it", [*tasks(1, 16, "a", **LATE), *tasks(50, 4, "d", **SOON)], CLOUD, True),
    ("a part of an array waits before it", [array("1", "b", 9, **LATE), *tasks(50, 4, "d", **SOON)], CLOUD, True),
    (
        "what is beyond the quota has waited",
        [*tasks(50, 8, "d", priority=9, **SOON), *tasks(80, 3, "d", **LATE)],
        CLOUD,
        True,
    ),
    ("no pool", tasks(1, 1, "d", **SOON), {}, False),
    ("no offer", tasks(1, 1, "d", **SOON), {"pools": (GPU_POOL,)}, False),
    ("no machine is large enough", tasks(1, 1, "d", gpus=2, **SOON), CLOUD, False),
    ("too few machines for an array", [array("1", "d", 8, **SOON)], {"few": 7}, False),
    ("too few machines for jobs", tasks(1, 8, "d", **SOON), {"few": 7}, False),
    ("burstd is paused", tasks(1, 1, "d", **SOON), {**CLOUD, "paused": True}, False),
    ("what cannot start waits", tasks(1, 1, "d", reason="JobHeldUser", **LATE), {}, True),
    ("what may not run within the quota waits", [waiting("1", "d", 0, **LATE)], {}, True),
]


@pytest.mark.parametrize(("jobs", "cloud", "waits"), [row[1:] for row in WAITS], ids=[row[0] for row in WAITS])
def test_a_quota_waits_while_machines_are_on_their_way_for_all_of_it(
    jobs: list[Job], cloud: dict[str, Any], waits: bool
) -> None:
    if few := cloud.get("few"):
        small = pool("cloud", few, GPU_POOL.shape, partitions=("gpu", *PAIRS))
        cloud = {"pools": (small,), "offers": CLOUD["offers"]}
    snapshot = world(*FULL_OF_A, *jobs, of=WAITS_FOR_CLOUD, **cloud)
    assert preemption(snapshot) == (set(), {"c", "d"} if waits else {"c"})
    assert preemption(without_preemption(snapshot, "c", "d")) == (set() if waits else {"d"}, set())


def test_a_quota_waits_for_machines_that_have_been_started_and_for_gpus_that_are_free() -> None:
    starting = tuple(
        claim(f"cloud{n}", state, jobs=("1",), offer=offer(shape=GPU_POOL.shape))
        for n, state in enumerate([ClaimState.PLANNED, ClaimState.LAUNCHING, ClaimState.BOOTING, ClaimState.READY], 1)
    )
    # No offer any more: a fifth GPU comes from nowhere.
    for asked, waits in ((4, True), (5, False)):
        snapshot = world(
            *FULL_OF_A, array("1", "d", asked, **SOON), of=WAITS_FOR_CLOUD, pools=(GPU_POOL,), claims=starting
        )
        assert preemption(without_preemption(snapshot, "c", "d")) == (set() if waits else {"d"}, set())
    free = world(*FULL_OF_A[:-2], array("1", "d", 2, **SOON), of=WAITS_FOR_CLOUD)
    assert preemption(without_preemption(free, "c", "d")) == (set(), set())
    more = world(*FULL_OF_A[:-2], array("1", "d", 3, **SOON), of=WAITS_FOR_CLOUD)
    assert preemption(without_preemption(more, "c", "d")) == ({"d"}, set())


def test_a_quota_that_waits_is_looked_at_again_when_its_first_job_has_waited() -> None:
    snapshot = world(*FULL_OF_A, *tasks(1, 2, "d", **SOON), of=WAITS_FOR_CLOUD, **CLOUD)
    assert decide(snapshot, (), Tuning()).target.wake_at == NOW + 55


def test_quotas_of_projects_that_do_not_wait_or_are_gone_preempt() -> None:
    assert preemption(world(*tasks(1, 4, "d", **SOON), **CLOUD)) == (set(), set())
    left = without_preemption(world(**CLOUD), "d", "gone")
    assert preemption(left) == ({"d", "gone"}, set())
    assert preemption(replace(left, record_doubt="the database is an older copy")) == ({"d", "gone"}, set())
    assert preemption(replace(left, projects=replace(left.projects, projects={}))) == ({"d", "gone"}, set())
    unknown = world(of=WAITS_FOR_CLOUD, **CLOUD)
    assert preemption(replace(unknown, projects=replace(unknown.projects, limits={}))) == (set(), set()), "not set up"


PROTECTED = [
    ("nothing waits", runs(1, 3, "o-a", "n1"), {}, 2),
    ("what waits fits its quota too", [*runs(1, 3, "o-a", "n1"), *tasks(20, 1, "a")], {}, 2),
    ("it asks for more than its quota", [*runs(1, 3, "o-a", "n1"), *tasks(20, 2, "a")], {}, 1),
    ("it runs more than its quota", runs(1, 5, "o-a", "n1"), {}, 1),
    ("it runs within its quota alone", runs(1, 3, "q-a", "n1"), {}, 1),
    ("a job without GPUs would start there", [*runs(1, 3, "o-a", "n1"), waiting("20", "a", 0)], {}, 1),
    (
        "a job would start there alone",
        [*runs(1, 3, "o-a", "n1"), replace(waiting("20", "a"), partitions=("o-a",))], {}, 1,
    ),
    ("its quota waits", [*runs(1, 3, "o-a", "n1"), *tasks(20, 1, "a")], {"a": {"reclaim_after_s": 60.0}}, 1),
    ("its quota could wait", runs(1, 3, "o-a", "n1"), {"a": {"reclaim_after_s": 60.0}}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("jobs", "changed", "tier"), [row[1:] for row in PROTECTED], ids=[row[0] for row in PROTECTED])
def test_a_project_that_asks_for_no_more_than_its_quota_is_preempted_last(
    jobs: list[Job], changed: Mapping[str, Any], tier: int
) -> None:
    others = [*runs(40, 4, "o-b", "n2"), *tasks(60, 8, "b")]
    limits = settled(world(*jobs, *others, of=projects(**changed))).projects.limits
    assert (limits["a"].tier, limits["b"].tier) == (tier, 1)
    if tier == 2:
        over = sum(g.count for job in jobs if job.partitions == ("o-a",) for g in job.gres_per_node)
        assert limits["a"].gpus == over, "nothing more starts there"


def test_quotas_beyond_what_there_is_are_named() -> None:
    snapshot = world()
    assert isinstance(snapshot.slurm, SlurmView)
    nodes = snapshot.slurm.nodes
    assert quota_faults(projects(), nodes) == []
    assert quota_faults(projects(d={"quota": F(9)}), nodes) == [
        (
            "quotas add up to 17 GPUs (a 4 GPUs, b 2 GPUs, c 2 GPUs, d 9 GPUs), and the nodes of gpu have 16: lower"
            " one, or set overcommit = true in [fair_share] of burstd.toml"
        )
    ]
    view = ProjectsView(projects(d={"quota": F(9)}))
    assert len(capacity_alarms(replace(snapshot, projects=view))) == 1
    assert capacity_alarms(replace(snapshot, projects=replace(view, fair_share=FairShare(overcommit=True)))) == []


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"features": ("nosuch",)}, "no node of gpu has feature nosuch (features: a100, new, v100)"),
        ({"features": ("a100", "v100")}, "no node of gpu has all of the features a100, v100"),
        ({"partitions": ("nosuch",)}, "there is no node in partition nosuch (partitions: gpu, "),
    ],
)
def test_a_group_without_nodes_names_what_is_missing_and_what_there_is(fields: Any, cause: str) -> None:
    nodes = nodes_with({"n1": "a100,new", "n2": "v100"})
    (fault,) = quota_faults({"d": replace(projects()["d"], **fields, quota=F(1))}, nodes)
    assert fault.startswith(f"project d has no nodes: {cause}")


OF_TWO_KINDS = projects(
    a={"features": ("a100",)}, b={"features": ("a100",)}, c={"features": ("v100",)}, d={"features": ("v100",)}
)


def nodes_with(features: Mapping[str, str]) -> dict[str, Node]:
    return {node.name: node for node in site((), features, features)}


def test_nodes_of_one_partition_are_divided_by_their_features() -> None:
    jobs = [*runs(100, 2, "q-c", "n2"), *tasks(1, 16, "a"), *tasks(20, 16, "b"), *tasks(40, 16, "c")]
    of, kinds = ProjectsView(OF_TWO_KINDS), {"n1": "a100,new", "n2": "v100"}
    snapshot = make_snapshot(*jobs, nodes=site(jobs, kinds, kinds), projects=of, pools=(), offers=())
    # n1: quotas of 4 and 2, and two more by weight; n2: all of it is c's.
    assert [some[3] for some in shares(snapshot).values()] == [5, 3, 8, 0]
    moved = make_snapshot(
        *jobs, nodes=site(jobs, kinds, {"n1": "a100", "n2": "a100"}), projects=of, pools=(), offers=()
    )
    assert [some[3] for some in shares(moved).values()] == [9, 5, 0, 0], "c's two run on a node of the others"


def test_a_job_that_only_nodes_of_other_projects_can_run_does_not_ask() -> None:
    kinds = {"n1": "a100", "n2": "v100"}
    jobs = [waiting("1", "a", constraint="v100"), waiting("2", "a", constraint="a100")]
    snapshot = make_snapshot(
        *jobs, nodes=site((), kinds, kinds), projects=ProjectsView(OF_TWO_KINDS), pools=(), offers=()
    )
    assert shares(snapshot)["a"][0] == 1


@pytest.mark.parametrize(
    ("features", "common"),
    [
        ({"n1": "a100", "n2": "v100"}, ""),
        ({"n1": "a100", "n2": ""}, ""),
        (
            {"n1": "a100,v100", "n2": "v100,a100"},
            "n1, n2 are of gpu with a100 (project a, b) and of gpu with v100 (project c, d)",
        ),
        (
            {"n1": "v100", "n2": "a100,v100"},
            "n2 is of gpu with a100 (project a, b) and of gpu with v100 (project c, d)",
        ),
    ],
)
def test_a_node_of_two_groups_is_named(features: Mapping[str, str], common: str) -> None:
    nodes = nodes_with(features)
    found = group_faults(OF_TWO_KINDS, nodes)
    assert len(found) == bool(common)
    assert common in "".join(found)
    view = ProjectsView(OF_TWO_KINDS, fair_share=FairShare(overcommit=True))
    snapshot = make_snapshot(nodes=tuple(nodes.values()), projects=view)
    assert capacity_alarms(snapshot) == found, "overcommit lets quotas add up to more, and no node be of two groups"


def test_partitions_that_have_the_same_nodes_are_one_group_or_a_fault() -> None:
    of = projects(a={"partitions": ("all",)})
    nodes = {"n1": replace(nodes_with({"n1": ""})["n1"], partitions=("gpu", "all"))}
    (found,) = group_faults(of, nodes)
    assert "n1 is of all (project a) and of gpu (project b, c, d)" in found


def test_quotas_of_one_feature_are_compared_with_the_nodes_that_have_it() -> None:
    (found,) = quota_faults(OF_TWO_KINDS, nodes_with({"n1": "a100", "n2": "v100"}))
    assert found.startswith(
        "quotas add up to 10 GPUs (c 2 GPUs, d 8 GPUs), and the nodes of gpu with v100 have 8: lower"
    )
