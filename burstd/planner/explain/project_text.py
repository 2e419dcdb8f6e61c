"""How a project stands, in a sentence: for burstctl, the comments of its jobs and explain."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX, Project, Share, gpu_number, gpus_text
from burstd.domain.slurm.job import PENDING_STATES, Job

_SHOWN = 3
_PREFIXES = (QUOTA_PREFIX, OVER_QUOTA_PREFIX)


def project_of_job(job: Job, projects: Mapping[str, Project]) -> Project | None:
    """The project whose partitions a job is in, or asks for; None: it is none's."""
    names = {p[len(prefix) :] for p in job.partitions for prefix in _PREFIXES if p.startswith(prefix)}
    return next((projects[name] for name in names if name in projects), None)


def runs_over_quota(job: Job, project: Project) -> bool:
    """Whether it runs where it may be requeued for other projects."""
    return job.state not in PENDING_STATES and project.over_quota_partition in job.partitions


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
