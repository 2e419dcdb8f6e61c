"""When the site's own nodes would start pending jobs, and what they would be in the cloud."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import EndedJob, JobHistory
from burstd.domain.slurm.node import Node, Reservation
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.shape import Gres
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StageState, StagingView
from burstd.planner.forecast.outlook import job_outlooks
from burstd.testing.policy.strategies import situations

from .worlds import NOW, claim, job, make_snapshot, node, pool

INF = float("inf")
BOTH = ("onprem", "burst")


def waits(job_id: str = "1", **fields: Any) -> Job:
    return job(job_id, **{"partitions": BOTH, "cpus": 4, **fields})


def runs(number: int, on: str, left_s: float, **fields: Any) -> Job:
    """By its time limit it has so long to go."""
    start = NOW - 1000
    base = {"cpus": 4, "node_list": (on,), "start": start, "time_limit_s": 1000 + left_s, "partitions": BOTH}
    return job(f"r{number}", state=JobState.RUNNING, **{**base, **fields})


def full(name: str, **fields: Any) -> Node:
    return node(name, state="ALLOCATED", cpus_allocated=4, **fields)


def outlook_of(*jobs: Job, nodes: tuple[Node, ...] = (full("a"),), **fields: Any) -> Outlook:
    return job_outlooks(make_snapshot(*jobs, nodes=nodes, **fields))["1"]


TWO = (full("a"), full("b"))
BUSY = (runs(1, "a", 600), runs(2, "b", 900))


@pytest.mark.parametrize(
    ("case", "jobs", "nodes", "start"),
    [
        ("a free node", (waits(submitted=NOW, eligible=NOW),), (node("a"),), 0),
        ("the first that ends", (waits(), *BUSY), TWO, 600),
        ("behind one with more priority", (waits(), waits("2", priority=9), *BUSY), TWO, 900),
        ("behind one of before", (waits(), waits("2", submitted=NOW - 100), *BUSY), TWO, 900),
        ("behind two", (waits(), waits("2", priority=9), waits("3", priority=9, time_limit_s=60), *BUSY), TWO, 960),
        ("not behind one that is held", (waits(), waits("2", priority=9, reason="JobHeldUser"), *BUSY), TWO, 600),
        ("not behind one of others", (waits(), waits("2", priority=9, partitions=("burst",)), *BUSY), TWO, 600),
        ("two nodes at once", (waits(nodes=2, cpus=8), *BUSY), TWO, 900),
        ("part of a node", (waits(cpus=1, submitted=NOW, eligible=NOW), runs(1, "a", 600, cpus=3)),
         (node("a", state="MIXED", cpus_allocated=3),), 0),
        ("a whole node, though enough is free on two", (waits(), runs(1, "a", 600, cpus=2), runs(2, "b", 900, cpus=2)),
         (node("a", state="MIXED", cpus_allocated=2), node("b", state="MIXED", cpus_allocated=2)), 600),
        ("no node of its partitions", (waits(partitions=("burst",)),), (node("a"),), INF),
        ("no node that is large enough", (waits(cpus=64),), (node("a"),), INF),
        ("more nodes than there are", (waits(nodes=3),), TWO, INF),
        ("a GPU that no node has", (waits(gres_per_node=(Gres("gpu", "", 1),)),), (node("a"),), INF),
        ("drained nodes are none", (waits(),), (node("a", flags=frozenset({"DRAIN"})),), INF),
        ("features", (waits(constraint="x"), *BUSY), (full("a"), full("b", features=frozenset({"x"}))), 900),
    ],
)  # fmt: skip
def test_the_queue(case: str, jobs: tuple[Job, ...], nodes: tuple[Node, ...], start: float) -> None:
    assert outlook_of(*jobs, nodes=nodes).local_start == NOW + start, case


@pytest.mark.parametrize(
    ("case", "rivals", "waiting", "start"),
    [
        ("users share the node", ({},), {}, 0),
        ("the job shares it with no other user", ({},), {"exclusive_user": True}, 600),
        ("a job on it shares it with no other user", ({"exclusive_user": True},), {}, 600),
        ("the job's own user is on it", ({"user": "bob"},), {"exclusive_user": True}, 0),
        ("the last of the others' jobs counts", ({}, {"user": "bob"}), {"exclusive_user": True}, 600),
        ("all others' jobs count", ({"user": "bob"}, {}), {"exclusive_user": True}, 900),
    ],
)
def test_users_that_share_no_node(
    case: str, rivals: tuple[dict[str, Any], ...], waiting: dict[str, Any], start: float
) -> None:
    there = [runs(n, "a", 600 + 300 * n, cpus=1, **fields) for n, fields in enumerate(rivals)]
    busy = node("a", state="MIXED", cpus_allocated=len(there))
    found = outlook_of(waits(user="bob", cpus=1, submitted=NOW, eligible=NOW, **waiting), *there, nodes=(busy,))
    assert found.local_start == NOW + start, case


def test_short_jobs_start_before_one_that_must_wait_where_they_do_not_delay_it() -> None:
    large = waits("2", nodes=2, cpus=8, priority=9)
    nodes = (node("a"), full("b"))
    held_back, let_through = (
        job_outlooks(make_snapshot(large, waits(time_limit_s=limit), *BUSY[1:], nodes=nodes)) for limit in (901, 900)
    )
    assert held_back["1"].local_start > NOW + 900
    assert let_through["1"].local_start == NOW


def test_burst_slots_and_reserved_nodes_are_no_nodes_of_the_site() -> None:
    one = pool(slots=1)
    assert (
        outlook_of(waits(), nodes=(), pools=(one,), claims=(claim("cpu1", ClaimState.IN_SERVICE),)).local_start == INF
    )
    snapshot = make_snapshot(waits(), nodes=(node("a"),))
    assert isinstance(snapshot.slurm, SlurmView)
    kept = replace(snapshot.slurm, reservations=(Reservation("maint", frozenset({"a"})),))
    assert job_outlooks(replace(snapshot, slurm=kept))["1"].local_start == INF


def test_jobs_with_a_machine_on_its_way_do_not_wait_for_the_site() -> None:
    first = waits("2", priority=9)
    coming = claim("cpu1", ClaimState.BOOTING, jobs=("2",))
    assert outlook_of(waits(), first, *BUSY, nodes=TWO, claims=(coming,)).local_start == NOW + 600


@pytest.mark.parametrize(
    ("case", "said", "jobs", "nodes", "expected"),
    [
        ("slurm promises less", NOW + 60, BUSY, TWO, (60, "slurm")),
        ("slurm goes by limits that nobody uses", NOW + 7000, BUSY, TWO, (600, "queue")),
        ("slurm knows of a limit", NOW + 7000, (), (node("a"),), (7000, "slurm")),
        ("nothing explains it", 0.0, (), (node("a"),), (300, "none")),
    ],
)
def test_whom_to_believe(
    case: str, said: float, jobs: tuple[Job, ...], nodes: tuple[Node, ...], expected: tuple[float, str]
) -> None:
    found = outlook_of(waits(start=said, eligible=NOW - 300, submitted=NOW - 300), *jobs, nodes=nodes)
    assert (found.local_start - NOW, found.local_basis) == expected, case


def ended(number: int, run_s: float, wait_s: float = 0.0) -> EndedJob:
    start = NOW - 90_000
    return EndedJob(str(number), "ada", "", "", BOTH, 1, 4, 0, 0.0, start - wait_s, start, start + run_s, False)


def test_history_tells_how_long_jobs_run_and_wait() -> None:
    known = JobHistory.from_jobs([*(ended(n, 200, 500) for n in range(8)), *(ended(n, 1300, 500) for n in range(8))])
    running = runs(1, "a", 0, time_limit_s=0.0)
    found = outlook_of(waits(), running, history=known)
    # It has run for 1000 s: only the long ones tell.
    assert (found.local_start, found.local_basis) == (NOW + 300, "queue")
    assert (found.run_s, found.run_basis) == (750, "16 jobs of ada with up to 4 CPUs")
    idle = outlook_of(waits(eligible=NOW - 300, submitted=NOW - 300), nodes=(node("a"),), history=known)
    assert (idle.local_start, idle.local_basis) == (NOW + 200, "history")


@pytest.mark.parametrize(("limit", "expected"), [(0.0, (3600, "none")), (900.0, (900, "time limit"))])
def test_without_history_the_time_limit_counts(limit: float, expected: tuple[float, str]) -> None:
    found = outlook_of(waits(time_limit_s=limit))
    assert (found.run_s, found.run_basis) == expected


def test_what_it_would_be_in_the_cloud() -> None:
    booted = RuntimeState(boot_durations={"cpu": (100.0, 140.0, 120.0)})
    data = {"1": StagingView(StageState.UPLOADING, NOW + 400)}
    found = outlook_of(waits(), runtime_state=booted, data=data)
    assert (found.boot_s, found.staging_s, found.ready_s) == (120, 400, 400)
    staging = outlook_of(waits(reason="BurstBufferStageIn"), nodes=(node("a"),), data=data)
    assert staging.local_start == NOW + 400


def test_an_array_is_put_task_by_task() -> None:
    array = waits(tasks=3, array_tasks="1-3", array_job_id="1", time_limit_s=100.0)
    found = outlook_of(array, *BUSY, nodes=TWO)
    assert (found.local_start, found.last_start) == (NOW + 600, NOW + 800)


def test_what_leaves_gives_its_place_to_the_next() -> None:
    both = job_outlooks(make_snapshot(waits("2", priority=9), waits(), *BUSY, nodes=TWO))
    assert both["1"].local_start == NOW + 900
    without = both.assuming(lambda job_id, _: job_id == "2")
    assert [without[i].local_start - NOW for i in ("1", "2")] == [600, 600]


@given(situation=situations())
def test_one_job_has_the_outlook_that_it_has_among_all(situation: tuple[Snapshot, Target]) -> None:
    snapshot, _ = situation
    whole = dict(job_outlooks(snapshot))
    for job_id, found in whole.items():
        alone = job_outlooks(snapshot)
        assert (len(alone), job_id in alone, alone[job_id], list(alone)) == (len(whole), True, found, list(whole))
    assert job_outlooks(snapshot).get("none") is None


def test_a_slurm_that_cannot_be_read_has_no_queue() -> None:
    assert dict(job_outlooks(replace(make_snapshot(waits()), slurm=Unavailable("no", NOW)))) == {}


def test_behind_many_jobs_only_the_work_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("burstd.planner.forecast.site_queue.MAX_EXACT_JOBS", 2)
    many = [waits(str(n), priority=9, time_limit_s=100.0) for n in range(2, 8)]
    found = outlook_of(waits(), *many, runs(1, "a", 600))
    # Two are put in, which end at 800; four more take 400 s of the one node.
    assert 1000 <= found.local_start - NOW <= 1200


@given(situation=situations())
def test_nothing_starts_before_now(situation: tuple[Snapshot, Target]) -> None:
    snapshot, _ = situation
    for found in job_outlooks(snapshot).values():
        assert snapshot.now <= found.local_start <= max(found.local_start, found.last_start)
        assert found.run_s >= 0
        assert found.ready_s >= 0
