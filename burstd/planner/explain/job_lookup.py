"""A job of the queue by any id that people give it, and what it asks for in their words."""

from __future__ import annotations

from collections.abc import Sequence

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.units import memory_text
from burstd.planner.demand.demand import has_task


def find_job(jobs: Sequence[Job], job_id: str) -> Job | None:
    """The row of a job, or the one that it is in: ``123_7`` as long as it waits with the others of its array.

    ``123_[6-8]``, as squeue has the tasks of an array that wait together, is the row of them.

    For the bare number of an array or a het job, the row that waits, else the first; None: there is none.
    """
    exact = next((job for job in jobs if job.id == job_id), None)
    if exact is not None:
        return exact
    number, _, task = job_id.partition("_")
    if task.startswith("[") and task.endswith("]"):
        matches = [job for job in jobs if number in (job.id, job.array_job_id) and job.array_tasks]
    elif task:
        matches = [job for job in jobs if job.id == number and has_task(job.array_tasks, task)]
    else:
        matches = [job for job in jobs if job_id and job_id in (job.array_job_id, job.het_job_id)]
    return next((job for job in matches if job.state is JobState.PENDING), matches[0] if matches else None)


def find_ended_job(ended: Sequence[Job], job_id: str) -> Job | None:
    """The last run of a job among those that are over: Slurm gives ids again. None: it is not among them."""
    return max((job for job in ended if job.id == job_id), key=lambda job: job.end, default=None)


def request_text(job: Job) -> str:
    """What a job asks for: ``1 node, 8 CPUs, 30 GiB per node, gpu:a100:2 per node``."""
    cpus = f"{job.cpus} CPU{'s' if job.cpus != 1 else ''}"
    parts = [f"{job.nodes} nodes", f"{cpus} in all"] if job.nodes > 1 else ["1 node", cpus]
    if job.memory_mib:
        parts.append(memory_text(job.memory_mib) + (" per CPU" if job.memory_per_cpu else " per node"))
    parts += [f"{g} per node" for g in job.gres_per_node]
    parts += [f"{g} in all" for g in job.gres_per_job]
    if job.constraint:
        parts.append(f"constraint {job.constraint}")
    if job.exclusive:
        parts.append("whole nodes")
    if job.exclusive_user:
        parts.append("nodes without jobs of other users")
    if job.tasks > 1:
        parts.append(f"{job.tasks} array tasks")
    if job.time_limit_s:
        parts.append(f"{job.time_limit_s / 60:.0f} min")
    if job.dependency:
        parts.append(f"after {job.dependency}")
    return ", ".join(parts)
