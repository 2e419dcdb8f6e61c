"""Since when pending jobs have had room on open nodes without being started. The daemon keeps the answers in memory.

A job that Slurm leaves pending although a node fits it would otherwise wait for ever (a limit that burstd cannot see,
CPUs that only look free), or keep an open machine for ever. Placement stops trusting such room after a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Target
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import StageState
from burstd.planner.placement.first_fit import BURST_START_GRACE_S, SITE_START_GRACE_S

STUCK_TTL_S = 3600.0
"""After so long everything is believed anew."""


def stuck_since(known: Mapping[str, float], snapshot: Snapshot, target: Target) -> dict[str, float]:
    """The new ``RuntimeState.stuck_since`` from the one before. Unchanged where Slurm could not be read."""
    if not isinstance(snapshot.slurm, SlurmView):
        return dict(known)
    not_in_service = {claim.slot for claim in snapshot.claims if claim.state is not ClaimState.IN_SERVICE}
    assigned = placements_of_whole_gangs(target)
    startable = {job for job, names in assigned.items() if not_in_service.isdisjoint(names)}
    return _updated(known, startable, snapshot, snapshot.slurm, SITE_START_GRACE_S)


def stuck_on_burst_since(known: Mapping[str, float], snapshot: Snapshot, target: Target) -> dict[str, float]:
    """The new ``RuntimeState.stuck_on_burst_since``: as above, of those that have burst nodes among their room.

    Without it a job that Slurm never starts would be given one machine after the other: each is closed when it has
    stood open in vain, and then there is no open room any more that could be mistrusted.
    """
    if not isinstance(snapshot.slurm, SlurmView):
        return dict(known)
    in_service = {claim.slot for claim in snapshot.claims if claim.state is ClaimState.IN_SERVICE}
    not_in_service = {claim.slot for claim in snapshot.claims} - in_service
    assigned = placements_of_whole_gangs(target)
    startable = {
        job for job, names in assigned.items() if not_in_service.isdisjoint(names) and not in_service.isdisjoint(names)
    }
    return _updated(known, startable, snapshot, snapshot.slurm, BURST_START_GRACE_S)


def placements_of_whole_gangs(target: Target) -> Mapping[str, tuple[str, ...]]:
    """``Target.placements`` without gangs that need new nodes as well, which policies may have refused."""
    lacking = {want.gang for want in (*target.wants, *(refused.want for refused in target.dropped_wants)) if want.gang}
    return (
        {job: names for job, names in target.placements.items() if job not in lacking} if lacking else target.placements
    )


def _updated(
    known: Mapping[str, float], startable: AbstractSet[str], snapshot: Snapshot, slurm: SlurmView, grace_s: float
) -> dict[str, float]:
    now = snapshot.now
    # Slurm does not start what waits for its input: that says nothing against the node.
    unready = {job for job, view in snapshot.data.items() if view.state in (StageState.WAITING, StageState.UPLOADING)}
    startable = startable - unready
    known = {job: since for job, since in known.items() if job not in unready} if unready else known
    waiting = {job_id for job in slurm.jobs for job_id in (job.id, job.het_job_id)} if known else set()
    remaining = {
        job: since
        for job, since in known.items()
        if now - since < STUCK_TTL_S
        and (job in startable or (job.partition("_")[0] in waiting and now - since > grace_s))
    }
    return {job: remaining.get(job, now) for job in startable} | remaining
