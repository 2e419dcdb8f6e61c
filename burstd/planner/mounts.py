"""Mounts of the site's trees on nodes: which users need theirs, and what becomes of jobs that have lost them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from burstd.domain.clock import utc_clock_text
from burstd.domain.mounts import PUBLIC_USER, SilentLine
from burstd.domain.plan import Action, HoldJob, RequeueJobs
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.lifecycle.interruption import job_run
from burstd.planner.snapshot_view import SnapshotView

HOLD_AFTER = 3
"""So often in a row a job's start may be refused."""
_AT_WORK = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED, JobState.SIGNALING, JobState.RESIZING})
_STARTED = _AT_WORK | {JobState.COMPLETING}
_ON_NODES = _STARTED | {JobState.CONFIGURING}


def users_of_nodes(jobs: Iterable[Job], nodes: Mapping[str, object], *, started: bool = False) -> dict[str, set[str]]:
    """Node -> users with a job on it, from its allocation until its last process has ended; of these nodes only.

    ``started``: from the start of the job, which comes after its prolog.
    """
    users: dict[str, set[str]] = {}
    for job in jobs:
        if job.state in (_STARTED if started else _ON_NODES):
            for node in job.node_list:
                if node in nodes:
                    users.setdefault(node, set()).add(job.user)
    return users


def mount_steps(view: SnapshotView) -> list[Action]:
    """Requeues jobs at work whose mounts have ended, as they cannot read or write there, and those never started.

    Holds those whose start was refused again and again: each attempt keeps their nodes for a minute and more.
    """
    runs = {
        _run_key(job): job_run(job, reason, view, "mounts")
        for job, reason in (*_jobs_without_mounts(view), *_unstarted_jobs(view))
        if _run_key(job) not in view.snapshot.runtime_state.requeued
    }
    holds = {
        job.het_job_id or job.id: HoldJob(job.het_job_id or job.id, job.id, f"{text}, {times} times", "mounts")
        for job, text, times in _refused_jobs(view)
        if times >= HOLD_AFTER and job.state is JobState.PENDING and not job.held
    }
    return [*([RequeueJobs(tuple(runs.values()))] if runs else []), *holds.values()]


def mount_remarks(view: SnapshotView) -> tuple[Remark, ...]:
    """What is to be said of jobs whose trees are not mounted."""
    runtime_state = view.snapshot.runtime_state
    lost = [
        Remark("mounts", f"job:{job.id}", "ends", f"{reason}; Slurm does not requeue it: cancel it and submit it again")
        for job, reason in (*_jobs_without_mounts(view), *_unstarted_jobs(view))
        if _run_key(job) in runtime_state.requeue_refused
    ]
    refused = [
        Remark("mounts", f"job:{job.id}", "wait", f"{text}; {_HELD}" if job.held else text)
        for job, text, _ in _refused_jobs(view)
    ]
    return (*lost, *refused, *_silent_remarks(view))


def _silent_remarks(view: SnapshotView) -> list[Remark]:
    silent = view.snapshot.mounts.silent
    if not silent or view.slurm is None:
        return []
    lines = {claim.slot: silent[claim.id] for claim in view.snapshot.claims if claim.id in silent}
    found = []
    for job in view.slurm.jobs:
        node = next((n for n in job.node_list if n in lines), None) if job.state in _AT_WORK else None
        if node is not None:
            text = f"{node}: {line_text(lines[node], view.snapshot.now)}"
            found.append(Remark("mounts", f"job:{job.id}", "runs", text))
    return found


def line_text(line: SilentLine, now: float) -> str:
    """What a silent line means for jobs on its node."""
    since, until = (utc_clock_text(t, now) for t in (line.since, line.given_up_by))
    return (
        f"the line from the head to the node is silent since {since}: reads and writes in mounted trees wait; "
        f"jobs there are requeued by {until}, unless it comes back"
    )


def _run_key(job: Job) -> tuple[str, int]:
    return job.het_job_id or job.id, job.restarts


def _refused_jobs(view: SnapshotView) -> list[tuple[Job, str, int]]:
    """Jobs whose last start failed, with the reason, and how often in a row."""
    mounts = view.snapshot.mounts
    if not mounts.refusals or view.slurm is None:
        return []
    return [
        (job, mounts.refusals[job.id], mounts.refused_times.get(job.id, 0))
        for job in view.slurm.jobs
        if job.id in mounts.refusals
    ]


_LOST = "the line between the head and the node is broken, and the mounted trees of the job's user with it"
_UNSTARTED = "slurmctld ended while PrologSlurmctld ran, and never sent the job's script to its node"
_HELD = "it is held, and no node is kept for it"


def _unstarted_jobs(view: SnapshotView) -> list[tuple[Job, str]]:
    unstarted = view.snapshot.mounts.unstarted
    if not unstarted or view.slurm is None:
        return []
    return [
        (job, _UNSTARTED)
        for job in view.slurm.jobs
        if job.state is JobState.RUNNING and unstarted.get(job.id) == job.restarts
    ]


def _jobs_without_mounts(view: SnapshotView) -> list[tuple[Job, str]]:
    """Jobs at work whose user's mounts ended by themselves, with the reason."""
    lost = view.snapshot.mounts.lost
    if not lost or view.slurm is None:
        return []
    users = {claim.slot: lost[claim.id] for claim in view.snapshot.claims if claim.id in lost}
    found = []
    for job in view.slurm.jobs:
        if job.state in _AT_WORK:
            node = next((n for n in job.node_list if users.get(n, frozenset()) & {job.user, PUBLIC_USER}), None)
            if node is not None:
                found.append((job, f"{node}: {_LOST}"))
    return found
