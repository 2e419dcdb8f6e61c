"""Runs that did not start: which machines are closed for them, and what their jobs are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from burstd.domain.claim import ClaimState as S
from burstd.domain.launch_failure import Blame, LaunchFailure, LaunchFault, failed_run
from burstd.domain.plan import DrainNodes
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import RuntimeState, Snapshot
from burstd.planner.decide import decide
from burstd.planner.explain.explain import explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.lifecycle.launch_failures import drain_reason
from burstd.planner.lifecycle.spot_notices import parse_reason
from burstd.planner.timeouts import Tuning

from .worlds import NOW, claim, job, make_snapshot, pool, slot_node

CPU = pool()
NO_STEPD = LaunchFault("slurmstepd does not start there", "see slurmd's log on the node", Blame.UNHEALTHY)
FULL = LaunchFault("its disk is full", "give the machine a larger disk", Blame.UNUSABLE)
UNCLEAR = LaunchFault("slurmd says 'a {b}'", "see slurmd's log on the node", Blame.UNCLEAR)
OUTPUT = LaunchFault("the job's output /x/1 cannot be opened there (No such file)", "mend it", Blame.JOB)
AT = "1970-01-12T13:46:40Z"
STEPD_REASON = f"burstd: unhealthy, job 1 did not start: slurmstepd does not start there at {AT}, jobs end first"


def failure(fault: LaunchFault, job_id: str = "1", user: str = "ada", claim_id: str = "cpu1") -> LaunchFailure:
    return LaunchFailure(job_id, 0, "cpu1", claim_id, fault, user, 1_000_000.0)


def world(*failures: LaunchFailure, jobs: tuple[Job, ...] = (), state: S = S.IN_SERVICE, **node: Any) -> Snapshot:
    on_node = claim("cpu1", state, address="10.0.0.1")
    there: Node = replace(slot_node(CPU, "cpu1", up=True), **{"address": "10.0.0.1", **node})
    known = {one.job_id: replace(one, claim_id=on_node.id) for one in failures}
    return make_snapshot(
        *jobs, pools=(CPU,), claims=(on_node,), nodes=(there,),
        runtime_state=RuntimeState(launch_failures=known),
    )  # fmt: skip


def drains(snapshot: Snapshot) -> list[str]:
    actions = decide(snapshot, (), Tuning()).actions
    return [action.reason for action in actions if isinstance(action, DrainNodes)]


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        ([], ""),
        ([failure(NO_STEPD)], STEPD_REASON),
        ([failure(OUTPUT), failure(FULL, "2")],
         f"burstd: unusable, job 2 did not start: its disk is full at {AT}, jobs end first"),
        ([failure(OUTPUT), failure(OUTPUT, "2", "bob"), failure(OUTPUT, "3", "eve")], ""),
        ([failure(UNCLEAR)], ""),
        # One user may do it to all of his own.
        ([failure(UNCLEAR), failure(UNCLEAR, "2")], ""),
        ([failure(UNCLEAR), failure(UNCLEAR, "2", "bob")],
         f"burstd: unhealthy, job 2 did not start: slurmd says 'a ?b?' at {AT}, jobs end first"),
        ([failure(UNCLEAR), failure(OUTPUT, "2", "bob")], ""),
        ([failure(replace(NO_STEPD, cause="x\n\x1b" * 100), "1" * 90)],
         f"burstd: unhealthy, job {'1' * 20} did not start: {'x??' * 30} at {AT}, jobs end first"),
    ],
)  # fmt: skip
def test_the_reason_of_a_node_on_which_jobs_do_not_start(failures: list[LaunchFailure], reason: str) -> None:
    assert drain_reason(failures) == reason
    notice = parse_reason(reason)
    assert (notice is not None) is bool(reason)
    assert notice is None or (notice.unhealthy and not notice.ends_jobs)


def test_such_a_machine_is_drained() -> None:
    assert drains(world(failure(NO_STEPD))) == [STEPD_REASON]


@pytest.mark.parametrize(
    ("fields", "drained"),
    [
        ({"flags": frozenset({"DRAIN"}), "reason": "Prolog error"}, True),
        ({"flags": frozenset({"DRAIN"}), "reason": "SlurmdSpoolDir is full"}, True),
        ({"flags": frozenset({"DRAIN"}), "reason": "a person's"}, False),
        ({"flags": frozenset({"DRAIN"}), "reason": STEPD_REASON}, False),
        ({"flags": frozenset({"POWERED_DOWN"})}, False),
        ({"state": S.DRAINING}, False),
        ({"state": S.TERMINATING}, False),
    ],
)
def test_a_drain_of_another_stays(fields: dict[str, Any], drained: bool) -> None:
    assert bool(drains(world(failure(NO_STEPD), **fields))) is drained


def test_a_machine_of_another_claim_in_the_same_slot_is_left_alone() -> None:
    snapshot = world(failure(NO_STEPD))
    known = {"1": failure(NO_STEPD, claim_id="the one before")}
    assert drains(replace(snapshot, runtime_state=RuntimeState(launch_failures=known))) == []


HELD = job("1", reason="JobLaunchFailure", restarts=1, submitted=NOW - 10)


def test_a_job_that_slurm_holds_is_told_why() -> None:
    snapshot = world(failure(NO_STEPD), jobs=(HELD,))
    plan = decide(snapshot, (), Tuning())
    told = explain_job(snapshot, plan, "1")
    why = "Slurm holds it, as its launch on cpu1 failed: slurmstepd does not start there"
    assert (told.verdict, told.summary) == ("wait", why)
    assert told.remedies == (
        "see slurmd's log on the node; then: scontrol release 1 (administrators only)",
    )  # fmt: skip
    comment = JobComments(snapshot, plan).comment_for(HELD, "")
    assert comment is not None
    assert comment.text == f"waits: {why}"


@pytest.mark.parametrize(
    ("one", "run"),
    [
        (HELD, 0),
        (replace(HELD, restarts=3), 2),
        (replace(HELD, restarts=0), None),
        (replace(HELD, reason="JobHeldAdmin"), None),
        (replace(HELD, state=JobState.FAILED, exit_code="0:53", node_list=("cpu1",)), 1),
        (replace(HELD, state=JobState.FAILED, exit_code="0:53"), None),
        (replace(HELD, state=JobState.FAILED, exit_code="0:53", node_list=("cpu1",), batch=False), None),
        (replace(HELD, state=JobState.FAILED, exit_code="1:0", node_list=("cpu1",)), None),
        (replace(HELD, state=JobState.RUNNING, node_list=("cpu1",)), None),
    ],
)
def test_which_run_did_not_start(one: Job, run: int | None) -> None:
    assert failed_run(one) == run
