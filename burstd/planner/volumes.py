"""Machines for jobs with a volume: each has one of its own, where the volume is.

Placement does not see these jobs: a machine that is there, or that other jobs share, may be in another zone, and Slurm
would start the job on any. A dedicated machine is bound to its job, and the job's data_in hook is answered after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from burstd.domain.claim import USABLE, Cause
from burstd.domain.plugins.policy import Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.volume import VolumeNeed
from burstd.planner.demand.request import RequestIndex
from burstd.planner.placement.equivalence_class import pool_fit


def add_volume_wants(snapshot: Snapshot, target: Target, free_slots: Mapping[str, Sequence[str]]) -> Target:
    """The target with a machine for each job whose turn it is to have its volume, and without releases of these.

    ``free_slots``: by pool, those on which there is nothing.
    """
    if not snapshot.volume_needs or not isinstance(snapshot.slurm, SlurmView):
        return target
    jobs = {job.id: job for job in snapshot.slurm.jobs if job.id in snapshot.volume_needs}
    taken = {slot for want in target.wants for slot in want.slots}
    wants: list[Want] = []
    remarks: list[Remark] = []
    kept: set[str] = set()
    impossible = {remark.subject for remark in target.remarks if remark.verdict == "impossible"}
    for job_id, need in snapshot.volume_needs.items():
        job = jobs.get(job_id)
        if job is None or job.state is not JobState.PENDING:
            continue
        own = [claim for claim in snapshot.claims if job_id in claim.jobs and claim.state in USABLE]
        if own:
            kept |= {claim.id for claim in own}
            text = f"its machine for volume {need.volume} is {own[0].slot} ({own[0].state.value})"
            remarks.append(Remark("volumes", f"job:{job_id}", "covered", text))
            continue
        if f"job:{job_id}" in impossible:
            continue
        want = _want(snapshot, target, job, need, free_slots, taken)
        if isinstance(want, str):
            remarks.append(Remark("volumes", f"job:{job_id}", "wait", want))
            continue
        taken |= set(want.slots)
        wants.append(want)
        text = f"a machine of pool {want.pool} for volume {need.volume} in {need.place}"
        remarks.append(Remark("volumes", f"job:{job_id}", "boot", text))
    return replace(
        target,
        wants=(*target.wants, *wants),
        releases=tuple(release for release in target.releases if release.claim_id not in kept),
        remarks=(*target.remarks, *remarks),
    )


def _want(
    snapshot: Snapshot,
    target: Target,
    job: Job,
    need: VolumeNeed,
    free_slots: Mapping[str, Sequence[str]],
    taken: set[str],
) -> Want | str:
    """The cheapest machine that can have the volume, or why there is none."""
    request = RequestIndex().request_for(job)
    found: list[Want] = []
    why = f"no pool of its partitions has nodes in {need.place}, where volume {need.volume} can be"
    for pool in snapshot.pools.values():
        offers = tuple(offer for offer in target.offers.get(pool.name, ()) if need.admits(offer))
        if not offers or set(pool.partitions).isdisjoint(job.partitions):
            continue
        fit = pool_fit(request, pool)
        if isinstance(fit, str) or fit.nodes != 1 or not fit.shares_per_node:
            why = f"a node of pool {pool.name} is not enough for it" + (f": {fit}" if isinstance(fit, str) else "")
            continue
        slot = next((s for s in free_slots.get(pool.name, ()) if s not in taken and request.allows_node(s)), None)
        if slot is None:
            why = f"pool {pool.name} has no free slot for its machine with volume {need.volume}"
            continue
        reason = f"job {job.id} with volume {need.volume}"
        found.append(
            Want(
                pool.name, 1, Cause.DEMAND, reason, offers, jobs=(job.id,), users=(job.user,), accounts=(job.account,),
                slots=(slot,), dedicated=True,
            )
        )  # fmt: skip
    return min(found, key=lambda want: (*snapshot.rates.price(want.offers[0]), want.pool)) if found else why
