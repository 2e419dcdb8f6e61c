"""Since when pending jobs have had room on open nodes without being started. The daemon keeps the answer in memory.

A job that Slurm leaves pending although a node fits it would otherwise wait for ever (a limit that burstd cannot see,
CPUs that only look free), or keep an open machine for ever. Placement stops trusting such room after a while.
"""

from __future__ import annotations

from collections.abc import Mapping

from burstd.core.packer import NODE_TRUST_S
from burstd.model.claim import ClaimState
from burstd.model.policy import Target
from burstd.model.snapshot import SlurmView, Snapshot

FORGET_S = 3600.0
"""After so long everything is believed anew."""


def covered_since(known: Mapping[str, float], snapshot: Snapshot, target: Target) -> dict[str, float]:
    """The new ``Progress.covered_since`` from the one before. Unchanged where Slurm could not be read."""
    if not isinstance(snapshot.slurm, SlurmView):
        return dict(known)
    closed = {claim.slot for claim in snapshot.claims if claim.state is not ClaimState.OPEN}
    open_for = {job for job, names in target.placed.items() if closed.isdisjoint(names)}
    waiting = {job.id for job in snapshot.slurm.jobs} if known else set()
    kept = {
        job: since
        for job, since in known.items()
        if snapshot.now - since < FORGET_S
        and (job in open_for or (job in waiting and snapshot.now - since > NODE_TRUST_S))
    }
    return {job: kept.get(job, snapshot.now) for job in open_for} | kept
