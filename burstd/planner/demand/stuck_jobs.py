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
from burstd.planner.placement.first_fit import NODE_TRUST_S, OPEN_TRUST_S

FORGET_S = 3600.0
"""After so long everything is believed anew."""


def covered_since(known: Mapping[str, float], snapshot: Snapshot, target: Target) -> dict[str, float]:
    """The new ``Progress.covered_since`` from the one before. Unchanged where Slurm could not be read."""
    if not isinstance(snapshot.slurm, SlurmView):
        return dict(known)
    closed = {claim.slot for claim in snapshot.claims if claim.state is not ClaimState.OPEN}
    placed = _whole(target)
    open_for = {job for job, names in placed.items() if closed.isdisjoint(names)}
    return _kept(known, open_for, snapshot, snapshot.slurm, NODE_TRUST_S)


def tried_since(known: Mapping[str, float], snapshot: Snapshot, target: Target) -> dict[str, float]:
    """The new ``Progress.tried_since``: as above, of those that have burst nodes among their room.

    Without it a job that Slurm never starts would be given one machine after the other: each is closed when it has
    stood open in vain, and then there is no open room any more that could be mistrusted.
    """
    if not isinstance(snapshot.slurm, SlurmView):
        return dict(known)
    slots = {claim.slot for claim in snapshot.claims if claim.state is ClaimState.OPEN}
    closed = {claim.slot for claim in snapshot.claims} - slots
    placed = _whole(target)
    open_for = {job for job, names in placed.items() if closed.isdisjoint(names) and not slots.isdisjoint(names)}
    return _kept(known, open_for, snapshot, snapshot.slurm, OPEN_TRUST_S)


def _whole(target: Target) -> Mapping[str, tuple[str, ...]]:
    """``Target.placed`` without gangs that need new nodes as well, which policies may have refused."""
    lacking = {want.gang for want in (*target.wants, *(refused.want for refused in target.refused)) if want.gang}
    return {job: names for job, names in target.placed.items() if job not in lacking} if lacking else target.placed


def _kept(
    known: Mapping[str, float], open_for: AbstractSet[str], snapshot: Snapshot, slurm: SlurmView, trust_s: float
) -> dict[str, float]:
    now = snapshot.now
    # Slurm does not start what waits for its input: that says nothing against the node.
    unready = {job for job, view in snapshot.data.items() if view.state in (StageState.WAITING, StageState.SENDING)}
    open_for = open_for - unready
    known = {job: since for job, since in known.items() if job not in unready} if unready else known
    waiting = {word for job in slurm.jobs for word in (job.id, job.het_job_id)} if known else set()
    kept = {
        job: since
        for job, since in known.items()
        if now - since < FORGET_S and (job in open_for or (job.partition("_")[0] in waiting and now - since > trust_s))
    }
    return {job: kept.get(job, now) for job in open_for} | kept
