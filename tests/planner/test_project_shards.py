"""Projects on one node of GPUs of four shards each. burstd sees what is left of each GPU, not which one a job is on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.plan import SetProjectLimits
from burstd.domain.project import OverQuotaLimits, Project, ProjectsView
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Gres, SharedGpu
from burstd.domain.snapshot import Snapshot
from burstd.planner.projects.capacity import capacity_alarms, part_faults
from tests.examples import examples
from tests.planner.test_projects import (
    PAIRS,
    F,
    requeued,
    running,
    settled,
    shares,
    steps,
    tasks,
    waiting,
)
from tests.planner.worlds import make_snapshot, node

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


@cache
def most_that_fit(left: tuple[int, ...], sizes: tuple[int, ...]) -> int:
    """The shards that jobs of these sizes have at most once they have started on GPUs with so many left."""
    if not sizes:
        return 0
    size, *rest = sizes
    put = ((*left[:n], there - size, *left[n + 1 :]) for n, there in enumerate(left) if there >= size)
    return max([most_that_fit(left, tuple(rest)), *(size + most_that_fit(after, tuple(rest)) for after in put)])


@settings(max_examples=examples(300), deadline=None)
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
    stands = shares(snapshot)
    for name, (_, has, _, share) in stands.items():
        lost = sum(F(size[job.id], 4) for job in there if job.id in gone and job.account == name)
        assert lost == 0 or has - lost >= share
    asked = tuple(size[job.id] for job in waits if stands[job.account][1] < stands[job.account][3])
    assert not gone or most_that_fit(left(gone), asked) > most_that_fit(left(), asked)


def test_a_quota_that_is_no_whole_number_of_shards_is_named() -> None:
    third = {"a": replace(THIRDS["a"], quota=F(3, 10)), "b": THIRDS["b"]}
    assert capacity_alarms(shared(left=(4, 4), of=third)) == [
        "project a has a quota of 0.3 GPUs, and a GPU of gpu has 4 shards: 0.25 GPUs count; set quota to 0.25 or 0.5"
    ]
    assert capacity_alarms(shared(left=(4, 4))) == []


def test_a_quota_of_a_part_of_a_gpu_that_has_no_shards_is_named() -> None:
    nodes = {"n1": node("n1", partitions=("gpu",), gres=(Gres("gpu", "", 4),))}
    part = {"a": replace(THIRDS["a"], quota=F(13, 10))}
    (fault,) = part_faults(part, nodes)
    assert fault == (
        "project a has a quota of 1.3 GPUs, and the GPUs of gpu have no shards: it counts as 1 GPU; set quota to 1 or"
        " 2, or divide the GPUs into shards"
    )
    assert part_faults({"a": replace(THIRDS["a"], quota=F(2))}, nodes) == []
