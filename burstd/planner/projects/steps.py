"""What is done for projects in one decision, and what is said of it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction

from burstd.domain.plan import Action, JobRun, RequeueJobs
from burstd.domain.plugins.policy import Target, Want, without_jobs
from burstd.domain.project import BurstOverQuota, Project, gpus_text
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.demand import Demand
from burstd.planner.demand.request import Payers
from burstd.planner.lifecycle.interruption import job_run
from burstd.planner.projects.consolidation import consolidate
from burstd.planner.projects.demand import ProjectGroup, read_groups
from burstd.planner.projects.limits import group_limits, set_limits
from burstd.planner.projects.patience import next_due, set_quota_preemption
from burstd.planner.projects.victims import Victim, reclaim
from burstd.planner.snapshot_view import SnapshotView

TAKEN_BACK_WITHIN_S = 30.0
"""So long no machine is started for a job for which GPUs are taken back from other projects."""


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """What comes of the projects."""

    groups: tuple[ProjectGroup, ...] = ()
    reclaimed: tuple[Victim, ...] = ()
    moved: tuple[Victim, ...] = ()
    wake_at: float = float("inf")


def plan_projects(snapshot: Snapshot, demand: Demand) -> ProjectPlan:
    """Divides, and finds out who is requeued for whom. Nothing without projects."""
    groups = read_groups(snapshot, demand)
    reclaimed: list[Victim] = []
    moved: list[Victim] = []
    wake_at = float("inf")
    for group in groups:
        found = reclaim(group, group_limits(group), snapshot)
        reclaimed += found.victims
        wake_at = min(wake_at, found.wake_at, next_due(group, snapshot.now))
        # What reclaim frees may be all that the large job waits for.
        moved += [] if found.victims else consolidate(group, snapshot)
    return ProjectPlan(groups, tuple(reclaimed), tuple(moved), wake_at)


def quota_first(demand: Demand, plan: ProjectPlan) -> Demand:
    """The demand with what waits within quotas before the rest, each in its order.

    Slurm has these jobs start first, whatever their priorities: nobody else's job that waits for its share may take a
    machine or a slot that such a job needs. An array of which a part is within a quota stays whole, and comes after
    what is there as a whole.
    """
    turn = {
        waiting.pending: 0 if gpus == waiting.gpus * waiting.tasks else 1
        for group in plan.groups
        for jobs in group.projects.values()
        for waiting, gpus in jobs.within_quota()
    }
    if not turn:
        return demand
    ordered = sorted(demand.pending_jobs, key=lambda pending: turn.get(pending, 2))
    return replace(demand, pending_jobs=tuple(ordered))


def project_steps(plan: ProjectPlan, view: SnapshotView, target: Target) -> list[Action]:
    """Limits first: nobody else may take what requeued jobs leave."""
    runs: dict[str, JobRun] = {}
    for victims, cause in ((plan.reclaimed, "reclaim"), (plan.moved, "consolidation")):
        for victim in victims:
            run = job_run(victim.job, victim.reason, view, cause)
            runs.setdefault(run.job_id, run)
    requeues = [RequeueJobs(tuple(runs.values()))] if runs else []
    snapshot = view.snapshot
    return [
        *set_limits(plan.groups, snapshot.projects),
        *set_quota_preemption(plan.groups, target, snapshot),
        *requeues,
    ]


def narrow_to_projects(snapshot: Snapshot, target: Target, plan: ProjectPlan, payers: Payers) -> Target:
    """The target with the projects' shares, and without machines for what is beyond quotas and may not have any.

    A project has machines for as much of its quota as it does not have yet; beyond it by ``burst_over_quota``. What
    other projects give back is waited for before a machine is started.
    """
    if not plan.groups:
        return target
    shares = {name: group.share(name) for group in plan.groups for name in group.projects}
    target = replace(target, shares=shares, wake_at=min(target.wake_at, plan.wake_at))
    accounts = next((names for kind, names in payers if kind == "account"), frozenset())
    return without_jobs(target, "projects", snapshot, _Refusal(snapshot, plan, accounts))


class _Refusal:
    """Why a want's job gets no machine; asked in the order of the wants."""

    def __init__(self, snapshot: Snapshot, plan: ProjectPlan, accounts: AbstractSet[str]) -> None:
        self._snapshot, self._accounts = snapshot, accounts
        self._projects: dict[str, Project] = {}
        """By their partitions."""
        self._within_quota: dict[str, Fraction] = {}
        """By job, GPUs that its project's quota has left for it."""
        self._taken_back: dict[str, Fraction] = {}
        """By job, GPUs that are about to be taken back from other projects for it."""
        for group in plan.groups:
            self._read(group)

    def _read(self, group: ProjectGroup) -> None:
        above = [(jobs.gpus - group.shares[name], jobs.over) for name, jobs in group.projects.items()]
        back = sum((min(pair) for pair in above if pair[0] > 0), Fraction(0))
        for name, jobs in group.projects.items():
            project = jobs.project
            self._projects |= dict.fromkeys((project.quota_partition, project.over_quota_partition), project)
            self._within_quota |= {waiting.pending.job.id: gpus for waiting, gpus in jobs.within_quota()}
            share = group.shares[name] - jobs.gpus
            for waiting in jobs.waiting:
                if min(share, back) <= 0:
                    break
                if not waiting.gpus:
                    continue
                job_id, gpus = waiting.pending.job.id, waiting.gpus
                fitting = gpus * min(waiting.tasks, max(0, min(share, back) // gpus))
                share -= fitting
                if 0 <= self._snapshot.now - waiting.due(project) < TAKEN_BACK_WITHIN_S:
                    self._taken_back[job_id] = fitting
                    back -= fitting

    def __call__(self, want: Want, job: Job) -> str:
        project = next((self._projects[p] for p in job.partitions if p in self._projects), None)
        gpus = self._snapshot.pools[want.pool].shape.gpus() * want.nodes
        if project is None or not gpus:
            return ""
        if _take(self._taken_back, job.id, gpus):
            return f"project {project.name} is below its share: GPUs are taken back from other projects for it"
        beyond = project.over_quota_partition in job.partitions
        if (beyond and self._bursts(project)) or _take(self._within_quota, job.id, gpus):
            return ""
        if not beyond:
            return f"project {project.name} has no more of its quota left, and this job may not be requeued beyond it"
        return (
            f"project {project.name} has no more of its quota of {gpus_text(project.quota)} left for it, and its"
            f" burst_over_quota is {project.burst_over_quota.value}"
        )

    def _bursts(self, project: Project) -> bool:
        match project.burst_over_quota:
            case BurstOverQuota.ALWAYS:
                return True
            case BurstOverQuota.BUDGET:
                return not self._accounts.isdisjoint((project.account, "*"))
            case BurstOverQuota.NEVER:
                return False


def _take(left: dict[str, Fraction], job_id: str, gpus: int) -> bool:
    """Whether the job has any left; a machine takes as many as it has."""
    there = left.get(job_id, Fraction(0))
    left[job_id] = there - gpus
    return there > 0
