"""What each project has and asks for, by node group, as the queue shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm

from burstd.domain.claim import ClaimState
from burstd.domain.project import NodeGroup, Project, Share
from burstd.domain.project_tree import leaves_of
from burstd.domain.slurm.job import PENDING_STATES, RUNNING_STATES, Job, JobState
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape, gpus_of
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.demand import Demand, PendingJob
from burstd.planner.demand.request import ResourceRequest
from burstd.planner.placement.bins import shape_of
from burstd.planner.projects.division import divide, usage_weights

_RUNNING = (RUNNING_STATES | {JobState.CONFIGURING}) - {JobState.COMPLETING, JobState.STAGE_OUT}
_CLOSED = frozenset({"MAINTENANCE", "RESERVED", "FAIL", "REBOOT_REQUESTED"})
_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs, or the components of a het job."""

    jobs: tuple[Job, ...]
    gpus: Fraction
    over_quota: bool
    """In the over-quota partition, where it may be requeued for others."""
    leaving: bool = False
    """It is about to be requeued."""

    @property
    def gives(self) -> bool:
        """Whether it leaves for what waits beyond quotas; what slurmctld preempts leaves for a job within one."""
        return self.leaving and not self.jobs[0].preempted_at


@dataclass(slots=True)
class WaitingJobs:
    """One row of the queue that asks: a job, or tasks of an array that are alike."""

    pending: PendingJob
    gpus: Fraction
    """Of one task."""
    tasks: int

    def due(self, project: Project) -> float:
        """When it has waited as long as its project waits for free or new machines."""
        return max(self.pending.job.eligible, self.pending.job.submitted) + project.reclaim_after_s


@dataclass(slots=True)
class ProjectJobs:
    """What a project has and asks for."""

    project: Project
    running: list[RunningJob] = field(default_factory=list)
    waiting: list[WaitingJobs] = field(default_factory=list)
    """In the order in which Slurm looks at them; also what is larger than all that there is now."""
    within: Fraction = _NONE
    """GPUs of what runs elsewhere than in the over-quota partition."""
    over: Fraction = _NONE
    """GPUs of what runs in the over-quota partition."""
    quota_only: Fraction = _NONE
    """GPUs of what waits and may not be requeued: it runs within the quota, and asks for no more than is left of it."""
    sizes: dict[tuple[Fraction, bool], int] = field(default_factory=dict)
    """Tasks that ask, by their GPUs and by whether they may run within the quota."""

    @property
    def gpus(self) -> Fraction:
        """Of all that runs."""
        return self.within + self.over

    @property
    def leaving(self) -> Fraction:
        """GPUs of what is about to be requeued."""
        return sum((running.gpus for running in self.running if running.leaving), _NONE)

    @property
    def demand(self) -> Fraction:
        """GPUs of what runs and of what waits."""
        return self.gpus + self.asked

    @property
    def asked(self) -> Fraction:
        """GPUs of what waits."""
        return sum((gpus * tasks for (gpus, _), tasks in self.sizes.items()), _NONE)

    def startable(self, pending: PendingJob, gpus: Fraction, total: Fraction) -> int:
        """How many tasks may ever start, of so many GPUs each, while what runs within the quota runs.

        Counts them, but for those that are larger than all that there is now (``total``).
        """
        if self.project.over_quota_partition in pending.job.partitions or not gpus:
            return pending.tasks
        left = self.project.quota - self.within - self.quota_only
        tasks = min(pending.tasks, max(0, left // gpus))
        self.quota_only += tasks * gpus if gpus <= total else 0
        return tasks

    def within_quota(self) -> Iterator[tuple[WaitingJobs, Fraction]]:
        """What waits and fits into what is left of the quota, in its order, and the GPUs of it that do.

        All that runs counts, in whichever partition.
        """
        left = self.project.quota - self.gpus
        for waiting in self.waiting:
            if left <= 0:
                return
            if not waiting.gpus or self.project.quota_partition not in waiting.pending.job.partitions:
                continue
            fitting = waiting.gpus * min(waiting.tasks, left // waiting.gpus)
            if fitting:
                left -= fitting
                yield waiting, fitting

    def add(self, pending: PendingJob, gpus: Fraction, tasks: int) -> None:
        """Counts tasks that ask."""
        key = gpus, self.project.quota_partition in pending.job.partitions
        self.sizes[key] = self.sizes.get(key, 0) + tasks


@dataclass(frozen=True, slots=True)
class ProjectGroup:
    """Projects that share their nodes."""

    node_group: NodeGroup
    projects: Mapping[str, ProjectJobs]
    """The leaves, by name."""
    nodes: Mapping[str, Node]
    """Those on which jobs can start now."""
    total: Fraction
    """GPUs that there are to divide now."""
    shares: Mapping[str, Fraction]
    parts: Mapping[str, int]
    """Of a GPU, those that Slurm's limits count: its shards, or 1."""
    completing: tuple[Job, ...] = ()
    """What ends on its nodes, and has its GPUs until its processes are gone."""
    leaving: Fraction = _NONE
    """GPUs of what completes, or is about to be requeued, for what waits beyond quotas."""

    def share(self, name: str) -> Share:
        """How a project stands."""
        jobs = self.projects[name]
        return Share(jobs.demand, jobs.gpus, jobs.over, self.shares[name])


def read_groups(snapshot: Snapshot, demand: Demand) -> tuple[ProjectGroup, ...]:
    """All groups, divided. None where there are no projects, or Slurm could not be read. ``demand``: what counts."""
    view, slurm = snapshot.projects, snapshot.slurm
    if not view.projects or not isinstance(slurm, SlurmView):
        return ()
    groups: dict[NodeGroup, list[Project]] = {}
    for leaf in leaves_of(view.projects):
        groups.setdefault(leaf.node_group, []).append(leaf)
    return tuple(_GroupReader(snapshot, slurm, group, leaves).read(demand) for group, leaves in groups.items())


class _GroupReader:
    """One look at the nodes and the jobs of a group."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, group: NodeGroup, leaves: list[Project]) -> None:
        self._snapshot, self._slurm, self._group = snapshot, slurm, group
        of_gpu = [snapshot.projects.shards.get(leaf.name, 1) for leaf in leaves]
        self._parts = {leaf.name: parts for leaf, parts in zip(leaves, of_gpu, strict=True)}
        self._part = Fraction(1, of_gpu[0] if len(set(of_gpu)) == 1 else 1)
        """The least that is divided, of a GPU: a shard where Slurm counts shards."""
        leaves = [self._in_parts(leaf) for leaf in leaves]
        self._jobs = {leaf.name: ProjectJobs(leaf) for leaf in leaves}
        self._by_partition = {
            name: self._jobs[leaf.name] for leaf in leaves for name in (leaf.quota_partition, leaf.over_quota_partition)
        }
        self._by_account = {leaf.account: self._jobs[leaf.name] for leaf in leaves}
        self._over = {leaf.over_quota_partition for leaf in leaves}
        slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
        in_service = {claim.slot for claim in snapshot.claims if claim.state is ClaimState.IN_SERVICE}
        self._all = {n: node for n, node in slurm.nodes.items() if group.has(node.partitions, node.features)}
        self._open = {
            name: node
            for name, node in self._all.items()
            if node.up and not node.drained and not node.flags & _CLOSED and (name not in slots or name in in_service)
        }
        shapes: dict[tuple[object, ...], Shape] = {}
        self._shapes: dict[Shape, int] = {}
        for node in self._all.values():
            key = (node.cpus, node.memory_mib, node.gres, node.features)
            shape = shapes[key] if key in shapes else shapes.setdefault(key, shape_of(node))
            self._shapes[shape] = self._shapes.get(shape, 0) + 1
        self._shards = max((shape.shards_per_gpu() for shape in self._shapes), default=0)
        self._whole_node = min((shape.gpus() for shape in self._shapes), default=0)
        self._total = Fraction(sum(shape_of(node).gpus() for node in self._open.values()))
        self._sizes: dict[ResourceRequest, tuple[PendingJob, ProjectJobs | None, Fraction]] = {}
        """By request, the first that makes it, whose it is, and the GPUs of one task."""
        self._asking: Counter[ResourceRequest] = Counter()
        """Tasks that wait."""

    def read(self, demand: Demand) -> ProjectGroup:
        self._add_running(self._running())
        self._total = self._total if self._part == 1 else self._total // self._part * self._part
        total = self._total
        for pending in demand.pending_jobs:
            self._add_waiting(pending)
        for request, tasks in self._asking.items():
            pending, owner, gpus = self._sizes[request]
            if owner is not None and gpus <= total:
                owner.add(pending, gpus, tasks)
        asked = {name: jobs.demand for name, jobs in self._jobs.items()}
        view = self._snapshot.projects
        tree = {n: self._in_parts(p) for n, p in view.projects.items() if self._belongs(p)}
        weights = usage_weights(tree, view.usage, view.fair_share, total)
        shares = divide(tree, asked, total, weights, {name: self._job_parts(jobs) for name, jobs in self._jobs.items()})
        ends = [job for job in self._slurm.jobs if job.state is JobState.COMPLETING]
        ends = [job for job in ends if not self._open.keys().isdisjoint(job.node_list)]
        leaving = sum(map(self._gpus, ends), _NONE) + sum(
            (running.gpus for jobs in self._jobs.values() for running in jobs.running if running.gives), _NONE
        )
        return ProjectGroup(self._group, self._jobs, self._open, total, shares, self._parts, tuple(ends), leaving)

    def _in_parts(self, project: Project) -> Project:
        """With what Slurm can keep of its quota and its limit, where it counts shards."""
        if self._part == 1:
            return project
        limit = None if project.limit is None else project.limit // self._part * self._part
        return replace(project, quota=project.quota // self._part * self._part, limit=limit)

    def _job_parts(self, jobs: ProjectJobs) -> int:
        """Of a GPU, those that all jobs of a project are multiples of."""
        if self._part == 1:
            return 1
        sizes = {running.gpus for running in jobs.running}.union(gpus for gpus, _ in jobs.sizes)
        return lcm(*(gpus.denominator for gpus in sizes))

    def _belongs(self, project: Project) -> bool:
        """Whether it is one of the group's leaves, or above them."""
        return project.name in self._jobs or (not project.account and project.node_group == self._group)

    def _running(self) -> Iterator[tuple[Job, ...]]:
        """What runs on nodes of the group; the components of a het job together."""
        het: dict[str, list[Job]] = {}
        for job in self._slurm.jobs:
            if job.state in PENDING_STATES or job.state not in _RUNNING:
                continue
            if job.het_job_id:
                het.setdefault(job.het_job_id, []).append(job)
            else:
                yield (job,)
        yield from map(tuple, het.values())

    def _add_running(self, running: Iterator[tuple[Job, ...]]) -> None:
        for jobs in running:
            there = [name for job in jobs for name in job.node_list if name in self._all]
            if not there:
                continue
            gpus = sum((self._gpus(job) for job in jobs), _NONE)
            closed = sum(1 for name in there if name not in self._open)
            # What runs on a node that takes no new jobs still has its GPUs.
            self._total += gpus * closed / len(there)
            owner = self._owner(jobs[0])
            if owner is None:
                # Nobody's GPUs to share while a job of no project has them.
                self._total -= gpus
                continue
            over = not self._over.isdisjoint(jobs[0].partitions)
            owner.running.append(RunningJob(jobs, gpus, over, self._is_leaving(jobs[0])))
            if over:
                owner.over += gpus
            else:
                owner.within += gpus

    def _is_leaving(self, job: Job) -> bool:
        """Whether it was told to go, or its requeue is on its way and does not show so far."""
        state, run = self._snapshot.runtime_state, (job.het_job_id or job.id, job.restarts)
        return bool(self._snapshot.leaves_at(job)) or run in state.requeued - state.requeue_refused

    def _owner(self, job: Job) -> ProjectJobs | None:
        for name in job.partitions:
            if name in self._by_partition:
                return self._by_partition[name]
        return self._by_account.get(job.account)

    def _gpus(self, job: Job) -> Fraction:
        """Of all its nodes."""
        nodes = max(1, len(job.node_list) if job.state not in PENDING_STATES else job.nodes)
        asked = gpus_of(job.gres_per_node, self._shards) * nodes + gpus_of(job.gres_per_job, self._shards)
        if not job.exclusive:
            return asked
        if job.state in PENDING_STATES:
            return max(asked, Fraction(self._whole_node * nodes))
        return Fraction(sum(shape_of(self._all[name]).gpus() for name in job.node_list if name in self._all))

    def _add_waiting(self, pending: PendingJob) -> None:
        request = pending.request
        if pending.other_components:
            owner, gpus = self._asked(pending)
        else:
            if request not in self._sizes:
                self._sizes[request] = (pending, *self._asked(pending))
            _, owner, gpus = self._sizes[request]
        tasks = owner.startable(pending, gpus, self._total) if owner is not None else 0
        if owner is None or not tasks:
            return
        if not pending.other_components:
            self._asking[request] += tasks
        elif gpus <= self._total:
            owner.add(pending, gpus, tasks)
        owner.waiting.append(WaitingJobs(pending, gpus, tasks))

    def _asked(self, pending: PendingJob) -> tuple[ProjectJobs | None, Fraction]:
        """Whose job it is, and the GPUs of one task; nobody's where it can never run."""
        owner = next((o for p in pending.job.partitions if (o := self._by_partition.get(p)) is not None), None)
        gpus = sum((self._gpus(job) for job in pending.jobs), _NONE)
        if owner is None or not all(map(self._fits, (r for _, r in pending.components))):
            return None, gpus
        limit = owner.project.limit
        return (None if limit is not None and gpus > limit else owner), gpus

    def _fits(self, request: ResourceRequest) -> bool:
        """Whether nodes of the group, were they empty, could run it."""
        wanted = request.requirements
        fewest, fitting = 0, 0
        for shape, nodes in self._shapes.items():
            needed = wanted.nodes_needed(shape)
            if isinstance(needed, int) and wanted.constraint.may_use(shape.features):
                fewest, fitting = min(fewest or needed, needed), fitting + nodes
        return 0 < fewest <= fitting
