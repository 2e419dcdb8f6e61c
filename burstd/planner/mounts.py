"""Mounts of the site's trees on nodes: which users need theirs, and what becomes of jobs that have lost them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from burstd.domain.mounts import PUBLIC_USER
from burstd.domain.plan import Action, JobRun, RequeueJobs
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.planner.snapshot_view import SnapshotView

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
    """Requeues jobs at work whose mounts have ended: what they read or write fails from now on."""
    runs = [
        JobRun(job.het_job_id or job.id, (job.id,), job.restarts, f"{node}: {_LOST}", cause="mounts")
        for job, node in _jobs_without_mounts(view)
        if (job.het_job_id or job.id, job.restarts) not in view.snapshot.runtime_state.requeued
    ]
    return [RequeueJobs(tuple(runs))] if runs else []


def mount_remarks(view: SnapshotView) -> tuple[Remark, ...]:
    """What is to be said of jobs whose trees are not mounted."""
    mounts = view.snapshot.mounts
    lost = [Remark("mounts", f"job:{job.id}", "ends", f"{node}: {_LOST}") for job, node in _jobs_without_mounts(view)]
    refused = [Remark("mounts", f"job:{job_id}", "wait", text) for job_id, text in mounts.refusals.items()]
    return (*lost, *refused)


_LOST = "the line between the head and the node is broken, and the mounted trees of the job's user with it"


def _jobs_without_mounts(view: SnapshotView) -> list[tuple[Job, str]]:
    """Jobs at work, each with a node on which its user's mounts ended by themselves."""
    lost = view.snapshot.mounts.lost
    if not lost or view.slurm is None:
        return []
    users = {claim.slot: lost[claim.id] for claim in view.snapshot.claims if claim.id in lost}
    found = []
    for job in view.slurm.jobs:
        if job.state in _AT_WORK:
            node = next((n for n in job.node_list if users.get(n, frozenset()) & {job.user, PUBLIC_USER}), None)
            if node is not None:
                found.append((job, node))
    return found
