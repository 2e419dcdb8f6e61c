"""What is done for projects in one decision: shares, limits, who is requeued for whom, and machines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.plan import RequeueJobs, SetProjectLimits, StartJobsNow
from burstd.domain.plugins.policy import Target
from burstd.domain.project import BurstOverQuota, FairShare, OverQuotaLimits, Project, ProjectsView
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape, SharedGpu
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.projects.capacity import quota_alarms, quota_faults
from burstd.planner.timeouts import Tuning
from tests.examples import examples
from tests.planner.worlds import NOW, make_snapshot, node, offer, pool
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


def site(jobs: Iterable[Job], names: Iterable[str] = ("n1", "n2")) -> tuple[Node, ...]:
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


def test_what_runs_beyond_the_quota_though_it_has_room_is_preempted_last() -> None:
    limits = settled(world(*runs(1, 3, "o-a", "n1"), *runs(10, 4, "o-b", "n2"))).projects.limits
    assert (limits["a"].tier, limits["b"].tier) == (2, 1)
    assert settled(world(*runs(1, 3, "o-a", "n1"), *tasks(20, 1, "a"))).projects.limits["a"].tier == 1


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


@pytest.mark.parametrize(("reclaim_after_s", "waits", "expected"), [(0, 5, 0), (0, 60, 4), (60, 5, 4), (60, 70, 0)])
def test_what_others_give_back_comes_before_a_machine(reclaim_after_s: float, waits: float, expected: int) -> None:
    jobs = [*runs(100, 4, "q-a", "n1"), *runs(110, 4, "o-a", "n1"), *runs(120, 8, "o-a", "n2")]
    jobs += tasks(1, 4, "d", eligible=NOW - waits, submitted=NOW - waits)
    of = projects(d={"reclaim_after_s": float(reclaim_after_s)})
    assert machines(world(*jobs, of=of, pools=(GPU_POOL,), offers=(offer(shape=GPU_POOL.shape),))) == expected


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
    assert len(quota_alarms(replace(snapshot, projects=view))) == 1
    assert quota_alarms(replace(snapshot, projects=replace(view, fair_share=FairShare(overcommit=True)))) == []


# One node of two GPUs of four shards each. burstd sees what is left of each GPU, not which GPU a job is on.

THIRDS = {n: Project(n, account=n, quota=F(1, 4), partitions=("gpu",)) for n in ("a", "b", "c")}


def shards(job_id: str, label: str, number: int, since: float = 1000.0) -> Job:
    """It runs where the label is a partition, and waits where it is a project."""
    found = running(job_id, label, "n1", since=since) if "-" in label else waiting(job_id, label)
    return replace(found, gres_per_node=(Gres("shard", "", number),))


def shared(*jobs: Job, left: tuple[int, ...], of: Mapping[str, Project] = THIRDS) -> Snapshot:
    whole = sum(g.count for job in jobs if job.node_list for g in job.gres_per_node if g.name == "gpu")
    # What is taken whole is at the end.
    gpus = [SharedGpu("", 4, free, whole=n >= len(left) - whole) for n, free in enumerate(left)]
    there = node(
        "n1", state="MIXED", partitions=("gpu", *PAIRS), cpus=16, cpus_allocated=sum(1 for j in jobs if j.node_list),
        gres=(Gres("gpu", "", len(left)), Gres("shard", "", 4 * len(left))),
        gres_used=(Gres("gpu", "", whole),) if whole else (), shared_gpus=tuple(gpus),
    )  # fmt: skip
    view = ProjectsView(of, dict.fromkeys(of, OverQuotaLimits(F(0), 1)), shards=dict.fromkeys(of, 4))
    return make_snapshot(*jobs, nodes=(there,), projects=view, pools=(), offers=())


def test_quotas_shares_and_limits_count_shards() -> None:
    jobs = [shards(str(n), name, 1) for n, name in enumerate("aaaaaaaabbbbbbbb")]
    snapshot = shared(*jobs, left=(4, 4))
    assert {n: s[3] for n, s in shares(snapshot).items()} == {"a": 1, "b": 1, "c": 0}
    limits = settled(snapshot).projects.limits
    assert {n: some.gpus for n, some in limits.items()} == {"a": F(3, 4), "b": F(3, 4), "c": 0}
    assert steps(settled(snapshot), SetProjectLimits) == []
    counted_whole = replace(snapshot, projects=replace(snapshot.projects, shards={}))
    assert {some.gpus for some in settled(counted_whole).projects.limits.values()} == {F(0), F(1)}
    third = {n: replace(p, quota=F(3, 10)) for n, p in THIRDS.items()}
    assert settled(shared(*jobs, left=(4, 4), of=third)).projects.limits == limits, "rounded down to a shard"


def test_jobs_of_whole_gpus_and_of_shards_get_equal_shares() -> None:
    jobs = [*tasks(1, 8, "a"), *(shards(str(20 + n), "b", 1) for n in range(8))]
    assert {n: s[3] for n, s in shares(shared(*jobs, left=(4, 4))).items()} == {"a": 1, "b": 1, "c": 0}


def ones(count: int) -> list[Job]:
    """Jobs of one shard beyond a's quota, the youngest first."""
    return [shards(str(10 + n), "o-a", 1, since=100 + n) for n in range(count)]


HALVES = [shards(str(10 + n), "o-a", 2, since=100 + n) for n in range(4)]
WHOLE = running("80", "o-a", "n1", since=900)


@pytest.mark.parametrize(
    ("runs_there", "left", "asks", "expected"),
    [
        # b's first shard is its quota's, and slurmctld's to take back; the second is its share's.
        (ones(4), (0,), [1, 1], 1),
        (ones(4), (0,), [2], 2),
        # Of three on two GPUs two are on the same one; a is to have all but two shards.
        (ones(8), (0, 0), [2, 2], 3),
        (ones(8), (0, 0), [2], 0),
        (ones(16), (0, 0, 0, 0), [2] * 4, 5),
        # Seven on six GPUs: a whole GPU's beyond what the job asks for.
        (ones(24), (0,) * 6, [2] * 6, 0),
        (HALVES, (0, 0), [2], 1),
        (HALVES, (0, 0), [4], 0),
        # One that makes room alone, though others come first.
        ([*HALVES, shards("80", "o-a", 4, since=900)], (0, 0, 0), [4], ["80"]),
        ([*ones(8), WHOLE], (0, 0, 0), [3, 1], ["80"]),
        ([*ones(8), WHOLE], (0, 0, 0), [3], 0),
    ],
)
def test_jobs_of_shards_are_requeued_where_that_makes_room_for_sure(
    runs_there: list[Job], left: tuple[int, ...], asks: list[int], expected: int | list[str]
) -> None:
    """Slurm does not say which GPU a job is on. An expected number: so many of the youngest."""
    of = {name: replace(project, weight=F(1)) for name, project in THIRDS.items()}
    jobs = [*runs_there, *(shards(str(90 + n), "b", number) for n, number in enumerate(asks))]
    youngest = [str(10 + n) for n in range(expected)] if isinstance(expected, int) else expected
    assert requeued(shared(*jobs, left=left, of=of)) == youngest


@st.composite
def crowded_gpus(draw: st.DrawFn) -> tuple[int, list[Job], dict[str, int], list[Job]]:
    """GPUs of four shards, what runs on them, on which GPU each job is, and what waits."""
    gpus = draw(st.integers(1, 3))
    there: list[Job] = []
    on: dict[str, int] = {}
    for gpu in range(gpus):
        left = draw(st.sampled_from([4, 4, 4, 3]))
        while left:
            part = min(left, draw(st.sampled_from([1, 1, 2, 2, 3, 4])))
            label = draw(st.sampled_from(["o-a", "o-a", "o-a", "o-b", "q-c"]))
            job_id = str(10 + len(there))
            on[job_id] = gpu
            there.append(shards(job_id, label, part, since=draw(st.integers(1, 500))))
            left -= part
    sizes = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=2, max_size=8))
    return gpus, there, on, [shards(str(90 + n), name, size) for n, (name, size) in enumerate(sizes)]


@settings(max_examples=examples(300))
@given(crowded_gpus(), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_nobody_falls_below_its_share_and_each_requeue_makes_room(
    world: tuple[int, list[Job], dict[str, int], list[Job]], quotas: list[int]
) -> None:
    gpus, there, on, waits = world
    size = {job.id: job.gres_per_node[0].count for job in [*there, *waits]}

    def left(gone: Iterable[str] = ()) -> tuple[int, ...]:
        return tuple(4 - sum(size[j] for j, at in on.items() if at == gpu and j not in gone) for gpu in range(gpus))

    of = {name: replace(THIRDS[name], quota=F(n, 4), weight=F(1)) for name, n in zip("abc", quotas, strict=True)}
    snapshot = settled(shared(*there, *waits, left=left(), of=of))
    gone = requeued(snapshot)
    for name, (_, has, _, share) in shares(snapshot).items():
        lost = sum(F(size[job.id], 4) for job in there if job.id in gone and job.account == name)
        assert lost == 0 or has - lost >= share
    assert not gone or any(max(left()) < size[job.id] <= max(left(gone)) for job in waits)


def test_a_quota_that_is_no_whole_number_of_shards_is_named() -> None:
    third = {"a": replace(THIRDS["a"], quota=F(3, 10)), "b": THIRDS["b"]}
    assert quota_alarms(shared(left=(4, 4), of=third)) == [
        "project a has a quota of 0.3 GPUs, and a GPU of gpu has 4 shards: 0.25 GPUs count; set quota to 0.25 or 0.5"
    ]
    assert quota_alarms(shared(left=(4, 4))) == []
