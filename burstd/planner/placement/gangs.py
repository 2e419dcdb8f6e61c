"""Jobs of several nodes and het jobs: every node at once, or none.

A gang is filled with its own claims first, then with room on nodes that are there, then with new slots; of the ways
to do it (partition, alternative of the constraint, number of nodes) the one that costs least is taken. New slots of a
gang are its own: nothing else is packed on them, so that it can be bound to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.slurm.job import Job
from burstd.planner.demand.job_requirements import NodeShare
from burstd.planner.placement.bins import Bin, BinCheckpoint, BinKind
from burstd.planner.placement.equivalence_class import (
    EligiblePool,
    EquivalenceClass,
    GangLayout,
    NodeGroup,
    gang_layouts,
)
from burstd.planner.placement.first_fit import Packer, PlacementOutcome

GangMember = tuple[Job, EquivalenceClass]
NodePick = Bin | tuple[EligiblePool, str]


_Cost = tuple[int, Decimal]
"""How many new nodes have a price that cannot be compared, and what the others cost an hour."""
_NOTHING: _Cost = (0, Decimal(0))


@dataclass(slots=True)
class _LayoutFit:
    """Nodes to start a job on, and what the new ones cost an hour."""

    picks: list[NodePick]
    share: NodeShare
    cost: _Cost


def assign_gang(packer: Packer, gang: str, members: Sequence[GangMember]) -> PlacementOutcome:
    """Places every member or none: one job of several nodes, or the components of a het job."""
    outcome = PlacementOutcome(tasks_left=1, given_up=packer.is_given_up(gang))
    checkpoints: list[BinCheckpoint] = []
    slots: list[tuple[str, str]] = []
    bins: list[Bin] = []
    for index, (job, job_class) in enumerate(members):
        found = _cheapest_layout(packer, gang, job, job_class, outcome)
        if found is None:
            if checkpoints:
                packer.restore(checkpoints)
                # What was looked at while others of the gang stood there is to be looked at again.
                for _, one in members:
                    one.layouts = ()
            for pool, slot in reversed(slots):
                packer.give_back(pool, [slot])
            outcome.existing.clear()
            outcome.lacking_member = index
            # What is ready waits for the rest (until gate.py opens it to all); it is neither free nor idle.
            for reserved_bin in packer.reserved.get(gang, ()):
                reserved_bin.used = True
            return outcome
        for pick in found.picks:
            if isinstance(pick, Bin):
                at = pick
                outcome.existing.append(at)
            else:
                eligible, slot = pick
                at = packer.new_bin(eligible, packer.take_slot(eligible, job_class, slot))
                at.jobs.append(job)
                slots.append((eligible.pool.name, slot))
                bins.append(at)
            checkpoints.append(BinCheckpoint.save(at))
            at.allocate(found.share)
            at.add_users(job_class.request)
    outcome.new = bins
    outcome.tasks_left = 0
    if bins:
        outcome.tasks_on_new = 1
        packer.gang_bins.append((gang, bins))
    else:
        outcome.tasks_on_existing = 1
    return outcome


def _cheapest_layout(
    packer: Packer, gang: str, job: Job, job_class: EquivalenceClass, outcome: PlacementOutcome
) -> _LayoutFit | None:
    best: _LayoutFit | None = None
    own = _reserved_bins(packer, gang, job)
    for layout in gang_layouts(job_class):
        found = _fit_layout(packer, _LayoutAttempt(job, job_class, layout), own, outcome)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
        if best is not None and best.cost == _NOTHING:
            return best
    return best


def _reserved_bins(packer: Packer, gang: str, job: Job) -> list[Bin]:
    """Bins that are kept for the gang, those made for this component first."""
    own = packer.reserved.get(gang, [])
    if job.id != gang:
        own = [*own, *packer.reserved.get(job.id, [])]
    return sorted(own, key=lambda b: b.claim is None or job.id not in b.claim.jobs)


@dataclass(frozen=True, slots=True)
class _LayoutAttempt:
    """One way to be tried for a job."""

    job: Job
    job_class: EquivalenceClass
    layout: GangLayout


def _fit_layout(
    packer: Packer, attempt: _LayoutAttempt, own: Sequence[Bin], outcome: PlacementOutcome
) -> _LayoutFit | None:
    picks: list[NodePick] = []
    used: set[str] = set()
    unlike, cost = _NOTHING
    for node_group in attempt.layout.node_groups:
        missing = node_group.count
        for pick, name, (differs, price) in _candidate_nodes(packer, attempt, node_group, own, outcome):
            if name in used:
                continue
            used.add(name)
            picks.append(pick)
            unlike += differs
            cost += price
            missing -= 1
            if not missing:
                break
        if missing:
            return None
    return _LayoutFit(picks, attempt.layout.share, (unlike, cost)) if attempt.job_class.required_nodes <= used else None


def _candidate_nodes(
    packer: Packer, attempt: _LayoutAttempt, node_group: NodeGroup, own: Sequence[Bin], outcome: PlacementOutcome
) -> Iterator[tuple[NodePick, str, _Cost]]:
    """Nodes that can take one share, in the order in which they are to be taken."""
    job_class, share = attempt.job_class, attempt.layout.share
    accepts = _bin_filter(attempt, node_group)
    yield from ((b, b.name, _NOTHING) for b in own if b.fits(share) and accepts(b))
    # A job is bound to nodes of its own: with nodes of others among them it would never be.
    own_only = any(b.claim is not None and b.claim.dedicated for b in own)
    usable: Iterable[Bin] = (
        b
        for b in (() if own_only else _shared_bins(packer, share, node_group, accepts))
        if not packer.is_stuck_on(attempt.job, b, outcome)
    )
    if job_class.required_nodes:
        usable = sorted(usable, key=lambda b: b.name not in job_class.required_nodes)
    yield from ((b, b.name, _NOTHING) for b in usable)
    if outcome.stuck_on or outcome.given_up:
        return
    for eligible in job_class.eligible_pools:
        pool = eligible.pool
        if eligible.price is None or attempt.layout.partition not in pool.partitions:
            continue
        if not node_group.expression.holds(pool.shape.features) or share.lacking(pool.shape):
            continue
        for slot in packer.allowed_slots(eligible, job_class):
            yield (eligible, slot), slot, (eligible.price_differs, eligible.price)


def _bin_filter(attempt: _LayoutAttempt, node_group: NodeGroup) -> Callable[[Bin], bool]:
    """Tells of a bin with room whether it may be taken."""
    partition, excluded, matches, request = (
        attempt.layout.partition,
        attempt.job_class.excluded_nodes,
        node_group.expression.holds,
        attempt.job_class.request,
    )

    def accepts(found: Bin) -> bool:
        # What this plan fills for others is theirs, and so is a claim on its way that others wait for.
        if found.kind is BinKind.NEW:
            return False
        return (
            partition in found.traits.partitions
            and found.name not in excluded
            and matches(found.traits.features)
            and found.admits_users(request)
        )

    return accepts


def _shared_bins(
    packer: Packer, share: NodeShare, node_group: NodeGroup, accepts: Callable[[Bin], bool]
) -> Iterator[Bin]:
    """The nodes that are nobody's, in the order in which they are filled."""

    def free(found: Bin) -> bool:
        return accepts(found) and (
            found.kind is not BinKind.IN_FLIGHT or (found.empty and found.name not in packer.promised)
        )

    for number, index in enumerate(packer.indexes):
        # What has no room now has none for the next one either.
        start = node_group.cursors[number] = index.find(node_group.cursors[number], share, free)
        yield from index.find_all(start, share, free)
