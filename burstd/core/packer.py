"""First fit: jobs of one node onto the room that there is, then onto new slots. Gangs are in gangs.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice

from burstd.core.capacity import Bin, Capacity, Kind, Taken, new_bin
from burstd.core.pattern import Pattern, Route
from burstd.model.job import Job
from burstd.model.snapshot import Snapshot

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


@dataclass(slots=True)
class Row:
    """Bins in the order in which they are filled."""

    bins: list[Bin]
    first: int = 0
    """Index of the first that has a CPU left."""

    def rest(self) -> Iterator[Bin]:
        """Those from the first that has a CPU left."""
        return islice(self.bins, self.first, None)


class Packer:
    """The bins while they are filled."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity, waiting: AbstractSet[str]) -> None:
        """``waiting`` are the ids of the jobs that count."""
        self.now = snapshot.now
        self.reserved: Mapping[str, list[Bin]] = capacity.reserved
        self.site = Row([found for found in capacity.common if found.kind is Kind.NODE])
        """Nodes of the site on which a job starts at once."""
        self.open = Row([found for found in capacity.common if found.kind is Kind.OPEN])
        """Burst nodes on which a job starts at once."""
        self.later = Row([found for found in capacity.common if found.kind > Kind.OPEN])
        """Claims on their way; new slots of single jobs are added at the end."""
        self._made_for: dict[str, Row] = {}
        self.promised: set[str] = set()
        """Claims on their way for a job that still waits. Others may fill what it leaves, but no gang takes them."""
        for found in (*self.later.bins, *self.open.bins):
            for job in waiting & set(found.claim.jobs) if found.claim is not None else ():
                if found.kind > Kind.OPEN:
                    self.promised.add(found.name)
                self._made_for.setdefault(job, Row([])).bins.append(found)
        self.gangs: list[tuple[str, list[Bin]]] = []
        """New slots of gangs, by gang."""
        self._free = {pool: dict.fromkeys(slots) for pool, slots in capacity.free.items()}
        self._covered_since = snapshot.progress.covered_since
        self._tried_since = snapshot.progress.tried_since

    def place_single(self, job: Job, pattern: Pattern, tasks: int) -> Outcome:
        """Places jobs of one node: as many of the tasks as there is room for."""
        done = Outcome(left=tasks)
        pattern.left -= tasks
        if job.id in self.reserved:
            self._fill(Row(self.reserved[job.id]), 0, job, pattern, done)
        pattern.cursor_site = self._fill(self.site, pattern.cursor_site, job, pattern, done)
        # What was made for it, open or not, comes before what is open for all: else the first node that opens would be
        # counted for a job that has one of its own on the way, and another be started for the job that needs it.
        if job.id in self._made_for:
            self._fill(self._made_for[job.id], 0, job, pattern, done)
        pattern.cursor_open = self._fill(self.open, pattern.cursor_open, job, pattern, done)
        pattern.cursor_later = self._fill(self.later, pattern.cursor_later, job, pattern, done)
        done.given_up = self.given_up(job.id)
        while done.left and not done.stuck and not done.given_up:
            found = self._new_bin(pattern, done.left)
            if found is None:
                break
            self.later.bins.append(found)
            self._fill(self.later, len(self.later.bins) - 1, job, pattern, done)
        return done

    def _fill(self, row: Row, start: int, job: Job, pattern: Pattern, done: Outcome) -> int:
        """First fit from ``start``; returns the index before which no bin has room for the pattern any more."""
        share, bins = pattern.alone, row.bins
        full = start = max(start, row.first)
        for index in range(start, len(bins)):
            if not done.left:
                break
            found = bins[index]
            room = found.room(share) if pattern.usable(found) else 0
            if room and not self.stale(job, found, done):
                times = min(room, done.left)
                found.put(share, times)
                room -= times
                self._note(found, job, times, done)
            if not room and full == index:
                full = index + 1
        while row.first < len(bins) and bins[row.first].cpus <= 0:
            row.first += 1
        return full

    def _note(self, found: Bin, job: Job, times: int, done: Outcome) -> None:
        done.left -= times
        if found.kind is Kind.NEW:
            done.new.append(found)
            done.tasks_new += times
            found.jobs.append(job.id)
            if job.user not in found.users:
                found.users.append(job.user)
            if job.account and job.account not in found.accounts:
                found.accounts.append(job.account)
        else:
            done.there.append(found)
            done.tasks_there += times

    def stale(self, job: Job, found: Bin, done: Outcome) -> bool:
        """True where open room has long been there for the job, and Slurm does not start it."""
        if found.kind > Kind.OPEN:
            return False
        since = self._covered_since.get(job.id)
        if since is None:
            return False
        if found.kind is Kind.NODE:
            return self.now - since > NODE_TRUST_S
        if self.now - since > OPEN_TRUST_S:
            done.stuck = found.name
            return True
        return False

    def given_up(self, job: str) -> bool:
        """True for a job or gang that open burst nodes have not helped."""
        since = self._tried_since.get(job)
        return since is not None and self.now - since > OPEN_TRUST_S

    def _new_bin(self, pattern: Pattern, tasks: int) -> Bin | None:
        """A new slot of the pool that holds all that is left of the pattern for the least money."""
        best: tuple[Decimal, Decimal, str] | None = None
        chosen: Route | None = None
        left = pattern.left + tasks
        for route in pattern.routes:
            if route.price is None or route.nodes > 1 or not route.room or not self.has_slot(route, pattern):
                continue
            rank = (route.price * -(-left // route.room), route.price, route.pool.name)
            if best is None or rank < best:
                best, chosen = rank, route
        return None if chosen is None else new_bin(chosen.pool, self.take_slot(chosen, pattern))

    def has_slot(self, route: Route, pattern: Pattern) -> bool:
        """True where the pool has a free slot that the pattern allows."""
        free = self._free[route.pool.name]
        if not (pattern.excluded or pattern.named):
            return bool(free)
        return any(pattern.allows(slot) for slot in free)

    def slots(self, route: Route, pattern: Pattern) -> list[str]:
        """The free slots that the pattern allows, named ones first."""
        free = [slot for slot in self._free[route.pool.name] if slot not in pattern.excluded]
        return sorted(free, key=lambda slot: slot not in pattern.named) if pattern.named else free

    def take_slot(self, route: Route, pattern: Pattern, slot: str = "") -> str:
        """Takes a slot, by default the first that the pattern allows."""
        free = self._free[route.pool.name]
        slot = slot or next(s for s in free if pattern.allows(s))
        del free[slot]
        return slot

    def give_back(self, pool: str, slots: list[str]) -> None:
        """Undoes take_slot; the slots come first again."""
        self._free[pool] = dict.fromkeys(slots) | self._free[pool]

    def free_count(self, pool: str) -> int:
        """How many slots of the pool are still free."""
        return len(self._free[pool])


def undo(taken: list[Taken]) -> None:
    """Gives back what was taken, the last first."""
    while taken:
        taken.pop().undo()
