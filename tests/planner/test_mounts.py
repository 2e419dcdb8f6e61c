"""Jobs and the mounts of their users: who needs them, what becomes of jobs that have lost theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.mounts import PUBLIC_USER, MountsView
from burstd.domain.plan import RequeueJobs
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.planner.decide import decide
from burstd.planner.mounts import users_of_nodes
from burstd.planner.timeouts import Tuning

from .worlds import claim, job, make_snapshot, pool, slot_node

CPU = pool()
RUNNING = JobState.RUNNING


def world(state: JobState, lost: str, user: str = "ada") -> Snapshot:
    node = replace(slot_node(CPU, "cpu1", up=True), state="ALLOCATED", address="10.0.0.1")
    snapshot = make_snapshot(
        job("7", state=state, user=user, node_list=("cpu1",), restarts=2),
        pools=(CPU,),
        nodes=(node,),
        claims=(claim("cpu1", S.IN_SERVICE, address="10.0.0.1", instance_id="i-1"),),
    )
    return replace(snapshot, mounts=MountsView({"c-cpu1": frozenset({lost})}))


@pytest.mark.parametrize(
    ("state", "lost", "requeued"),
    [
        (RUNNING, "ada", True),
        (RUNNING, PUBLIC_USER, True),
        (RUNNING, "bob", False),
        (JobState.SUSPENDED, "ada", True),
        # Its prolog mounts them anew, or its start fails.
        (JobState.CONFIGURING, "ada", False),
        (JobState.COMPLETING, "ada", False),
    ],
)
def test_a_job_at_work_without_its_trees_begins_anew(state: JobState, lost: str, requeued: bool) -> None:
    snapshot = world(state, lost)
    plan = decide(snapshot, (), Tuning())
    runs = [run for action in plan.actions if isinstance(action, RequeueJobs) for run in action.runs]
    assert [(run.job_id, run.restarts) for run in runs] == ([("7", 2)] if requeued else [])
    if requeued:
        assert runs[0].reason.startswith("cpu1: the line between the head and the node is broken")
        assert ("mounts", "ends") in [(r.by, r.verdict) for r in plan.remarks if r.subject == "job:7"]
        told = replace(snapshot, runtime_state=RuntimeState(requeued=frozenset({("7", 2)})))
        assert not [a for a in decide(told, (), Tuning()).actions if isinstance(a, RequeueJobs)]


def test_a_refused_start_is_explained() -> None:
    snapshot = replace(world(JobState.PENDING, "bob"), mounts=MountsView({}, {"7": "its trees could not be mounted"}))
    plan = decide(snapshot, (), Tuning())
    assert "its trees could not be mounted" in [r.reason for r in plan.remarks if r.subject == "job:7"]


def test_users_have_their_trees_from_the_allocation_to_the_last_process() -> None:
    jobs = [
        job("1", state=JobState.CONFIGURING, user="ada", node_list=("cpu1", "cpu2")),
        job("2", state=JobState.COMPLETING, user="bob", node_list=("cpu1",)),
        job("3", state=JobState.PENDING, user="eve"),
        job("4", state=JobState.STAGE_OUT, user="eve", node_list=("cpu2",)),
        job("5", state=RUNNING, user="eve", node_list=("op1",)),
    ]
    assert users_of_nodes(jobs, {"cpu1": 0, "cpu2": 0}) == {"cpu1": {"ada", "bob"}, "cpu2": {"ada"}}
