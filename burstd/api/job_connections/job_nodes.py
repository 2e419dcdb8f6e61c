"""The machine that a user's running job has, as far as he may be let through to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burstd.api.auth import Caller, base_job_id
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, require_latest_loop
from burstd.domain.claim import Claim
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.reconciler.pollers.ingress import CLAIM_WITH_JOBS, JOB_ON_NODES


@dataclass(frozen=True, slots=True)
class JobMachine:
    """One run of a job, and the machine of one of its nodes."""

    job: Job
    claim: Claim


def owned_jobs(job_id: str, caller: Caller, backend: Backend) -> tuple[Job, ...]:
    """The rows of the queue that an id stands for: one, or the parts of an array or of a het job. May be denied."""
    slurm = require_latest_loop(backend)[0].slurm
    if isinstance(slurm, Unavailable):
        raise ApiError(503, f"Slurm cannot be read: {slurm.error}")
    rows = tuple(
        job for job in slurm.jobs
        if job_id and job_id in (job.id, base_job_id(job.id), job.array_job_id, job.het_job_id)
    )  # fmt: skip
    if not rows:
        mine = (job.id for job in slurm.jobs if job.state in JOB_ON_NODES and caller.can_see_user(job.user))
        raise ApiError(404, f"Job {job_id} is not in the queue.", mine)
    if not all(caller.can_see_user(job.user) for job in rows):
        raise ApiError(403, f"You are {caller.user}, and job {job_id} is not yours.")
    return rows


def running_part(job_id: str, rows: Sequence[Job]) -> Job | None:
    """The row that runs; None: none does. Denied where several do."""
    running = [job for job in rows if job.state in JOB_ON_NODES]
    # The first part of a het job has the number of the whole, and so has what waits of an array.
    running = [job for job in running if job.id == job_id] or running
    if len(running) > 1:
        raise ApiError(409, f"Several parts of job {job_id} run: name one of {', '.join(job.id for job in running)}.")
    return running[0] if running else None


def claims_with_jobs(backend: Backend) -> dict[str, Claim]:
    """The machines on which jobs may run, by slot."""
    return {claim.slot: claim for claim in require_latest_loop(backend)[0].claims if claim.state in CLAIM_WITH_JOBS}


def find_job_machine(job_id: str, node: str, caller: Caller, backend: Backend) -> JobMachine:
    """The job's node of that name, or the first that burstd started. May be denied."""
    rows = owned_jobs(job_id, caller, backend)
    job = running_part(job_id, rows)
    if job is None:
        age = max(0.0, backend.now() - require_latest_loop(backend)[0].now)
        raise ApiError(
            409,
            f"Job {job_id} does not run: burstd saw it {rows[0].state.value.lower()} {age:.0f} s ago; try again soon.",
        )
    if node and node not in job.node_list:
        raise ApiError(404, f"Job {job.id} has no node {node!r}; it runs on {', '.join(job.node_list)}.", job.node_list)
    claims = claims_with_jobs(backend)
    found = [claims[name] for name in ([node] if node else job.node_list) if name in claims]
    if not found:
        where = node or ", ".join(job.node_list)
        raise ApiError(
            409, f"Job {job.id} runs on {where}, which burstd did not start: reach it as the site's other nodes."
        )
    return JobMachine(job, found[0])


def ended_because(job_machine: JobMachine, snapshot: Snapshot) -> str:
    """Why this run has the machine no more; empty: it has it, or that cannot be told."""
    if why := run_ended(job_machine.job, snapshot):
        return why
    if not isinstance(snapshot.slurm, SlurmView):
        return ""
    if all(claim.id != job_machine.claim.id or claim.state not in CLAIM_WITH_JOBS for claim in snapshot.claims):
        return f"the machine of {job_machine.claim.slot} has ended"
    return ""


def run_ended(run: Job, snapshot: Snapshot) -> str:
    """Says that this run is over; empty: it is not, or that cannot be told."""
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        return ""
    runs = any((job.id, job.restarts) == (run.id, run.restarts) and job.state in JOB_ON_NODES for job in slurm.jobs)
    return "" if runs else f"job {run.id} does not run any more"
