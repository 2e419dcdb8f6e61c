"""Jobs and the mounts of their users: who needs them, what becomes of jobs that have lost theirs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.mounts import PUBLIC_USER, MountsView, SilentLine
from burstd.domain.plan import HoldJob, RequeueJobs
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import RuntimeState, SlurmView, Snapshot
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
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
        told = replace(snapshot, runtime_state=RuntimeState(requeued=frozenset({("7", 2)})))
        assert not [a for a in decide(told, (), Tuning()).actions if isinstance(a, RequeueJobs)]


@pytest.mark.parametrize(
    ("lost", "text"), [(True, "cpu1: the line between the head"), (False, "slurmctld ended while PrologSlurmctld ran")]
)
def test_a_job_that_slurm_does_not_requeue_is_told(lost: bool, text: str) -> None:
    snapshot = world(RUNNING, "ada")
    if not lost:
        snapshot = replace(snapshot, mounts=MountsView(unstarted={"7": 2}))
    [requeue] = [a for a in decide(snapshot, (), Tuning()).actions if isinstance(a, RequeueJobs)]
    assert requeue.runs[0].reason.startswith(text)
    refused = frozenset({("7", 2)})
    told = replace(snapshot, runtime_state=RuntimeState(requeued=refused, requeue_refused=refused))
    [remark] = [r for r in decide(told, (), Tuning()).remarks if r.by == "mounts"]
    assert (remark.subject, remark.verdict) == ("job:7", "ends")
    assert remark.reason.startswith(text)
    assert remark.reason.endswith("Slurm does not requeue it: cancel it and submit it again")


def test_another_run_of_an_unstarted_job_is_left_alone() -> None:
    snapshot = replace(world(RUNNING, "ada"), mounts=MountsView(unstarted={"7": 1}))
    assert not [a for a in decide(snapshot, (), Tuning()).actions if isinstance(a, RequeueJobs)]


def test_components_of_a_het_job_begin_anew_together() -> None:
    parts = [
        job(f"7+{i}", state=RUNNING, user="ada", node_list=("cpu1",), het_job_id="7", het_offset=i) for i in (0, 1)
    ]
    snapshot = world(RUNNING, "ada")
    assert isinstance(snapshot.slurm, SlurmView)
    snapshot = replace(snapshot, slurm=replace(snapshot.slurm, jobs=tuple(parts)))
    [requeue] = [a for a in decide(snapshot, (), Tuning()).actions if isinstance(a, RequeueJobs)]
    assert [(run.job_id, run.queue_ids) for run in requeue.runs] == [("7", ("7+0", "7+1"))]


@pytest.mark.parametrize(
    ("times", "reason", "holds", "said"),
    [
        (2, "BeginTime", 0, "cannot be mounted"),
        (3, "BeginTime", 1, "cannot be mounted"),
        (0, "JobHeldUser", 0, "cannot be mounted; it is held, and no node is kept for it"),
    ],
)
def test_a_refused_start_is_explained_and_then_held(times: int, reason: str, holds: int, said: str) -> None:
    refused = MountsView(refusals={"7": "cannot be mounted"}, refused_times={"7": times})
    snapshot = make_snapshot(job("7", reason=reason), pools=(CPU,))
    snapshot = replace(snapshot, mounts=refused)
    plan = decide(snapshot, (), Tuning())
    assert [a for a in plan.actions if isinstance(a, HoldJob)] == [
        HoldJob("7", "7", "cannot be mounted, 3 times", "mounts") for _ in range(holds)
    ]
    explained = explain_job(snapshot, plan, "7")
    assert explained.summary == said
    assert ("then: scontrol release 7" in explained.remedies[0]) == (reason == "JobHeldUser")


def test_jobs_at_work_behind_a_silent_line_are_told() -> None:
    for state, told in ((RUNNING, True), (JobState.COMPLETING, False)):
        snapshot = replace(world(state, "bob"), mounts=MountsView(silent={"c-cpu1": SilentLine(0.0, 400.0)}))
        said = [r for r in decide(snapshot, (), Tuning()).remarks if r.by == "mounts"]
        assert [(r.subject, r.verdict) for r in said] == ([("job:7", "runs")] if told else [])
        assert not told or said[0].reason == (
            "cpu1: the line from the head to the node is silent since 1970-01-01 00:00:00 UTC: reads and writes in "
            "mounted trees wait; jobs there are requeued by 1970-01-01 00:06:40 UTC, unless it comes back"
        )


def test_users_have_their_trees_from_the_allocation_to_the_last_process() -> None:
    jobs = [
        job("1", state=JobState.CONFIGURING, user="ada", node_list=("cpu1", "cpu2")),
        job("2", state=JobState.COMPLETING, user="bob", node_list=("cpu1",)),
        job("3", state=JobState.PENDING, user="eve"),
        job("4", state=JobState.STAGE_OUT, user="eve", node_list=("cpu2",)),
        job("5", state=RUNNING, user="eve", node_list=("op1",)),
    ]
    assert users_of_nodes(jobs, {"cpu1": 0, "cpu2": 0}) == {"cpu1": {"ada", "bob"}, "cpu2": {"ada"}}
