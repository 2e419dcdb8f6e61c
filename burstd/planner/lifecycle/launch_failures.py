"""Runs that did not start on their node: what their jobs are told, and which machines are closed for it.

A machine on which no job can start is drained with the cause as its reason, as one with a fault at work is
(spot_notices.py): its jobs end, another machine takes its place, and unless its disk was full its offer is not the next
one tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.launch_failure import Blame, LaunchFailure
from burstd.domain.plan import DrainNodes
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import JobState
from burstd.planner.snapshot_view import SnapshotView

LAUNCH = "launch"
"""Who speaks of such runs: in remarks, and as the cause of events."""
UNCLEAR_USERS = 2
"""Jobs of so many users that fail on one machine for unclear reasons are evidence: one may do it to all of his own."""
_SLURMS_DRAINS = ("Prolog error", "SlurmdSpoolDir is full", "batch job complete failure")
"""Reasons of nodes that slurmctld or slurmd has drained for such a run. Any other drain is a person's."""
_STRANGE = re.compile(r"[^A-Za-z0-9 ,.:/_()'?-]")
_CAUSE = 90
"""Characters of the cause that a node's reason has room for."""


def launch_drains(view: SnapshotView) -> list[DrainNodes]:
    """Machines in service on which jobs do not start, through no fault of their own."""
    failures: dict[str, list[LaunchFailure]] = {}
    for failure in view.snapshot.runtime_state.launch_failures.values():
        failures.setdefault(failure.claim_id, []).append(failure)
    return [
        DrainNodes((claim.id,), (claim.slot,), reason)
        for claim in (view.snapshot.claims if failures else ())
        if claim.id in failures and _may_be_drained(claim, view) and (reason := drain_reason(failures[claim.id]))
    ]


def _may_be_drained(claim: Claim, view: SnapshotView) -> bool:
    node = view.node(claim.slot)
    if node is None or claim.state is not S.IN_SERVICE or node.powered_down or "POWERING_DOWN" in node.flags:
        return False
    return not node.drained or node.reason.startswith(_SLURMS_DRAINS)


def drain_reason(failures: list[LaunchFailure]) -> str:
    """The reason for a node on which these runs did not start; empty: it stays open."""
    failures = sorted(failures, key=lambda failure: failure.at)
    worst = next((f for f in failures if f.fault.blame in (Blame.UNHEALTHY, Blame.UNUSABLE)), None)
    unclear = [failure for failure in failures if failure.fault.blame is Blame.UNCLEAR]
    if worst is None and len({failure.user for failure in unclear}) >= UNCLEAR_USERS:
        worst = unclear[-1]
    if worst is None:
        return ""
    kind = Blame.UNUSABLE if worst.fault.blame is Blame.UNUSABLE else Blame.UNHEALTHY
    cause = _STRANGE.sub("?", worst.fault.cause)[:_CAUSE]
    at = datetime.fromtimestamp(worst.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"burstd: {kind}, job {worst.job_id[:20]} did not start: {cause} at {at}, jobs end first"


def launch_remarks(view: SnapshotView) -> Iterator[Remark]:
    """Why Slurm holds jobs whose launch failed."""
    failures = view.snapshot.runtime_state.launch_failures
    for job in view.slurm.jobs if view.slurm is not None and failures else ():
        failure = failures.get(job.id)
        if failure is not None and job.state is JobState.PENDING and job.reason == "JobLaunchFailure":
            yield Remark(LAUNCH, f"job:{job.id}", "wait", f"Slurm holds it, as {failure.text}")
