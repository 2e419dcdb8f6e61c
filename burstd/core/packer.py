"""First fit: jobs of one node onto the room that there is, then onto new slots. Gangs are in gangs.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

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
    lacking: int = 0
    """Which part of a gang found no room."""


class Packer:
    """The bins while they are filled."""

    def __init__(self, snapshot: Snapshot, capacity: Capacity) -> None:
        self.now = snapshot.now
        self.reserved: Mapping[str, list[Bin]] = capacity.reserved
        self.bins = capacity.common
        """Common bins, in filling order; bins of new slots for single jobs are added at the end."""
        self.first = 0
        """Index of the first bin that has a CPU left."""
        self.gangs: list[tuple[str, list[Bin]]] = []
        """New slots of gangs, by gang."""
        self._free = {pool: dict.fromkeys(slots) for pool, slots in capacity.free.items()}
        self._covered_since = snapshot.progress.covered_since

    def place_single(self, job: Job, pattern: Pattern, tasks: int) -> Outcome:
        """Places jobs of one node: as many of the tasks as there is room for."""
        done = Outcome(left=tasks)
        pattern.left -= tasks
        mine = self.reserved.get(job.id)
        if mine:
            self._fill(mine, 0, job, pattern, done)
        if done.left and pattern.cursor < len(self.bins):
            pattern.cursor = self._fill(self.bins, max(pattern.cursor, self.first), job, pattern, done)
        while done.left and not done.stuck:
            found = self._new_bin(pattern, done.left)
            if found is None:
                break
            self.bins.append(found)
            self._fill(self.bins, len(self.bins) - 1, job, pattern, done)
        return done

    def _fill(self, bins: list[Bin], start: int, job: Job, pattern: Pattern, done: Outcome) -> int:
        """First fit from ``start``; returns the index before which no bin has room for the pattern any more."""
        share = pattern.alone
        full = start
        for index in range(start, len(bins)):
            found = bins[index]
            room = found.room(share) if pattern.usable(found) else 0
            if room and not self.stale(job, found, done):
                times = min(room, done.left)
                found.put(share, times)
                room -= times
                self._note(found, job, times, done)
            if not room and full == index:
                full = index + 1
            if not done.left:
                break
        if bins is self.bins:
            while self.first < len(bins) and bins[self.first].cpus <= 0:
                self.first += 1
        return full

    def _note(self, found: Bin, job: Job, times: int, done: Outcome) -> None:
        done.left -= times
        if found.kind is Kind.NEW:
            done.new.append(found)
            done.tasks_new += times
            found.jobs.append(job.id)
            if job.user not in found.users:
                found.users.append(job.user)
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
