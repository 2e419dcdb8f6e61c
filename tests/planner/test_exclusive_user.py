"""Nodes that run jobs of one user at a time: ExclusiveUser of a partition, and --exclusive=user of a job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node

from .worlds import claim, job, last_verdict, node, pool, slot_node, target, wants

SOLO = pool(exclusive_user=True)
BY_JOB = "a job with --exclusive=user, or in a partition with ExclusiveUser=YES, shares no node with other users"


def ada(job_id: str, **fields: Any) -> Job:
    return job(job_id, user="ada", **fields)


def bob(job_id: str, **fields: Any) -> Job:
    return job(job_id, user="bob", **fields)


def running(found: Job, name: str) -> Job:
    return replace(found, state=JobState.RUNNING, node_list=(name,), reason="")


def busy(name: str, of: Pool = SOLO, cpus: int = 1) -> Node:
    """A slot's node with CPUs in use."""
    return replace(slot_node(of, name, up=True), state="MIXED", cpus_allocated=cpus)


def nodes_by_job(found: Target) -> dict[str, tuple[str, ...]]:
    """Where each job goes: nodes that are there and new ones."""
    new = {job_id: want.slots for want in found.wants for job_id in want.jobs}
    return {**new, **found.placements}


@pytest.mark.parametrize(
    ("case", "of", "jobs", "new"),
    [
        ("a pool for all", pool(), [ada("1"), bob("2"), ada("3")], [("1", "2", "3")]),
        ("a pool for one at a time", SOLO, [ada("1"), bob("2"), ada("3"), bob("4")], [("1", "3"), ("2", "4")]),
        ("a node that is full", SOLO, [ada("1", cpus=3), ada("2", cpus=2), bob("3")], [("1",), ("2",), ("3",)]),
        ("also for whole nodes", SOLO, [ada("1", exclusive=True), ada("2")], [("1",), ("2",)]),
        (
            "array tasks",
            SOLO,
            [ada("1", tasks=3, array_job_id="1", array_tasks="1-3"), bob("2"), ada("3")],
            [("1", "3"), ("2",)],
        ),
        ("a job that is alone", pool(), [ada("1", exclusive_user=True), bob("2"), ada("3")], [("1", "3"), ("2",)]),
        ("one behind others", pool(), [bob("1"), ada("2"), ada("3", exclusive_user=True)], [("1", "2"), ("3",)]),
        ("its own user's", pool(), [ada("1"), ada("2", exclusive_user=True), bob("3")], [("1", "2"), ("3",)]),
        ("two alone", pool(), [ada("1", exclusive_user=True), bob("2", exclusive_user=True)], [("1",), ("2",)]),
        (
            "of two partitions",
            SOLO,
            [ada("1", partitions=("onprem", "burst")), bob("2", partitions=("onprem", "burst"))],
            [("1",), ("2",)],
        ),
    ],
)
def test_new_nodes(case: str, of: Pool, jobs: list[Job], new: list[tuple[str, ...]]) -> None:
    assert [jobs for _, _, jobs in wants(target(*jobs, pools=(of,)))] == new, case


@pytest.mark.parametrize(
    ("case", "of", "there", "waits", "free"),
    [
        ("another's job in such a pool", SOLO, [ada("8")], bob("1"), False),
        ("one's own", SOLO, [ada("8")], ada("1"), True),
        ("nobody's", SOLO, [], bob("1"), True),
        ("another's in a pool for all", pool(), [ada("8")], bob("1"), True),
        ("another's job that is alone", pool(), [ada("8", exclusive_user=True)], bob("1"), False),
        ("one's own job that is alone", pool(), [ada("8", exclusive_user=True)], ada("1"), True),
        ("another's, for one that is alone", pool(), [ada("8")], bob("1", exclusive_user=True), False),
        ("one's own, for one that is alone", pool(), [bob("8")], bob("1", exclusive_user=True), True),
        ("several users'", pool(), [ada("8"), bob("9")], bob("1", exclusive_user=True), False),
        ("two of another's, the second alone", pool(), [ada("8"), ada("9", exclusive_user=True)], bob("1"), False),
        ("another's that ends", SOLO, [ada("8", state=JobState.COMPLETING, node_list=("cpu1",))], bob("1"), False),
        ("two nodes, one of another's", SOLO, [ada("8")], bob("1", nodes=2, cpus=2), False),
        ("two nodes, one's own among them", SOLO, [ada("8")], ada("1", nodes=2, cpus=2), True),
    ],
)
def test_nodes_in_service(case: str, of: Pool, there: list[Job], waits: Job, *, free: bool) -> None:
    there = [found if found.node_list else running(found, "cpu1") for found in there]
    nodes = (busy("cpu1", of, len(there)),) if there else ()
    found = target(waits, *there, pools=(of,), claims=(claim("cpu1", S.IN_SERVICE),), nodes=nodes)
    assert ("cpu1" in nodes_by_job(found)["1"]) is free, case


def coming(slot: str, job_id: str) -> Claim:
    return claim(slot, S.BOOTING, jobs=(job_id,))


def test_nodes_on_their_way_are_one_users_as_well() -> None:
    jobs = [ada("1"), bob("2"), ada("3"), bob("4")]
    found = target(*jobs, pools=(SOLO,), claims=(coming("cpu1", "1"), coming("cpu2", "2")))
    assert wants(found) == []
    assert nodes_by_job(found) == {"1": ("cpu1",), "2": ("cpu2",), "3": ("cpu1",), "4": ("cpu2",)}


def test_components_that_find_no_room_leave_the_node_to_others() -> None:
    """What a het job took before its second component failed is given back, its user too."""
    het = [bob("5+0", het_job_id="5", priority=9), bob("5+1", het_job_id="5", het_offset=1, priority=9, cpus=99)]
    found = target(*het, ada("1"), pools=(SOLO,), claims=(claim("cpu1", S.IN_SERVICE),))
    assert nodes_by_job(found) == {"1": ("cpu1",)}


def test_nodes_of_the_site() -> None:
    there = node("op1", cpus_allocated=1, state="MIXED")
    rival = running(ada("8", partitions=("onprem",), exclusive_user=True), "op1")
    waits = bob("1", partitions=("onprem", "burst"))
    assert wants(target(waits, rival, nodes=(there,))) == [("cpu", 1, ("1",))]
    assert wants(target(waits, replace(rival, exclusive_user=False), nodes=(there,))) == []


@pytest.mark.parametrize(
    ("of", "rivals", "waits", "text"),
    [
        (
            SOLO,
            [running(ada("8"), "cpu1")],
            bob("1"),
            "node cpu1 runs jobs of user ada; partition burst shares no node between users",
        ),
        (
            SOLO,
            [running(ada("8"), "cpu1")],
            bob("1", nodes=2, cpus=2),
            "node cpu1 runs jobs of user ada; partition burst shares no node between users",
        ),
        (
            SOLO,
            [ada("8", priority=9)],
            bob("1"),
            "node cpu1 is for jobs of user ada; partition burst shares no node between users",
        ),
        (
            pool(),
            [running(ada("7"), "cpu1"), running(bob("8"), "cpu1")],
            bob("1", exclusive_user=True),
            f"node cpu1 runs jobs of users ada and bob; {BY_JOB}",
        ),
    ],
)
def test_a_job_that_waits_for_a_node_of_its_users_own_is_told_so(
    of: Pool, rivals: list[Job], waits: Job, text: str
) -> None:
    nodes = (busy("cpu1", of),) if any(rival.node_list for rival in rivals) else ()
    gone = tuple(claim(slot, S.TERMINATING) for slot in of.slots[2 if waits.nodes > 1 else 1 :])
    found = target(waits, *rivals, pools=(of,), claims=(claim("cpu1", S.IN_SERVICE), *gone), nodes=nodes)
    verdict, reason = last_verdict(found)
    assert (verdict, reason.partition(" in total); ")[2]) == ("wait", text)


def test_a_job_that_waits_for_other_reasons_is_not_told_of_users() -> None:
    gone = tuple(claim(slot, S.TERMINATING) for slot in SOLO.slots)
    assert "user" not in last_verdict(target(bob("1"), ada("2"), pools=(SOLO,), claims=gone))[1]
