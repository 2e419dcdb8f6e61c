"""The machine that a user's running job has, as far as he may be let through to it."""

from __future__ import annotations

from dataclasses import dataclass

from burstd.api.auth import Caller, whole
from burstd.api.backend import Office
from burstd.api.dependencies import Denied, looked
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable

_ON_NODES = (JobState.RUNNING, JobState.SUSPENDED)
_WITH_JOBS = (ClaimState.READY, ClaimState.OPEN, ClaimState.CLOSING)


@dataclass(frozen=True, slots=True)
class JobNode:
    """One run of a job, and the machine of one of its nodes."""

    job: Job
    claim: Claim


def owned(job_id: str, you: Caller, office: Office) -> tuple[Job, ...]:
    """The rows of the queue that an id stands for: one, or the parts of an array or of a het job. May be denied."""
    slurm = looked(office)[0].slurm
    if isinstance(slurm, Unavailable):
        raise Denied(503, f"Slurm cannot be read: {slurm.error}")
    rows = tuple(
        job for job in slurm.jobs
        if job_id and job_id in (job.id, whole(job.id), job.array_job_id, job.het_job_id)
    )  # fmt: skip
    if not rows:
        mine = (job.id for job in slurm.jobs if job.state in _ON_NODES and you.owns(job.user))
        raise Denied(404, f"Job {job_id} is not in the queue.", mine)
    if not all(you.owns(job.user) for job in rows):
        raise Denied(403, f"You are {you.user}, and job {job_id} is not yours.")
    return rows


def job_node(job_id: str, node: str, you: Caller, office: Office) -> JobNode:
    """The job's node of that name, or the first that burstd started. May be denied."""
    rows = owned(job_id, you, office)
    running = [job for job in rows if job.state in _ON_NODES]
    # The first part of a het job has the number of the whole, and so has what waits of an array.
    running = [job for job in running if job.id == job_id] or running
    if not running:
        age = max(0.0, office.now() - looked(office)[0].now)
        raise Denied(
            409,
            f"Job {job_id} does not run: burstd saw it {rows[0].state.value.lower()} {age:.0f} s ago; try again soon.",
        )
    if len(running) > 1:
        raise Denied(409, f"Several parts of job {job_id} run: name one of {', '.join(job.id for job in running)}.")
    job = running[0]
    if node and node not in job.node_list:
        raise Denied(404, f"Job {job.id} has no node {node!r}; it runs on {', '.join(job.node_list)}.", job.node_list)
    claims = {claim.slot: claim for claim in looked(office)[0].claims if claim.state in _WITH_JOBS}
    found = [claims[name] for name in ([node] if node else job.node_list) if name in claims]
    if not found:
        where = node or ", ".join(job.node_list)
        raise Denied(
            409, f"Job {job.id} runs on {where}, which burstd did not start: reach it as the site's other nodes."
        )
    return JobNode(job, found[0])


def over(was: JobNode, snapshot: Snapshot) -> str:
    """Why this run has the machine no more; empty: it has it, or that cannot be told."""
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return ""
    runs = any(
        (job.id, job.restarts) == (was.job.id, was.job.restarts) and job.state in _ON_NODES for job in slurm.jobs
    )
    if not runs:
        return f"job {was.job.id} does not run any more"
    if all(claim.id != was.claim.id or claim.state not in _WITH_JOBS for claim in snapshot.claims):
        return f"the machine of {was.claim.slot} has ended"
    return ""


def has(snapshot: Snapshot, job_id: str, provider: str, instance_id: str) -> bool:
    """Whether that job runs on that machine; True where it cannot be told."""
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return True
    slots = {
        claim.slot for claim in snapshot.claims
        if (claim.offer.provider, claim.instance_id) == (provider, instance_id) and claim.state in _WITH_JOBS
    }  # fmt: skip
    return any(
        job.id == job_id and job.state in _ON_NODES and not slots.isdisjoint(job.node_list) for job in slurm.jobs
    )
