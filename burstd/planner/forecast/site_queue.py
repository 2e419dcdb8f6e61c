"""When nodes of the site will have room: what is free, what runs, and what was put in the queue so far.

Nodes of the same kind are counted together, as a heap of CPUs, memory and GPUs; which node has them is only looked at
for jobs that take much of a node, or share none with certain users, and only by what runs now. Jobs are put in the
order of the queue (EASY): one that must wait keeps what comes free for itself, and later ones use that meanwhile where
they end before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest

from burstd.domain.slurm.job import Job
from burstd.domain.slurm.job_history import QUANTILES
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape, gpus_of
from burstd.planner.demand.job_requirements import ResourceRequirements

MAX_EXACT_JOBS = 10_000
"""So many jobs are put one by one into each kind of nodes; for those behind them only the work before them counts."""
MAX_HOLES = 8
"""So many gaps before jobs that wait are kept in mind."""
LARGE_SHARE = 0.25
"""A job that takes more than such a share of a node waits for a node that has so much at once."""


@dataclass(frozen=True, slots=True)
class NodeResources:
    """CPUs, MiB and GPUs."""

    cpus: float = 0.0
    memory: float = 0.0
    gpus: float = 0.0

    def contains(self, other: NodeResources) -> bool:
        """True where the other fits in."""
        return other.cpus <= self.cpus and other.gpus <= self.gpus and other.memory <= self.memory

    def plus(self, other: NodeResources, times: float = 1.0) -> NodeResources:
        """This and so many of the other."""
        return NodeResources(
            self.cpus + times * other.cpus, self.memory + times * other.memory, self.gpus + times * other.gpus
        )  # fmt: skip

    def per_quantile(self) -> NodeResources:
        """What comes free at each of the times at which a job may end."""
        return NodeResources().plus(self, 1 / len(QUANTILES))

    def share_of(self, whole: NodeResources) -> float:
        """The largest share that this takes of anything of the whole."""
        return max(
            self.cpus / whole.cpus if whole.cpus else 0.0,
            self.memory / whole.memory if whole.memory else 0.0,
            self.gpus / whole.gpus if whole.gpus else 0.0,
        )


@dataclass(frozen=True, slots=True)
class NodeTypeFit:
    """What a job takes of one kind of nodes."""

    nodes: int
    per_node: NodeResources
    """Of every node."""
    total: NodeResources
    """Of all of them."""
    per_quantile: NodeResources
    """A part of that for each of QUANTILES."""
    needs_node_at_once: bool
    """It takes much of a node, or may not take the rest of each."""
    user: str = ""
    """Whose job it is, where that matters for the nodes that it may share."""
    exclusive_user: bool = False
    """It shares no node with jobs of other users."""


@dataclass(frozen=True, slots=True)
class _RunningJob:
    """A job on one node."""

    end: float
    per_node: NodeResources
    user: str
    exclusive_user: bool

    def keeps_off(self, fit: NodeTypeFit) -> bool:
        """True where the other job cannot start beside it, however much room there is."""
        return self.user != fit.user and (self.exclusive_user or fit.exclusive_user)


@dataclass(slots=True)
class _BackfillHole:
    begin: float
    end: float
    free: NodeResources


@dataclass(slots=True, eq=False)
class SiteNodeType:
    """Nodes of the site of one shape in the same partitions. Filled in place; never leaves the planner."""

    partitions: frozenset[str]
    shape: Shape
    nodes: dict[str, NodeResources] = field(default_factory=dict)
    """What is free on each now."""
    now: float = 0.0
    _at: float = 0.0
    """Before this nobody who is put in now can start, but in a hole."""
    _free: NodeResources = field(default_factory=NodeResources)
    """Free at that time."""
    _ends: list[tuple[float, int, NodeResources]] = field(default_factory=list)
    _running: dict[str, list[_RunningJob]] = field(default_factory=dict)
    _has_exclusive_user: bool = False
    """A job that shares its nodes with no other user runs on one of them."""
    _holes: list[_BackfillHole] = field(default_factory=list)
    _node_times: dict[tuple[int, NodeResources, str, bool], float] = field(default_factory=dict)
    _pending_count: int = 0
    _backlog_node_s: float = 0.0
    """Node seconds of jobs beyond MAX_EXACT_JOBS."""

    def node_capacity(self) -> NodeResources:
        """All of one node."""
        return NodeResources(self.shape.cpus, self.shape.memory_mib, self.shape.gpus())

    def start_forecast(self, now: float) -> None:
        """Once all nodes and running jobs are in."""
        self.now = self._at = now
        free = self.nodes.values()
        self._free = NodeResources(sum(r.cpus for r in free), sum(r.memory for r in free), sum(r.gpus for r in free))
        heapify(self._ends)

    def add_running(
        self, job: Job, name: str, per_node: NodeResources, per_quantile: NodeResources, ends: Sequence[float]
    ) -> None:
        """The job runs on this node, and may end at these times, with the same chance each: a part of it then.

        A whole node is the one of many on which jobs end soon: there each counts as a whole, with an early end.
        """
        known = len(self._ends)
        self._ends += [(end, number, per_quantile) for number, end in enumerate(ends, known)]
        median = ends[(len(ends) - 1) // 2]
        self._running.setdefault(name, []).append(_RunningJob(median, per_node, job.user, job.exclusive_user))
        self._has_exclusive_user |= job.exclusive_user

    def fit(
        self, partitions: Iterable[str], requirements: ResourceRequirements, user: str, *, exclusive_user: bool
    ) -> NodeTypeFit | None:
        """What such a job takes here, once all that runs is in; None: it cannot run here."""
        if self.partitions.isdisjoint(partitions):
            return None
        single = requirements.nodes == 1 and requirements.constraint.min_nodes == 1
        matches = requirements.constraint.met_by_one_node if single else requirements.constraint.may_use
        nodes = requirements.nodes_needed(self.shape) if matches(self.shape.features) else ""
        if isinstance(nodes, str) or nodes > len(self.nodes):
            return None
        share, whole = requirements.share_per_node(nodes), self.node_capacity()
        gpus = float(gpus_of(share.gres, self.shape.shards_per_gpu()))
        per_node = NodeResources(share.cpus, share.memory_mib, gpus)
        if share.exclusive:
            per_node = whole
        every = per_node.plus(per_node, nodes - 1)
        apart = exclusive_user or self._has_exclusive_user
        at_once = per_node.share_of(whole) > LARGE_SHARE or nodes > 1 or apart
        return NodeTypeFit(nodes, per_node, every, every.per_quantile(), at_once, user if apart else "", exclusive_user)

    def earliest_start(self, fit: NodeTypeFit, limit_s: float) -> float:
        """When a job of so many seconds at most would start. ``add_pending`` takes the room."""
        if self._backlog_node_s or self._pending_count >= MAX_EXACT_JOBS:
            return self._at + self._backlog_node_s / len(self.nodes)
        hole = self._hole(fit.total, limit_s)
        if hole is not None:
            return hole.begin
        at = max(self._at, self._nodes_free_at(fit)) if fit.needs_node_at_once else self._at
        free, ends = self._free, self._ends
        if free.contains(fit.total):
            return at
        popped = []
        while ends and not free.contains(fit.total):
            end = heappop(ends)
            popped.append(end)
            free = free.plus(end[2])
        for end in popped:
            heappush(ends, end)
        return max(at, popped[-1][0]) if popped else at

    def add_pending(self, fit: NodeTypeFit, limit_s: float, runs: tuple[float, ...], start: float) -> None:
        """Puts a job in at ``start``, its ``earliest_start``. ``runs``: as long as it may run, with the same chance."""
        if self._backlog_node_s or self._pending_count >= MAX_EXACT_JOBS:
            self._backlog_node_s += fit.total.share_of(self.node_capacity()) * sum(runs) / len(runs)
            return
        hole = self._hole(fit.total, limit_s)
        if hole is not None:
            hole.free = hole.free.plus(fit.total, -1.0)
            return
        before: list[_BackfillHole] = []
        while self._ends and not self._free.contains(fit.total):
            at, _, freed = heappop(self._ends)
            if self._free.cpus > 0:
                before.append(_BackfillHole(self._at, 0.0, self._free if not before else freed))
            self._at = max(self._at, at)
            self._free = self._free.plus(freed)
        for found in before:
            found.end = self._at
        if before:
            self._holes = [h for h in (*self._holes, *before) if h.end > h.begin][-MAX_HOLES:]
        self._free = self._free.plus(fit.total, -1.0)
        self._pending_count += 1
        part = fit.total if len(runs) == 1 else fit.per_quantile
        for run_s in runs:
            heappush(self._ends, (start + run_s, -self._pending_count, part))

    def _hole(self, needed: NodeResources, limit_s: float) -> _BackfillHole | None:
        return next((h for h in self._holes if limit_s <= h.end - h.begin and h.free.contains(needed)), None)

    def _nodes_free_at(self, fit: NodeTypeFit) -> float:
        """When enough nodes have so much at once, by what runs there now."""
        key = fit.nodes, fit.per_node, fit.user, fit.exclusive_user
        found = self._node_times.get(key)
        if found is None:
            times = (self._node_free_at(name, free, fit) for name, free in self.nodes.items())
            found = self._node_times[key] = max(nsmallest(fit.nodes, times))
        return found

    def _node_free_at(self, name: str, free: NodeResources, fit: NodeTypeFit) -> float:
        running = sorted(self._running.get(name, ()), key=lambda job: job.end)
        at = max([self.now, *(job.end for job in running if job.keeps_off(fit))])
        for job in running:
            if job.end > at and free.contains(fit.per_node):
                return at
            free, at = free.plus(job.per_node), max(at, job.end)
        # Where there still is no room, something runs there that the queue does not show.
        return at


def node_type_key(node: Node) -> tuple[object, ...]:
    """Nodes with the same key are of one kind."""
    return node.partitions, node.cpus, node.memory_mib, node.gres, node.features
