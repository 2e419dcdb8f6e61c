"""Which quotas take GPUs back from others, and which wait for machines that are on their way.

slurmctld takes back by itself, at once, what is within a quota. The jobs of a project with ``reclaim_after_s`` wait for
a machine first: while all of them may, its quota partition has the tier of over-quota partitions and preempts nobody.
They start on free GPUs all the same, which the limits of all others leave to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property

from burstd.domain.plan import SetQuotaPreemption
from burstd.domain.plugins.policy import Target
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.shape import Shape, gpus_of
from burstd.domain.snapshot import Snapshot
from burstd.planner.placement.bins import shape_of
from burstd.planner.projects.demand import ProjectGroup, ProjectJobs

_NOTHING_WAITS = "nothing waits within it"


def next_due(group: ProjectGroup, now: float) -> float:
    """When the next job has waited for as long as its project waits for machines; infinity: none will have."""
    due = (
        waiting.due(jobs.project)
        for jobs in group.projects.values()
        if jobs.project.reclaim_after_s
        for waiting, _ in jobs.within_quota()
    )
    return min((at for at in due if at > now), default=float("inf"))


def set_quota_preemption(
    groups: Iterable[ProjectGroup], target: Target, snapshot: Snapshot
) -> list[SetQuotaPreemption]:
    """One step with the quotas that are to preempt others from now on, or nobody; none where all is as it is to be.

    ``target``: the machines that are wanted once policies and budgets have had their say.
    """
    view, given = snapshot.projects, _Given(target, snapshot)
    urgent: dict[str, str] = {}
    wait: dict[str, str] = {}
    for group in groups:
        for name, jobs in group.projects.items():
            why_not, why = _urgency(jobs, given, snapshot.now)
            if why_not:
                urgent[name] = why_not
            else:
                wait[name] = why
    preempt = {
        name: urgent.get(name, "it is no project any more") for name in view.without_preemption if name not in wait
    }
    rest = {name: why for name, why in wait.items() if name in view.limits and name not in view.without_preemption}
    if not preempt and not rest:
        return []
    reasons = "; ".join(dict.fromkeys([*preempt.values(), *rest.values()]))
    return [SetQuotaPreemption(tuple(sorted(preempt)), tuple(sorted(rest)), reasons)]


def preempt_for_all(snapshot: Snapshot, reason: str) -> list[SetQuotaPreemption]:
    """The step where no machine comes for anybody."""
    without_preemption = tuple(sorted(snapshot.projects.without_preemption))
    return [SetQuotaPreemption(without_preemption, (), reason)] if without_preemption else []


def _urgency(jobs: ProjectJobs, given: _Given, now: float) -> tuple[str, str]:
    """Why a project's quota is to preempt others now; empty where it may wait, with the reason for that."""
    project = jobs.project
    if not project.reclaim_after_s:
        return f"project {project.name} does not wait for machines", ""
    asking = list(jobs.within_quota())
    for waiting, _ in asking:
        job = waiting.pending.job
        if waiting.due(project) <= now:
            return f"job {job.id} of project {project.name} has waited {project.reclaim_after_s:.0f} s", ""
        if not given.nodes(job):
            return f"no machine is on its way for job {job.id} of project {project.name}", ""
    asked = sum((gpus for _, gpus in asking), Fraction(0))
    coming = given.gpus(waiting.pending.job for waiting, _ in asking)
    if coming < asked:
        return f"machines on their way have {coming} of the {asked} GPUs that project {project.name} waits for", ""
    return "", f"machines are on their way for project {project.name}" if asking else _NOTHING_WAITS


class _Given:
    """Nodes with room, nodes on their way and nodes about to be started, as they were given to jobs."""

    def __init__(self, target: Target, snapshot: Snapshot) -> None:
        self._target = target
        self._snapshot = snapshot

    @cached_property
    def _by_id(self) -> Mapping[str, set[str]]:
        """By the job, its array or its het job."""
        found: dict[str, set[str]] = {}
        for key, names in self._target.placements.items():
            found.setdefault(key.partition("_")[0], set()).update(names)
        for want in self._target.wants:
            for job_id in want.jobs:
                found.setdefault(job_id, set()).update(want.slots)
        return found

    @cached_property
    def _slots(self) -> Mapping[str, Shape]:
        return {slot: pool.shape for pool in self._snapshot.pools.values() for slot in pool.slots}

    def nodes(self, job: Job) -> set[str]:
        """Those of a job, or of any task of its array."""
        ids = {job.id, job.array_job_id, job.het_job_id}
        return {name for job_id in ids if job_id for name in self._by_id.get(job_id, ())}

    def gpus(self, jobs: Iterable[Job]) -> Fraction:
        """What the nodes of all of these have free; what others are given of it counts as well, until due times."""
        names = {name for job in jobs for name in self.nodes(job)}
        return sum((self._free(name) for name in names), Fraction(0))

    def _free(self, name: str) -> Fraction:
        nodes = getattr(self._snapshot.slurm, "nodes", {})
        if name not in nodes:
            return Fraction(self._slots[name].gpus() if name in self._slots else 0)
        node = nodes[name]
        shape = shape_of(node)
        return shape.gpus() - gpus_of(node.gres_used, shape.shards_per_gpu())
