"""What slurmctld is to enforce on the over-quota partitions of projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from burstd.domain.plan import SetProjectLimits
from burstd.domain.project import LOWEST_TIER, OverQuotaLimits, ProjectsView
from burstd.planner.projects.demand import ProjectGroup, ProjectJobs

PROTECTED_TIER = 2
"""Of a project that asks for no more than its quota: preempted last."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What a project will have once all that fits has started."""

    within: Fraction
    """GPUs of jobs within its quota."""
    over: Fraction
    """GPUs of jobs beyond it, within its share."""
    blocked: Fraction | None
    """GPUs of its smallest job that is larger than what is left; None: there is none."""


def filling(jobs: ProjectJobs, share: Fraction) -> Filling:
    """Jobs that fit into what is left of the quota run within it, larger ones beyond it as a whole."""
    within, over, left = jobs.within, jobs.over, dict(jobs.sizes)
    for (gpus, quota_too), tasks in jobs.sizes.items():
        if gpus and quota_too:
            fitting = min(tasks, max(0, (jobs.project.quota - within) // gpus))
            within += fitting * gpus
            left[gpus, quota_too] -= fitting
    for (gpus, quota_too), tasks in left.items():
        if gpus:
            fitting = min(tasks, max(0, (share - within - over) // gpus))
            over += fitting * gpus
            left[gpus, quota_too] -= fitting
    blocked = [gpus for (gpus, _), tasks in left.items() if gpus and tasks]
    return Filling(within, over, min(blocked, default=None))


def group_limits(group: ProjectGroup) -> dict[str, OverQuotaLimits]:
    """By project, what its over-quota partition is to allow now, in GPUs or shards as Slurm counts them, and its tier.

    The limit is the project's share without what its jobs hold, or will hold, of its quota.

    A partition of a higher tier preempts those of a lower one, so that tiers by shares would have waiting jobs push out
    what runs within another's share, and be pushed out in turn. Only a project that asks for no more than its quota
    gets a higher one: what it runs beyond its quota, though others of its jobs have ended, is preempted last, by its
    own jobs that start within the quota as well. None of its waiting jobs pushes anybody out from there: they start
    within the quota, whose tier is higher still, and the limit is what runs there already.

    What is left: a project that runs no more than its quota and asks for more has room in its quota partition for more
    jobs than its quota has room for. They preempt whatever runs beyond quotas, its own jobs too.
    """
    filled = {name: filling(jobs, group.shares[name]) for name, jobs in group.projects.items()}
    caps = {name: max(Fraction(0), group.shares[name] - filled[name].within) for name in filled}
    caps |= _cap_for_unused(group, filled)
    return {
        name: OverQuotaLimits(
            Fraction(floor(caps[name] * group.parts[name]), group.parts[name]),
            PROTECTED_TIER if _protected(jobs) else LOWEST_TIER,
        )
        for name, jobs in group.projects.items()
    }


def _protected(jobs: ProjectJobs) -> bool:
    """Whether it has jobs that belong to its quota in its over-quota partition, and none that would start there."""
    if not jobs.over or jobs.demand > jobs.project.quota:
        return False
    # A quota partition that waits for machines is not of a higher tier. No limit holds back jobs without GPUs.
    starts_there = jobs.project.reclaim_after_s > 0 or any(not gpus or not quota_too for gpus, quota_too in jobs.sizes)
    return not (jobs.sizes and starts_there)


def _cap_for_unused(group: ProjectGroup, filled: Mapping[str, Filling]) -> dict[str, Fraction]:
    """The cap with which a job starts that is larger than what is left of its project's share, where GPUs would idle:
    three projects have a share of 5 of 16 GPUs each, and jobs of 8. One project at a time, the one with least.
    """
    idle = group.total - sum((f.within + f.over for f in filled.values()), Fraction(0))
    found = [
        (group.projects[name].gpus / (group.projects[name].project.quota or 1), name, f.over + f.blocked)
        for name, f in filled.items()
        if f.blocked is not None and f.blocked <= idle
    ]
    return {name: gpus for _, name, gpus in sorted(found)[:1]}


def set_limits(groups: Sequence[ProjectGroup], view: ProjectsView) -> list[SetProjectLimits]:
    """One step with the limits that are not in force; none where all are."""
    wanted = {name: limits for group in groups for name, limits in group_limits(group).items()}
    news = tuple((n, some) for n, some in wanted.items() if n in view.limits and view.limits[n] != some)
    return [SetProjectLimits(news, "shares have changed")] if news else []
