"""What policies have Slurm told of pending jobs (Target.job_updates), alike ones in one command."""

from __future__ import annotations

from burstd.domain.plan import RequeueJobs, UpdateJobs
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_update import JobUpdate
from burstd.planner.explain.job_comment import scontrol_job_id
from burstd.planner.lifecycle.interruption import job_run
from burstd.planner.snapshot_view import SnapshotView


def requeue_misplaced(view: SnapshotView, target: Target) -> list[RequeueJobs]:
    """Has jobs begin anew that Slurm started on nodes that they must not run on, before it was told."""
    if not target.misplaced_jobs or view.slurm is None:
        return []
    runs = tuple(
        job_run(job, target.misplaced_jobs[job.id], view, "broker")
        for job in view.slurm.jobs
        if job.id in target.misplaced_jobs
        and job.state is JobState.RUNNING
        and (job.id, job.restarts) not in view.snapshot.runtime_state.requeued
    )
    return [RequeueJobs(runs)] if runs else []


def update_jobs(view: SnapshotView, target: Target) -> list[UpdateJobs]:
    """The updates of jobs that wait, those of most jobs first: one loop may not come to all."""
    if not target.job_updates or view.slurm is None:
        return []
    groups: dict[JobUpdate, list[Job]] = {}
    for job in view.slurm.jobs:
        if (update := target.job_updates.get(job.id)) is not None and job.state is JobState.PENDING:
            groups.setdefault(update, []).append(job)
    return [
        UpdateJobs(tuple(map(scontrol_job_id, jobs)), tuple(job.id for job in jobs), update, "as the comment requires")
        for update, jobs in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]
