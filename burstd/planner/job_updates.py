"""What policies have Slurm told of pending jobs (Target.job_updates), alike ones in one command."""

from __future__ import annotations

from burstd.domain.plan import UpdateJobs
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.planner.explain.job_comment import scontrol_job_id
from burstd.planner.snapshot_view import SnapshotView


def update_jobs(view: SnapshotView, target: Target) -> list[UpdateJobs]:
    """The updates of jobs that wait."""
    if not target.job_updates or view.slurm is None:
        return []
    groups: dict[JobUpdate, list[Job]] = {}
    for job in view.slurm.jobs:
        if (update := target.job_updates.get(job.id)) is not None and job.state is JobState.PENDING:
            groups.setdefault(update, []).append(job)
    return [
        UpdateJobs(tuple(map(scontrol_job_id, jobs)), tuple(job.id for job in jobs), update, "as the comment requires")
        for update, jobs in groups.items()
    ]
