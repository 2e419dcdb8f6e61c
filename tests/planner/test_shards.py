"""gres/shard: which GPU has which shards left, as slurmctld gives them away, and how many machines a queue needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.claim import ClaimState
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import with_shards_in_use
from burstd.domain.slurm.shape import Gres, Shape, SharedGpu, gpus_of, split_shards
from burstd.planner.demand.gres import GresCounts, available_gres, has_gres, requests_that_fit, subtract_gres
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.offers.candidates import JobCost
from burstd.planner.policy_chain import make_target

from .worlds import claim, job, last_verdict, make_snapshot, node, offer, pool, slot_node, target, wants

Free = tuple[int, ...]
"""What is left of each GPU of a node."""


def gpu_node(gpus: int, shards: int, cpus: int = 64) -> Shape:
    return Shape(cpus, 64000, (Gres("gpu", "", gpus), Gres("shard", "", shards)))


def asking(words: str, job_id: str = "1", **fields: object) -> Job:
    name, number = words.split(":")
    return job(job_id, gres_per_node=(Gres(name, "", int(number)),), **fields)


@pytest.mark.parametrize(
    ("gpus", "shards", "each"), [(2, 8, [4, 4]), (4, 10, [2, 2, 3, 3]), (4, 3, []), (0, 8, []), (10**9, 10**9, [])]
)
def test_shards_lie_on_gpus_as_slurmd_spreads_them(gpus: int, shards: int, each: list[int]) -> None:
    found = split_shards((Gres("gpu", "", gpus), Gres("shard", "", shards)))
    assert [(gpu.shards, gpu.free) for gpu in found] == [(n, n) for n in each]


def test_jobs_take_the_gpus_that_slurm_gives_them() -> None:
    """As GresUsed of Slurm 24.11 shows it after each job."""
    left = GresCounts(gpu_node(4, 16).gres)
    steps: list[tuple[Gres, Free]] = [
        (Gres("shard", "", 2), (2, 4, 4, 4)),
        (Gres("shard", "", 3), (2, 1, 4, 4)),
        (Gres("shard", "", 1), (1, 1, 4, 4)),
        (Gres("shard", "", 2), (1, 1, 2, 4)),
        (Gres("gpu", "", 1), (1, 1, 2, 0)),
    ]
    for wanted, free in steps:
        assert has_gres(left, (wanted,))
        left = subtract_gres(left, (wanted,))
        assert tuple(gpu.free for gpu in left.gpus) == free
    assert not has_gres(left, (Gres("shard", "", 3),))
    assert not has_gres(left, (Gres("gpu", "", 1),))
    assert requests_that_fit(left, Gres("shard", "", 1)) == 4


def test_a_gpu_with_one_shard_in_use_is_nobody_elses_whole_gpu() -> None:
    left = subtract_gres(GresCounts(gpu_node(2, 8).gres), (Gres("shard", "", 1),))
    assert has_gres(left, (Gres("gpu", "", 1),))
    assert not has_gres(left, (Gres("gpu", "", 2),))
    assert not has_gres(subtract_gres(left, (Gres("gpu", "", 1),)), (Gres("shard", "", 4),))


def test_gpus_count_in_parts() -> None:
    wanted = (Gres("gpu", "a100", 1), Gres("shard", "", 6), Gres("nvme", "", 1))
    assert gpus_of(wanted, 4) == Fraction(5, 2)
    assert gpus_of(wanted, 0) == 1


@pytest.mark.parametrize(
    ("jobs", "free"),
    [
        ([], (4, 4, 4)),
        ([1], (3, 4, 4)),
        # On one GPU or on two: one of these surely has the mean of what is left.
        ([1, 2], (3, 0, 4)),
        ([4, 4], (0, 0, 4)),
        ([1, 2, 3, 3], (1, 0, 0)),
        ([4, 4, 4], (0, 0, 0)),
    ],
)
def test_where_slurm_does_not_say_how_many_shards_are_in_use_a_gpu_counts_as_full(jobs: list[int], free: Free) -> None:
    shape = gpu_node(3, 12)
    said = (SharedGpu("", 4, 4, exact=False),) * 3
    there = node("op1", gres=shape.gres, shared_gpus=said)
    running = [
        asking(f"shard:{n}", str(i), state=JobState.RUNNING, node_list=("op1",)) for i, n in enumerate(jobs)
    ]  # fmt: skip
    found = with_shards_in_use({"op1": there}, [*running, asking("shard:4", "9", node_list=("op1",))])
    assert tuple(gpu.free for gpu in found["op1"].shared_gpus) == free


def test_the_room_on_a_node_that_runs_is_that_of_its_gpus() -> None:
    """Two shards are free on each of two GPUs: a job of three gets a machine of its own, one of two none."""
    shape = gpu_node(2, 8)
    gpu = pool("gpu", 2, shape)
    used = (Gres("shard", "", 4),)
    up = replace(
        slot_node(gpu, "gpu1", up=True), state="MIXED", cpus_allocated=2, gres_used=used,
        shared_gpus=(SharedGpu("", 4, 2), SharedGpu("", 4, 2)),
    )  # fmt: skip
    there: dict[str, Any] = {
        "pools": (gpu,), "offers": (offer(shape=Shape(64, 64000, (Gres("gpu", "", 2),))),),
        "claims": (claim("gpu1", ClaimState.IN_SERVICE),), "nodes": (up,),
    }  # fmt: skip
    assert wants(target(asking("shard:2"), **there)) == []
    assert wants(target(asking("gpu:1"), **there)) == [("gpu", 1, ("1",))]
    assert wants(target(asking("shard:3"), **there)) == [("gpu", 1, ("1",))]


def test_a_fraction_that_no_gpu_has_is_called_impossible() -> None:
    shape = gpu_node(2, 8)
    world: dict[str, Any] = {"pools": (pool("gpu", 2, shape),), "offers": (offer(shape=shape),)}
    verdict, why = last_verdict(target(asking("shard:5"), **world))
    assert (verdict, why) == (
        "impossible", "no node in pool gpu has 5 shards of one GPU (a GPU has 4; request shard:4 or gpu:2)",
    )  # fmt: skip
    assert "request shard:4)" in last_verdict(target(asking("shard:9"), **world))[1]
    verdict, why = last_verdict(target(asking("shard:1", exclusive=True), **world))
    assert verdict == "impossible"
    assert "--exclusive" in why


@pytest.mark.parametrize(
    ("in_use", "returned", "most", "whole"),
    [
        # One GPU: where they come back is clear.
        ((4,), (1, 1), 2, 0),
        ((4,), (2, 1, 1), 4, 1),
        # Two full ones: of two jobs of one shard each may be on one of its own, a third one is beside one of them.
        ((4, 4), (1, 1), 1, 0),
        ((4, 4), (1, 1, 1), 2, 0),
        ((4, 4), (2,), 2, 0),
        ((4, 4), (2, 2), 2, 0),
        ((4, 4), (2, 2, 2), 4, 1),
        ((4, 4), (2, 1, 1), 2, 0),
        ((4, 4), (4,), 4, 1),
        # It can only have been on the fuller one.
        ((4, 1), (3,), 3, 0),
        ((4, 1), (1,), 3, 0),
        ((2, 2), (2,), 4, 1),
    ],
)
def test_shards_of_jobs_that_go_come_back_where_they_help_least(
    in_use: Free, returned: Free, most: int, whole: int
) -> None:
    left = GresCounts(gpu_node(len(in_use), 4 * len(in_use)).gres)
    left.set_gpus(tuple(SharedGpu("", 4, 4 - used) for used in in_use))
    left.give_back(Gres("shard", "", n) for n in returned)
    assert (available_gres(left, "shard", ""), available_gres(left, "gpu", "")) == (most, whole)


def test_a_whole_gpu_comes_back_as_it_is() -> None:
    left = subtract_gres(GresCounts(gpu_node(2, 8).gres), (Gres("gpu", "", 1),))
    left = subtract_gres(left, (Gres("shard", "", 4),))
    left.give_back([Gres("gpu", "", 1)])
    assert [gpu.free for gpu in left.gpus] == [4, 0]
    assert has_gres(left, (Gres("gpu", "", 1),))


@given(st.data())
def test_what_is_counted_on_is_there_wherever_the_jobs_were(data: st.DataObject) -> None:
    """Jobs lie on GPUs as burstd does not see it; some go. No request fits that slurmctld has no room for."""
    sizes = data.draw(st.lists(st.integers(2, 8), min_size=1, max_size=4), label="shards of each GPU")
    jobs: list[tuple[int, int]] = []
    for at, of in enumerate(sizes):
        left = data.draw(st.integers(0, of), label="in use")
        while left:
            part = data.draw(st.integers(1, left))
            jobs.append((at, part))
            left -= part
    gone = data.draw(st.sets(st.integers(0, len(jobs) - 1)) if jobs else st.just(set[int]()), label="gone")

    def free(without: set[int]) -> list[int]:
        return [
            of - sum(n for i, (j, n) in enumerate(jobs) if j == at and i not in without) for at, of in enumerate(sizes)
        ]

    counts = GresCounts((Gres("gpu", "", len(sizes)), Gres("shard", "", sum(sizes))))
    counts.set_gpus(tuple(SharedGpu("", of, left) for of, left in zip(sizes, free(set()), strict=True)))
    counts.give_back(Gres("shard", "", jobs[i][1]) for i in gone)
    there = free(gone)
    assert available_gres(counts, "shard", "") <= max(there)
    assert available_gres(counts, "gpu", "") <= sum(left == of for left, of in zip(there, sizes, strict=True))
    if len(gone) == len(jobs):
        assert available_gres(counts, "shard", "") == max(sizes)
        assert available_gres(counts, "gpu", "") == len(sizes)


# How many machines. slurmctld takes the jobs of a queue in its order, and of a node the first GPU with room, so it
# needs a machine more than the best packing has where a job of 3 of 4 shards comes after small ones. burstd has to
# start as many as slurmctld will use: these are compared exactly, and the best packing is a bound.

Request = tuple[str, int]


def mix(lot: Random, gpus: int, sizes: Sequence[int]) -> list[Request]:
    return [
        ("gpu", lot.randint(1, gpus)) if lot.random() < 0.25 else ("shard", lot.choice(sizes))
        for _ in range(lot.randint(1, 12))
    ]


def taken(free: Free, wanted: Request, per_gpu: int, places: Sequence[int]) -> Free | None:
    """What a job leaves that takes these GPUs; None: they are not free for it."""
    kind, number = wanted
    need = per_gpu if kind == "gpu" else number
    if any(free[at] < need for at in places):
        return None
    return tuple(left - need if at in places else left for at, left in enumerate(free))


def as_slurm_does(jobs: Sequence[Request], machines: int, gpus: int, per_gpu: int) -> bool:
    """Whether slurmctld starts all of them at once on so many empty machines."""
    nodes = [(per_gpu,) * gpus] * machines
    for wanted in jobs:
        for at, free in enumerate(nodes):
            need, some = (per_gpu, wanted[1]) if wanted[0] == "gpu" else (wanted[1], 1)
            places = [place for place, left in enumerate(free) if left >= need][:some]
            if len(places) == some:
                after = taken(free, wanted, per_gpu, places)
                assert after is not None
                nodes[at] = after
                break
        else:
            return False
    return True


def in_any_way(jobs: Sequence[Request], machines: int, gpus: int, per_gpu: int) -> bool:
    """Whether any packing has room for all of them on so many empty machines, whoever comes first."""
    ordered = sorted(jobs, key=lambda j: -j[1] * (per_gpu if j[0] == "gpu" else 1))
    in_vain: set[tuple[int, tuple[Free, ...]]] = set()

    def rest_fits(number: int, nodes: tuple[Free, ...]) -> bool:
        if number == len(ordered):
            return True
        if (number, nodes) in in_vain:
            return False
        in_vain.add((number, nodes))
        kind, some = ordered[number]
        for at in {free: at for at, free in enumerate(nodes)}.values():
            free = nodes[at]
            whole = [place for place in range(gpus) if free[place] == per_gpu][:some]
            ways = [whole] * (len(whole) == some) if kind == "gpu" else [[place] for place in range(gpus)]
            for places in ways:
                after = taken(free, ordered[number], per_gpu, places)
                if after is not None:
                    others = (*nodes[:at], tuple(sorted(after)), *nodes[at + 1 :])
                    if rest_fits(number + 1, tuple(sorted(others))):
                        return True
        return False

    return rest_fits(0, ((per_gpu,) * gpus,) * machines)


def machines_wanted(jobs: Sequence[Request], gpus: int, per_gpu: int) -> int:
    shape = gpu_node(gpus, gpus * per_gpu)
    queue = [asking(f"{kind}:{number}", str(at), priority=-at) for at, (kind, number) in enumerate(jobs)]
    found = target(*queue, pools=(pool("gpu", len(jobs), shape),), offers=(offer(shape=shape),))
    assert {r.verdict for r in found.remarks} == {"boot"}
    return sum(want.nodes for want in found.wants)


@pytest.mark.parametrize(
    ("gpus", "per_gpu", "sizes", "most_over"),
    [(2, 4, (1, 2, 4), 0), (4, 8, (1, 2, 4, 8), 0), (2, 4, (1, 2, 3, 4), 1), (2, 8, (1, 2, 3, 5, 6, 8), 1)],
)
def test_no_machine_more_than_slurm_needs(gpus: int, per_gpu: int, sizes: Sequence[int], most_over: int) -> None:
    """Of 500 mixes. Where each size is half of the next one, no packing whatever needs less."""
    lot, over = Random(5), 0  # noqa: S311
    for _ in range(125):
        jobs = mix(lot, gpus, sizes)
        found = machines_wanted(jobs, gpus, per_gpu)
        assert found == next(n for n in count(1) if as_slurm_does(jobs, n, gpus, per_gpu))
        over = max(over, found - next(n for n in count(1) if in_any_way(jobs, n, gpus, per_gpu)))
    assert over <= most_over


def test_nine_jobs_of_three_quarters_of_a_gpu_wake_five_nodes_of_two() -> None:
    assert machines_wanted([("shard", 3)] * 9, gpus=2, per_gpu=4) == 5


def test_a_job_of_shards_costs_their_part_of_the_machine() -> None:
    shape = gpu_node(2, 8)
    gpu = pool("gpu", 1, shape)
    asked = asking("shard:2", time_limit_s=7200)
    there = make_snapshot(asked, pools=(gpu,), offers=(offer(price="4", shape=shape),))
    (way,) = explain_job(there, Plan((), make_target(there, ())), "1").pool_candidates
    assert (way.shards, way.candidates[0].cost) == (8, JobCost(1, Decimal(2), Decimal(2), of_shards=True))
    running = replace(asked, state=JobState.RUNNING, node_list=("gpu1",))
    machine = claim("gpu1", ClaimState.IN_SERVICE, offer=offer(price="4", shape=shape))
    there = make_snapshot(running, pools=(gpu,), claims=(machine,))
    comment = JobComments(there, Plan((), make_target(there, ()))).comment_for(running, "")
    assert comment is not None
    assert comment.text == "on gpu1 (sky, 1.00 EUR/h for its shards)"
