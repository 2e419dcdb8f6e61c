"""When nodes of the site will have room: what is free, what runs, and what was put in the queue so far.

Nodes of the same kind are counted together, as a heap of CPUs, memory and GPUs; which node has them is only looked at
for jobs that take much of a node, and only by what runs now. Jobs are put in the order of the queue (EASY): one that
must wait keeps what comes free for itself, and later ones use that meanwhile where they end before it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest

from burstd.domain.slurm.job_history import QUANTILES
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Shape
from burstd.planner.demand.job_requirements import Need

EXACT = 10_000
"""So many jobs are put one by one into each kind of nodes; for those behind them only the work before them counts."""
HOLES = 8
"""So many gaps before jobs that wait are kept in mind."""
LARGE = 0.25
"""A job that takes more than such a share of a node waits for a node that has so much at once."""


@dataclass(frozen=True, slots=True)
class Room:
    """CPUs, MiB and GPUs."""

    cpus: float = 0.0
    memory: float = 0.0
    gpus: float = 0.0

    def holds(self, other: Room) -> bool:
        """True where the other fits in."""
        return other.cpus <= self.cpus and other.gpus <= self.gpus and other.memory <= self.memory

    def plus(self, other: Room, times: float = 1.0) -> Room:
        """This and so many of the other."""
        return Room(
            self.cpus + times * other.cpus, self.memory + times * other.memory, self.gpus + times * other.gpus
        )  # fmt: skip

    def part(self) -> Room:
        """What comes free at each of the times at which a job may end."""
        return Room().plus(self, 1 / len(QUANTILES))

    def share_of(self, whole: Room) -> float:
        """The largest share that this takes of anything of the whole."""
        return max(
            self.cpus / whole.cpus if whole.cpus else 0.0,
            self.memory / whole.memory if whole.memory else 0.0,
            self.gpus / whole.gpus if whole.gpus else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """What a job takes of one kind of nodes."""

    nodes: int
    each: Room
    """Of every node."""
    all: Room
    """Of all of them."""
    quarter: Room
    """A part of that for each of QUANTILES."""
    large: bool


@dataclass(slots=True)
class _Hole:
    begin: float
    end: float
    room: Room


@dataclass(slots=True, eq=False)
class Kind:
    """Nodes of the site of one shape in the same partitions. Filled in place; never leaves core/."""

    partitions: frozenset[str]
    shape: Shape
    nodes: dict[str, Room] = field(default_factory=dict)
    """What is free on each now."""
    now: float = 0.0
    _at: float = 0.0
    """Before this nobody who is put in now can start, but in a hole."""
    _free: Room = field(default_factory=Room)
    """Free at that time."""
    _ends: list[tuple[float, int, Room]] = field(default_factory=list)
    _running: dict[str, list[tuple[float, Room]]] = field(default_factory=dict)
    _holes: list[_Hole] = field(default_factory=list)
    _large: dict[tuple[int, Room], float] = field(default_factory=dict)
    _put: int = 0
    _behind: float = 0.0
    """Node seconds of jobs beyond EXACT."""

    def whole(self) -> Room:
        """All of one node."""
        return Room(self.shape.cpus, self.shape.memory_mib, self.shape.gpus())

    def begin(self, now: float) -> None:
        """Once all nodes and running jobs are in."""
        self.now = self._at = now
        rooms = self.nodes.values()
        self._free = Room(sum(r.cpus for r in rooms), sum(r.memory for r in rooms), sum(r.gpus for r in rooms))
        heapify(self._ends)

    def runs(self, name: str, each: Room, part: Room, ends: Sequence[float]) -> None:
        """A job runs on this node, and may end at these times, with the same chance each: a part of it then.

        A whole node is the one of many on which jobs end soon: there each counts as a whole, with an early end.
        """
        known = len(self._ends)
        self._ends += [(end, number, part) for number, end in enumerate(ends, known)]
        self._running.setdefault(name, []).append((ends[(len(ends) - 1) // 2], each))

    def fit(self, partitions: Iterable[str], need: Need) -> Fit | None:
        """What such a job takes here; None: it cannot run here."""
        if self.partitions.isdisjoint(partitions):
            return None
        single = need.nodes == 1 and need.constraint.fewest_nodes == 1
        holds = need.constraint.of_one_node if single else need.constraint.may_use
        nodes = need.nodes_of(self.shape) if holds(self.shape.features) else ""
        if isinstance(nodes, str) or nodes > len(self.nodes):
            return None
        share, whole = need.share(nodes), self.whole()
        each = Room(share.cpus, share.memory_mib, sum(g.count for g in share.gres if g.name == "gpu"))
        if share.exclusive:
            each = whole
        every = each.plus(each, nodes - 1)
        return Fit(nodes, each, every, every.part(), each.share_of(whole) > LARGE or nodes > 1)

    def earliest(self, fit: Fit, limit_s: float) -> float:
        """When a job of so many seconds at most would start. ``put`` takes the room."""
        if self._behind or self._put >= EXACT:
            return self._at + self._behind / len(self.nodes)
        hole = self._hole(fit.all, limit_s)
        if hole is not None:
            return hole.begin
        at = max(self._at, self._large_at(fit)) if fit.large else self._at
        free, ends = self._free, self._ends
        if free.holds(fit.all):
            return at
        popped = []
        while ends and not free.holds(fit.all):
            end = heappop(ends)
            popped.append(end)
            free = free.plus(end[2])
        for end in popped:
            heappush(ends, end)
        return max(at, popped[-1][0]) if popped else at

    def put(self, fit: Fit, limit_s: float, runs: tuple[float, ...], start: float) -> None:
        """Puts a job in at ``start``, as ``earliest`` said. ``runs``: as long as it may run, with the same chance."""
        if self._behind or self._put >= EXACT:
            self._behind += fit.all.share_of(self.whole()) * sum(runs) / len(runs)
            return
        hole = self._hole(fit.all, limit_s)
        if hole is not None:
            hole.room = hole.room.plus(fit.all, -1.0)
            return
        before: list[_Hole] = []
        while self._ends and not self._free.holds(fit.all):
            at, _, room = heappop(self._ends)
            if self._free.cpus > 0:
                before.append(_Hole(self._at, 0.0, self._free if not before else room))
            self._at = max(self._at, at)
            self._free = self._free.plus(room)
        for found in before:
            found.end = self._at
        if before:
            self._holes = [h for h in (*self._holes, *before) if h.end > h.begin][-HOLES:]
        self._free = self._free.plus(fit.all, -1.0)
        self._put += 1
        part = fit.all if len(runs) == 1 else fit.quarter
        for run_s in runs:
            heappush(self._ends, (start + run_s, -self._put, part))

    def _hole(self, room: Room, limit_s: float) -> _Hole | None:
        return next((h for h in self._holes if limit_s <= h.end - h.begin and h.room.holds(room)), None)

    def _large_at(self, fit: Fit) -> float:
        """When enough nodes have so much at once, by what runs there now."""
        found = self._large.get((fit.nodes, fit.each))
        if found is None:
            times = (self._node_at(name, free, fit.each) for name, free in self.nodes.items())
            found = max(nsmallest(fit.nodes, times))
            self._large[fit.nodes, fit.each] = found
        return found

    def _node_at(self, name: str, free: Room, each: Room) -> float:
        at = self.now
        if free.holds(each):
            return at
        for end, room in sorted(self._running.get(name, ()), key=lambda r: r[0]):
            free, at = free.plus(room), max(at, end)
            if free.holds(each):
                return at
        # Something runs there that the queue does not show.
        return at


def kind_key(node: Node) -> tuple[object, ...]:
    """Nodes with the same key are of one kind."""
    return node.partitions, node.cpus, node.memory_mib, node.gres, node.features
