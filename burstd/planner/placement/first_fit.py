"""First fit: jobs of one node onto the room that there is, then onto new slots. Gangs are in gangs.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal

from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.planner.placement.bins import Bin, Capacity, Kind, Row, Taken
from burstd.planner.placement.equivalence_class import Pattern, Route

NODE_TRUST_S = 120.0
"""How long a node of the site that has room for a job is trusted to get it, before a machine is started for it."""
OPEN_TRUST_S = 600.0
"""How long an open burst node is kept for a job that fits it and that Slurm does not start."""


@dataclass(slots=True)
class Outcome:
    """Where the tasks of an ask went."""

    there: list[Bin] = field(default_factory=list)
    """Bins that are there or on their way, one entry a bin."""
    tasks_there: int = 0
    new: list[Bin] = field(default_factory=list)
    tasks_new: int = 0
    left: int = 0
    stuck: str = ""
    """The open node that fits it and on which Slurm does not start it."""
    given_up: bool = False
    """Open burst nodes were there for it for long, and Slurm did not start it: it gets no new ones for an hour."""
    lacking: int = 0
    """Which part of a gang found no room."""


class Packer:
    """The bins while they are filled."""

    def __init__(self, doubts: Doubts, capacity: Capacity, waiting: AbstractSet[str]) -> None:
        """``waiting`` are the ids of the jobs that count."""
        self.reserved: Mapping[str, list[Bin]] = capacity.reserved
        self.site = Row([found for found in capacity.common if found.kind is Kind.NODE])
        """Nodes of the site on which a job starts at once."""
        self.open = Row([found for found in capacity.common if found.kind is Kind.OPEN])
        """Burst nodes on which a job starts at once."""
        self.later = Row([found for found in capacity.common if found.kind is Kind.COMING])
        """Claims on their way; new slots of single jobs are added at the end."""
        self.rows = (self.site, self.open, self.later)
        self.made_for: dict[str, list[Bin]] = {}
        self.promised: set[str] = set()
        """Claims on their way for a job that still waits. Others may fill what it leaves, but no gang takes them."""
        for found in (*self.later.bins, *self.open.bins):
            for job in found.claim.jobs if found.claim is not None else ():
                if job in waiting:
                    if found.kind is Kind.COMING:
                        self.promised.add(found.name)
                    self.made_for.setdefault(job, []).append(found)
        self.gangs: list[tuple[str, list[Bin]]] = []
        """New slots of gangs, by gang."""
        self.special = doubts.nodes | doubts.given_up | self.reserved.keys() | self.made_for.keys()
        """Jobs of which more is to be known than their pattern."""
        self.named: dict[str, set[str]] = {}
        """By array, the tasks that claims are for, or that are given up: the others of an array are alike."""
        for word in self.reserved.keys() | doubts.given_up:
            array, _, task = word.partition("_")
            if task:
                self.named.setdefault(array, set()).add(task)
        self._stencils = capacity.stencils
        self._free = {pool: deque(slots) for pool, slots in capacity.free.items()}
        self._doubts = doubts

    def place_one(self, job: Job, pattern: Pattern, order: int) -> Bin | None:
        """Places one of which nothing is known but its pattern: the short way for most of a long queue."""
        pattern.left -= 1
        share, usable, cursors = pattern.request.alone, pattern.usable, pattern.cursors
        for number, row in enumerate(self.rows):
            at = cursors[number]
            if at < len(row.bins):
                at = cursors[number] = row.find(at, share, usable)
                if at < len(row.bins):
                    found = row.bins[at]
                    break
        else:
            fresh = self._new_bin(pattern, 1, order)
            if fresh is None:
                return None
            found = fresh
        found.put(share)
        if found.kind is Kind.NEW:
            found.jobs.append(job)
        return found

    def place_single(self, job: Job, pattern: Pattern, tasks: int, order: int) -> Outcome:
        """Places jobs of one node: as many of the tasks as there is room for."""
        done = Outcome(left=tasks)
        pattern.left -= tasks
        self._fill(self.reserved.get(job.id, ()), job, pattern, done)
        self._fill_row(0, job, pattern, done)
        # What was made for it, open or not, comes before what is open for all: else the first node that opens would be
        # counted for a job that has one of its own on the way, and another be started for the job that needs it.
        self._fill(self.made_for.get(job.id, ()), job, pattern, done)
        self._fill_row(1, job, pattern, done)
        self._fill_row(2, job, pattern, done)
        done.given_up = self.given_up(job.id)
        while done.left and not done.stuck and not done.given_up:
            found = self._new_bin(pattern, done.left, order)
            if found is None:
                break
            self._fill((found,), job, pattern, done)
        return done

    def _fill_row(self, number: int, job: Job, pattern: Pattern, done: Outcome) -> None:
        if done.left:
            row, share = self.rows[number], pattern.request.alone
            start = pattern.cursors[number] = row.find(pattern.cursors[number], share, pattern.usable)
            self._fill(row.rest(start, share, pattern.usable), job, pattern, done)

    def _fill(self, bins: Iterable[Bin], job: Job, pattern: Pattern, done: Outcome) -> None:
        """First fit."""
        share = pattern.request.alone
        for found in bins if done.left else ():
            room = found.room(share) if pattern.usable(found) else 0
            while room and done.left and not self.stale(job, found, done):
                times = min(room, done.left)
                found.put(share, times)
                self._note(found, job, times, done)
                room = found.room(share)
            if not done.left:
                break

    def _note(self, found: Bin, job: Job, times: int, done: Outcome) -> None:
        done.left -= times
        bins = done.new if found.kind is Kind.NEW else done.there
        if not bins or bins[-1] is not found:
            bins.append(found)
        if found.kind is Kind.NEW:
            done.tasks_new += times
            found.jobs.append(job)
        else:
            done.tasks_there += times

    def stale(self, job: Job, found: Bin, done: Outcome) -> bool:
        """True where open room has long been there for the job, and Slurm does not start it."""
        if found.kind is Kind.NODE:
            return job.id in self._doubts.nodes
        if found.kind is Kind.OPEN and job.id in self._doubts.open:
            done.stuck = found.name
            return True
        return False

    def given_up(self, job: str) -> bool:
        """True for a job or gang that open burst nodes have not helped."""
        return job in self._doubts.given_up

    def _new_bin(self, pattern: Pattern, tasks: int, order: int) -> Bin | None:
        """A new slot of the pool that holds all that is left of the pattern for the least money."""
        routes = [r for r in pattern.routes if r.usable and self.has_slot(r, pattern)]
        if not routes:
            return None
        chosen = routes[0]
        if len(routes) > 1:
            left = pattern.left + tasks
            chosen = cheapest(routes, left)
            pattern.choices.append((left - pattern.shift, routes, chosen))
        found = self.new_bin(chosen, self.take_slot(chosen, pattern))
        found.order, found.payer = order, pattern.request.payer
        self.later.add(found)
        return found

    def new_bin(self, route: Route, slot: str) -> Bin:
        """The room that a new machine on this slot will have."""
        return self._stencils.of_shape(route.pool, slot, Kind.NEW)

    def has_slot(self, route: Route, pattern: Pattern) -> bool:
        """True where the pool has a free slot that the pattern allows."""
        free = self._free[route.pool.name]
        return any(map(pattern.allows, free)) if pattern.choosy else bool(free)

    def slots(self, route: Route, pattern: Pattern) -> Iterable[str]:
        """The free slots that the pattern allows, named ones first. To be used up before a slot is taken."""
        free = self._free[route.pool.name]
        if not pattern.choosy:
            return free
        allowed = [slot for slot in free if slot not in pattern.excluded]
        return sorted(allowed, key=lambda slot: slot not in pattern.named)

    def take_slot(self, route: Route, pattern: Pattern, slot: str = "") -> str:
        """Takes a slot, by default the first that the pattern allows."""
        free = self._free[route.pool.name]
        slot = slot or (next(filter(pattern.allows, free)) if pattern.choosy else free[0])
        if free[0] == slot:
            free.popleft()
        else:
            free.remove(slot)
        return slot

    def give_back(self, pool: str, slots: list[str]) -> None:
        """Undoes take_slot; the slots come first again."""
        self._free[pool].extendleft(reversed(slots))

    def free_count(self, pool: str) -> int:
        """How many slots of the pool are still free."""
        return len(self._free[pool])


def cheapest(routes: Sequence[Route], left: int) -> Route:
    """Which of them holds so many for the least money, as many on each machine as fit."""

    def cost(route: Route) -> tuple[Decimal, Decimal, str]:
        price = route.price or Decimal(0)
        return price * left / route.room if left > route.room else price, price, route.pool.name

    return min(routes, key=cost)


@dataclass(frozen=True, slots=True)
class Doubts:
    """Jobs, and gangs, for which what is there is trusted no longer."""

    nodes: frozenset[str]
    """Nodes of the site."""
    open: frozenset[str]
    """Open burst nodes."""
    given_up: frozenset[str]
    """Open burst nodes were there for long in vain: no more are started for it."""


def doubts(snapshot: Snapshot) -> Doubts:
    """At the moment of the snapshot."""
    now, progress = snapshot.now, snapshot.progress
    late = {job: now - since for job, since in progress.covered_since.items() if now - since > NODE_TRUST_S}
    return Doubts(
        frozenset(late),
        frozenset([job for job, waited in late.items() if waited > OPEN_TRUST_S]),
        frozenset([job for job, since in progress.tried_since.items() if now - since > OPEN_TRUST_S]),
    )


def undo(taken: list[Taken]) -> None:
    """Gives back what was taken, the last first."""
    while taken:
        taken.pop().undo()
