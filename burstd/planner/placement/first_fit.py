"""First fit: jobs of one node onto the room that there is, then onto new slots. Gangs are in gangs.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal

from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import Snapshot
from burstd.planner.placement.bins import Bin, BinCheckpoint, BinIndex, BinKind, Capacity
from burstd.planner.placement.equivalence_class import EligiblePool, EquivalenceClass

SITE_START_GRACE_S = 120.0
"""How long a node of the site that has room for a job is trusted to get it, before a machine is started for it."""
BURST_START_GRACE_S = 600.0
"""How long an open burst node is kept for a job that fits it and that Slurm does not start."""


@dataclass(slots=True)
class PlacementOutcome:
    """Where the tasks of a pending job went."""

    existing: list[Bin] = field(default_factory=list)
    """Bins that are there or on their way, one entry a bin."""
    tasks_on_existing: int = 0
    new: list[Bin] = field(default_factory=list)
    tasks_on_new: int = 0
    tasks_left: int = 0
    stuck_on: str = ""
    """The open node that fits it and on which Slurm does not start it."""
    given_up: bool = False
    """Open burst nodes were there for it for long, and Slurm did not start it: it gets no new ones for an hour."""
    lacking_member: int = 0
    """Which part of a gang found no room."""


class Packer:
    """The bins while they are filled."""

    def __init__(
        self, stuck_jobs: StuckJobs, capacity: Capacity, waiting: AbstractSet[str], *, users_matter: bool
    ) -> None:
        """``waiting`` are the ids of the jobs that count; ``users_matter``: some share no node with other users."""
        self.users_matter = users_matter
        self.reserved: Mapping[str, list[Bin]] = capacity.reserved
        self.site_nodes = BinIndex([found for found in capacity.shared if found.kind is BinKind.SITE_NODE])
        """Nodes of the site on which a job starts at once."""
        self.in_service = BinIndex([found for found in capacity.shared if found.kind is BinKind.IN_SERVICE])
        """Burst nodes on which a job starts at once."""
        self.in_flight = BinIndex([found for found in capacity.shared if found.kind is BinKind.IN_FLIGHT])
        """Claims on their way; new slots of single jobs are added at the end."""
        self.indexes = (self.site_nodes, self.in_service, self.in_flight)
        self.launched_for: dict[str, list[Bin]] = {}
        self.promised: set[str] = set()
        """Claims on their way for a job that still waits. Others may fill what it leaves, but no gang takes them."""
        for found in (*self.in_flight.bins, *self.in_service.bins):
            for job in found.claim.jobs if found.claim is not None else ():
                if job in waiting:
                    if found.kind is BinKind.IN_FLIGHT:
                        self.promised.add(found.name)
                    self.launched_for.setdefault(job, []).append(found)
        for found in self.in_flight.bins:
            found.gpu_jobs_only &= found.name in self.promised
        self.gang_bins: list[tuple[str, list[Bin]]] = []
        """New slots of gangs, by gang."""
        self.tracked_jobs = (
            stuck_jobs.on_site_nodes | stuck_jobs.given_up | self.reserved.keys() | self.launched_for.keys()
        )
        """Jobs of which more is to be known than their class."""
        self.tracked_tasks: dict[str, set[str]] = {}
        """By array, the tasks that claims are for, or that are given up: the others of an array are alike."""
        for consumer in self.reserved.keys() | stuck_jobs.given_up:
            array, _, task = consumer.partition("_")
            if task:
                self.tracked_tasks.setdefault(array, set()).add(task)
        self._bin_factory = capacity.bin_factory
        self._free_slots = {pool: deque(slots) for pool, slots in capacity.free_slots.items()}
        self._stuck_jobs = stuck_jobs

    def assign_one(self, job: Job, job_class: EquivalenceClass, queue_position: int) -> Bin | None:
        """Places one of which nothing is known but its class: the short way for most of a long queue."""
        job_class.remaining -= 1
        share, accepts, cursors = job_class.request.single_node_share, job_class.accepts_bin, job_class.cursors
        for number, index in enumerate(self.indexes):
            at = cursors[number]
            if at < len(index.bins):
                at = cursors[number] = index.find(at, share, accepts)
                if at < len(index.bins):
                    found = index.bins[at]
                    break
        else:
            fresh = self._cheapest_new_bin(job_class, 1, queue_position)
            if fresh is None:
                return None
            found = fresh
        found.allocate(share)
        if self.users_matter:
            found.add_users(job_class.request)
        if found.kind is BinKind.NEW:
            found.jobs.append(job)
        return found

    def assign_tasks(self, job: Job, job_class: EquivalenceClass, tasks: int, queue_position: int) -> PlacementOutcome:
        """Places jobs of one node: as many of the tasks as there is room for."""
        outcome = PlacementOutcome(tasks_left=tasks)
        job_class.remaining -= tasks
        self._first_fit(self.reserved.get(job.id, ()), job, job_class, outcome)
        self._first_fit_in(0, job, job_class, outcome)
        # What was made for it, open or not, comes before what is open for all: else the first node that opens would be
        # counted for a job that has one of its own on the way, and another be started for the job that needs it.
        self._first_fit(self.launched_for.get(job.id, ()), job, job_class, outcome)
        self._first_fit_in(1, job, job_class, outcome)
        self._first_fit_in(2, job, job_class, outcome)
        outcome.given_up = self.is_given_up(job.id)
        while outcome.tasks_left and not outcome.stuck_on and not outcome.given_up:
            found = self._cheapest_new_bin(job_class, outcome.tasks_left, queue_position)
            if found is None:
                break
            self._first_fit((found,), job, job_class, outcome)
        return outcome

    def _first_fit_in(self, number: int, job: Job, job_class: EquivalenceClass, outcome: PlacementOutcome) -> None:
        if outcome.tasks_left:
            index, share = self.indexes[number], job_class.request.single_node_share
            start = job_class.cursors[number] = index.find(job_class.cursors[number], share, job_class.accepts_bin)
            self._first_fit(index.find_all(start, share, job_class.accepts_bin), job, job_class, outcome)

    def _first_fit(self, bins: Iterable[Bin], job: Job, job_class: EquivalenceClass, outcome: PlacementOutcome) -> None:
        """First fit."""
        share = job_class.request.single_node_share
        for found in bins if outcome.tasks_left else ():
            count = found.shares_that_fit(share) if job_class.accepts_bin(found) else 0
            while count and outcome.tasks_left and not self.is_stuck_on(job, found, outcome):
                times = min(count, outcome.tasks_left)
                found.allocate(share, times)
                found.add_users(job_class.request)
                self._record(found, job, times, outcome)
                count = found.shares_that_fit(share)
            if not outcome.tasks_left:
                break

    def _record(self, found: Bin, job: Job, times: int, outcome: PlacementOutcome) -> None:
        outcome.tasks_left -= times
        bins = outcome.new if found.kind is BinKind.NEW else outcome.existing
        if not bins or bins[-1] is not found:
            bins.append(found)
        if found.kind is BinKind.NEW:
            outcome.tasks_on_new += times
            found.jobs.append(job)
        else:
            outcome.tasks_on_existing += times

    def is_stuck_on(self, job: Job, found: Bin, outcome: PlacementOutcome) -> bool:
        """True where open room has long been there for the job, and Slurm does not start it."""
        if found.kind is BinKind.SITE_NODE:
            return job.id in self._stuck_jobs.on_site_nodes
        if found.kind is BinKind.IN_SERVICE and job.id in self._stuck_jobs.on_burst_nodes:
            outcome.stuck_on = found.name
            return True
        return False

    def is_given_up(self, job: str) -> bool:
        """True for a job or gang that open burst nodes have not helped."""
        return job in self._stuck_jobs.given_up

    def _cheapest_new_bin(self, job_class: EquivalenceClass, tasks: int, queue_position: int) -> Bin | None:
        """A new slot of the pool that holds all that is left of the class for the least money."""
        eligible_pools = [
            r for r in job_class.eligible_pools if r.takes_single_node_jobs and self.has_slot(r, job_class)
        ]
        if not eligible_pools:
            return None
        chosen = eligible_pools[0]
        if len(eligible_pools) > 1:
            left = job_class.remaining + tasks
            chosen = cheapest_pool(eligible_pools, left)
            job_class.pool_choices.append((left - job_class.shift, eligible_pools, chosen))
        found = self.new_bin(chosen, self.take_slot(chosen, job_class))
        found.queue_position, found.payer = queue_position, job_class.request.payer
        self.in_flight.add(found)
        return found

    def new_bin(self, eligible: EligiblePool, slot: str) -> Bin:
        """The room that a new machine on this slot will have."""
        return self._bin_factory.slot_bin(eligible.pool, slot, BinKind.NEW)

    def has_slot(self, eligible: EligiblePool, job_class: EquivalenceClass) -> bool:
        """True where the pool has a free slot that the class allows."""
        free = self._free_slots[eligible.pool.name]
        return any(map(job_class.allows_node, free)) if job_class.names_nodes else bool(free)

    def allowed_slots(self, eligible: EligiblePool, job_class: EquivalenceClass) -> Iterable[str]:
        """The free slots that the class allows, named ones first. To be used up before a slot is taken."""
        free = self._free_slots[eligible.pool.name]
        if not job_class.names_nodes:
            return free
        allowed = [slot for slot in free if slot not in job_class.excluded_nodes]
        return sorted(allowed, key=lambda slot: slot not in job_class.required_nodes)

    def take_slot(self, eligible: EligiblePool, job_class: EquivalenceClass, slot: str = "") -> str:
        """Takes a slot, by default the first that the class allows."""
        free = self._free_slots[eligible.pool.name]
        slot = slot or (next(filter(job_class.allows_node, free)) if job_class.names_nodes else free[0])
        if free[0] == slot:
            free.popleft()
        else:
            free.remove(slot)
        return slot

    def give_back(self, pool: str, slots: list[str]) -> None:
        """Undoes take_slot; the slots come first again."""
        self._free_slots[pool].extendleft(reversed(slots))

    def restore(self, checkpoints: list[BinCheckpoint]) -> None:
        """Undoes what was taken from bins, the last first."""
        while checkpoints:
            checkpoint = checkpoints.pop()
            checkpoint.restore()
            if checkpoint.bin.position >= 0:
                self.indexes[min(checkpoint.bin.kind, BinKind.IN_FLIGHT)].reset_block(checkpoint.bin.position)

    def free_slot_count(self, pool: str) -> int:
        """How many slots of the pool are still free."""
        return len(self._free_slots[pool])


def cheapest_pool(eligible_pools: Sequence[EligiblePool], left: int) -> EligiblePool:
    """Which of them holds so many for the least money, as many on each machine as fit."""

    def cost(eligible: EligiblePool) -> tuple[bool, Decimal, Decimal, str]:
        price = eligible.price or Decimal(0)
        return (
            eligible.price_differs,
            price * left / eligible.shares_per_node if left > eligible.shares_per_node else price,
            price,
            eligible.pool.name,
        )

    return min(eligible_pools, key=cost)


@dataclass(frozen=True, slots=True)
class StuckJobs:
    """Jobs, and gangs, for which what is there is trusted no longer."""

    on_site_nodes: frozenset[str]
    """Nodes of the site."""
    on_burst_nodes: frozenset[str]
    """Open burst nodes."""
    given_up: frozenset[str]
    """Open burst nodes were there for long in vain: no more are started for it."""


def find_stuck_jobs(snapshot: Snapshot) -> StuckJobs:
    """At the moment of the snapshot."""
    now, progress = snapshot.now, snapshot.runtime_state
    late = {job: now - since for job, since in progress.stuck_since.items() if now - since > SITE_START_GRACE_S}
    return StuckJobs(
        frozenset(late),
        frozenset([job for job, waited in late.items() if waited > BURST_START_GRACE_S]),
        frozenset([job for job, since in progress.stuck_on_burst_since.items() if now - since > BURST_START_GRACE_S]),
    )
