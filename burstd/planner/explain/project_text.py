"""How a project stands, in a sentence: for burstctl, the comments of its jobs and explain."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from burstd.domain.clock import utc_clock_text
from burstd.domain.plugins.policy import Remark
from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX, Project, Share, gpu_number, gpus_text
from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.domain.slurm.shape import gpus_of
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.demand import reason_of

_SHOWN = 3
_PREFIXES = (QUOTA_PREFIX, OVER_QUOTA_PREFIX)


def project_of_job(job: Job, projects: Mapping[str, Project]) -> Project | None:
    """The project whose partitions a job is in, or asks for; None: it is none's."""
    names = {p[len(prefix) :] for p in job.partitions for prefix in _PREFIXES if p.startswith(prefix)}
    return next((projects[name] for name in names if name in projects), None)


def runs_over_quota(job: Job, project: Project) -> bool:
    """Whether it runs where it may be requeued for other projects."""
    return job.state not in PENDING_STATES and project.over_quota_partition in job.partitions


def exceeds_quota(job: Job, project: Project, shards: int = 0) -> bool:
    """Whether a pending job may run within the quota only, and asks for more: it can never start."""
    return not _may_be_requeued(job, project) and asked_gpus(job, shards) > project.quota


def waiting_remark(job: Job, project: Project, share: Share | None, snapshot: Snapshot) -> Remark:
    """What a pending job of a project waits for, where the plan has no word on it."""
    reason, subject = reason_of(job, snapshot), f"job:{job.id}"
    shards = snapshot.projects.shards.get(project.name, 0)
    if exceeds_quota(job, project, shards):
        return Remark("projects", subject, "impossible", "it asks for more GPUs than the quota of its project")
    if not reason.needs_nodes:
        return Remark("demand", subject, "wait", reason.text)
    has_share = share is not None and share.running > 0 and not share.missing and asked_gpus(job, shards) > 0
    if has_share:
        return Remark("projects", subject, "wait", "waiting for its project's share")
    return Remark("placement", subject, "wait", "waiting for nodes")


def job_text(job: Job, project: Project, share: Share | None, shards: int = 0) -> str:
    """What a job of a project may run in, or waits for; empty: what is said of its project says it."""
    if job.state not in PENDING_STATES:
        return "it runs beyond its project's quota and may be requeued" if runs_over_quota(job, project) else ""
    if not _may_be_requeued(job, project):
        text = "it may not be requeued (srun, salloc, --no-requeue), and so runs within the quota only"
        return f"{text}: ask for {gpus_text(project.quota)} at most" if exceeds_quota(job, project, shards) else text
    if project.quota_partition not in job.partitions and not asked_gpus(job, shards or 1):
        return "it asks for no GPUs, and runs where projects leave room"
    text = "it has been requeued and begins anew" if job.restarts else ""
    if share is not None and share.missing and share.running < project.quota:
        text += "; " * bool(text) + "it is within the quota, and goes before all that is beyond quotas"
    return text


def _may_be_requeued(job: Job, project: Project) -> bool:
    return project.over_quota_partition in job.partitions


def asked_gpus(job: Job, shards: int) -> Fraction:
    """GPUs that a job, or a task of an array, asks for. ``shards``: those of a GPU, where Slurm counts them; else 0."""
    nodes = max(1, job.nodes if job.state in PENDING_STATES else len(job.node_list))
    return gpus_of(job.gres_per_node, shards) * nodes + gpus_of(job.gres_per_job, shards)


def leaving_text(job: Job, snapshot: Snapshot) -> str:
    """``requeued at 12:31:05 UTC: project b asks for its share``; empty: nobody takes the job back."""
    at = snapshot.leaves_at(job)
    if not at:
        return ""
    warning = snapshot.runtime_state.warned.get((job.het_job_id or job.id, job.restarts))
    why = warning.reason if warning is not None else "slurmctld preempts it"
    latest = ", or when its last checkpoint is taken" if warning is not None and warning.takes_checkpoint else ""
    return f"requeued at {utc_clock_text(at, snapshot.now)}{latest}: {why}"


def project_text(project: Project, projects: Mapping[str, Project], shares: Mapping[str, Share]) -> str:
    """``project a: 4 of 4 GPUs in quota, 2 over; reclaimed when d asks``. GPUs count, not the partitions of jobs."""
    share = shares.get(project.name)
    if share is None:
        return f"project {project.name}: its jobs are not known yet"
    within = min(share.running, project.quota)
    text = f"project {project.name}: {gpu_number(within)} of {gpus_text(project.quota)} in quota"
    over = share.running - within
    if over:
        text += f", {gpu_number(over)} over; reclaimed when {_claimants(project, projects, shares)}"
    wanted = share.demand - share.running
    if wanted > 0:
        text += f"; asks for {gpu_number(wanted)} more"
        if not share.missing:
            text += f", and has its share of {gpu_number(share.share)}"
        else:
            text += f", and is to get {'them' if share.missing >= wanted else gpu_number(share.missing)}"
    return text


def _claimants(project: Project, projects: Mapping[str, Project], shares: Mapping[str, Share]) -> str:
    """Who may take back what the project runs beyond its quota: those that do not use all of theirs."""
    owners = sorted(
        other.name
        for other in projects.values()
        if other.account
        and other.name != project.name
        and other.node_group == project.node_group
        and (shares[other.name].running if other.name in shares else Fraction(0)) < other.quota
    )
    if not owners:
        return "the division changes"
    shown = owners[:_SHOWN]
    if len(owners) > _SHOWN:
        return f"{', '.join(shown)} or {len(owners) - _SHOWN} more ask"
    return f"{' or '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} ask{'s' if len(owners) == 1 else ''}"
