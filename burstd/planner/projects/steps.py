"""What is done for projects in one decision, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from fractions import Fraction

from burstd.domain.plan import Action, JobRun, RequeueJobs, WarnJobs
from burstd.domain.plugins.policy import Target, Want, without_jobs
from burstd.domain.project import BurstOverQuota, Project, gpus_text
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StageState
from burstd.planner.demand.demand import Demand
from burstd.planner.demand.request import Payers
from burstd.planner.lifecycle.interruption import RUNNING, job_run, takes_last_checkpoint
from burstd.planner.projects.consolidation import consolidate
from burstd.planner.projects.demand import ProjectGroup, read_groups
from burstd.planner.projects.limits import group_limits, set_limits
from burstd.planner.projects.quota_preemption import next_due, set_quota_preemption
from burstd.planner.projects.victims import Victim, reclaim
from burstd.planner.snapshot_view import SnapshotView
from burstd.planner.staging.input_deadlines import data_of_job

LAST_CHECKPOINT_S = 120.0
"""So long a last checkpoint may take, as after most notices of spot machines, where GraceTime is less."""
ENDED_WITHIN_S = 60.0
"""A job that is gone so long after its grace has ended of it: slurmctld is up to half a minute late."""
TAKEN_BACK_WITHIN_S = 30.0
"""So long no machine is started for a job for which GPUs are taken back from other projects, and while jobs that were
told to go still run.
"""


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
        moved += [] if found.victims or group.leaving else consolidate(group, snapshot)
    ends = (warning.until for warning in snapshot.runtime_state.warned.values())
    wake_at = min([wake_at, *(until for until in ends if until > snapshot.now)])
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
    due: dict[str, JobRun] = {run.job_id: run for run in _warned_runs_due(view)}
    told: dict[tuple[float, bool, bool], dict[str, JobRun]] = {}
    for job in _preempted(plan, view):
        left_s, takes_checkpoint = _grace(job, view)
        run = job_run(job, "slurmctld preempts it for a job within a quota", view, "preemption")
        # One that must not end by itself goes before it does.
        runs = told.setdefault((view.snapshot.leaves_at(job), takes_checkpoint, True), {}) if left_s else due
        runs.setdefault(run.job_id, run)
    for victims, cause in ((plan.reclaimed, "reclaim"), (plan.moved, "consolidation")):
        for victim in victims:
            run = job_run(victim.job, victim.reason, view, cause)
            left_s, takes_checkpoint = _grace(victim.job, view)
            runs = told.setdefault((view.now + left_s, takes_checkpoint, False), {}) if left_s else due
            runs.setdefault(run.job_id, run)
    warnings = [WarnJobs(tuple(runs.values()), *how) for how, runs in told.items()]
    requeues = [RequeueJobs(tuple(due.values()))] if due else []
    snapshot = view.snapshot
    return [
        *set_limits(plan.groups, snapshot.projects),
        *set_quota_preemption(plan.groups, target, snapshot),
        *warnings,
        *requeues,
    ]


def _preempted(plan: ProjectPlan, view: SnapshotView) -> Iterator[Job]:
    """Jobs that slurmctld itself takes back, which are not known to go. It requeues them up to half a minute late, and
    before 24.11 not those that end by themselves meanwhile.
    """
    state = view.snapshot.runtime_state
    known = state.requeued.union(state.warned)
    for jobs in (jobs for group in plan.groups for jobs in group.projects.values() if jobs.leaving):
        for running in jobs.running:
            job = running.jobs[0]
            new = job.preempted_at and (job.het_job_id or job.id, job.restarts) not in known
            if new and running.over_quota and all(part.requeue for part in running.jobs):
                yield job


def _grace(job: Job, view: SnapshotView) -> tuple[float, bool]:
    """How long a victim is left, in seconds, and whether its last checkpoint is taken. Else its steps get SIGTERM.

    A job with a checkpoint on a cloud node goes on until it is taken. One whose data burstd stages otherwise is
    requeued at once: it must not end by itself, for then its output is delivered.
    """
    grace_s, data = view.snapshot.projects.grace_of(job), data_of_job(view.snapshot.data, job)
    if data is None:
        return grace_s, False
    taken = data.checkpoint and data.state is StageState.FETCHED and any(n in view.claimed for n in job.node_list)
    return (max(grace_s, LAST_CHECKPOINT_S), True) if taken else (0.0, False)


def _warned_runs_due(view: SnapshotView) -> Iterator[JobRun]:
    """Runs that were told to go, and whose time is over; also those that have ended by themselves, which slurmctld
    requeues from 24.11 on. Whether the one that asked still asks counts no more: they have stopped their work.
    """
    state = view.snapshot.runtime_state
    jobs = view.slurm.jobs if view.slurm is not None and state.warned else ()
    rows: dict[str, list[Job]] = {}
    for job in jobs:
        rows.setdefault(job.het_job_id or job.id, []).append(job)
    for (job_id, restarts), warning in state.warned.items() if view.slurm is not None else ():
        there = rows.get(job_id, [])
        running = [job for job in there if job.state in RUNNING and job.restarts == restarts]
        run = JobRun(job_id, warning.queue_ids, restarts, warning.reason, warning.cause)
        if not there and not warning.takes_checkpoint:
            # Where burstd was away for longer it may have gone on after its grace, and have done all its work.
            if view.now <= warning.until + ENDED_WITHIN_S:
                yield replace(run, ended=True)
        elif running and (job_id, restarts) not in state.requeued:
            taken = warning.takes_checkpoint and not takes_last_checkpoint(running[0], view)
            if taken or view.now >= warning.until:
                yield run


def narrow_to_projects(snapshot: Snapshot, target: Target, plan: ProjectPlan, payers: Payers) -> Target:
    """The target with the projects' shares, and without machines for what is beyond quotas and may not have any.

    A project has machines for as much of its quota as it does not have yet; beyond it by ``burst_over_quota``. What
    other projects give back is waited for before a machine is started.
    """
    target = replace(target, wake_at=min(target.wake_at, plan.wake_at))
    if not plan.groups:
        return target
    shares = {name: group.share(name) for group in plan.groups for name in group.projects}
    target = replace(target, shares=shares)
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
        graces = self._snapshot.projects.grace_s
        within_s = TAKEN_BACK_WITHIN_S + max((graces.get(name, 0.0) for name in group.projects), default=0.0)
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
                late_s = self._snapshot.now - waiting.due(project)
                if late_s >= 0 and (late_s < within_s or group.leaving):
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
