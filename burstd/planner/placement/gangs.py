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
from burstd.planner.demand.job_requirements import Share
from burstd.planner.placement.bins import Bin, Kind, Taken
from burstd.planner.placement.equivalence_class import Part, Pattern, Route, Way, ways
from burstd.planner.placement.first_fit import Outcome, Packer, undo

Member = tuple[Job, Pattern]
Pick = Bin | tuple[Route, str]


@dataclass(slots=True)
class _Found:
    """Nodes to start a job on, and what the new ones cost an hour."""

    picks: list[Pick]
    share: Share
    cost: Decimal


def place_gang(packer: Packer, gang: str, members: Sequence[Member]) -> Outcome:
    """Places every member or none: one job of several nodes, or the components of a het job."""
    done = Outcome(left=1, given_up=packer.given_up(gang))
    taken: list[Taken] = []
    slots: list[tuple[str, str]] = []
    bins: list[Bin] = []
    for index, (job, pattern) in enumerate(members):
        found = _best(packer, gang, job, pattern, done)
        if found is None:
            if taken:
                undo(taken)
                # What was looked at while others of the gang stood there is to be looked at again.
                for _, one in members:
                    one.ways = ()
            for pool, slot in reversed(slots):
                packer.give_back(pool, [slot])
            done.there.clear()
            done.lacking = index
            # What is ready waits for the rest (until gate.py opens it to all); it is neither free nor idle.
            for kept in packer.reserved.get(gang, ()):
                kept.used = True
            return done
        for pick in found.picks:
            if isinstance(pick, Bin):
                at = pick
                done.there.append(at)
            else:
                route, slot = pick
                at = packer.new_bin(route, packer.take_slot(route, pattern, slot))
                at.jobs.append(job)
                slots.append((route.pool.name, slot))
                bins.append(at)
            taken.append(Taken.of(at))
            at.put(found.share)
    done.new = bins
    done.left = 0
    if bins:
        done.tasks_new = 1
        packer.gangs.append((gang, bins))
    else:
        done.tasks_there = 1
    return done


def _best(packer: Packer, gang: str, job: Job, pattern: Pattern, done: Outcome) -> _Found | None:
    best: _Found | None = None
    own = _own(packer, gang, job)
    for way in ways(pattern):
        found = _fill(packer, _Try(job, pattern, way), own, done)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
        if best is not None and not best.cost:
            return best
    return best


def _own(packer: Packer, gang: str, job: Job) -> list[Bin]:
    """Bins that are kept for the gang, those made for this component first."""
    own = packer.reserved.get(gang, [])
    if job.id != gang:
        own = [*own, *packer.reserved.get(job.id, [])]
    return sorted(own, key=lambda b: b.claim is None or job.id not in b.claim.jobs)


@dataclass(frozen=True, slots=True)
class _Try:
    """One way to be tried for a job."""

    job: Job
    pattern: Pattern
    way: Way


def _fill(packer: Packer, this: _Try, own: Sequence[Bin], done: Outcome) -> _Found | None:
    picks: list[Pick] = []
    used: set[str] = set()
    cost = Decimal(0)
    for part in this.way.parts:
        missing = part.count
        for pick, name, price in _candidates(packer, this, part, own, done):
            if name in used:
                continue
            used.add(name)
            picks.append(pick)
            cost += price
            missing -= 1
            if not missing:
                break
        if missing:
            return None
    return _Found(picks, this.way.share, cost) if this.pattern.named <= used else None


def _candidates(
    packer: Packer, this: _Try, part: Part, own: Sequence[Bin], done: Outcome
) -> Iterator[tuple[Pick, str, Decimal]]:
    """Nodes that can take one share, in the order in which they are to be taken."""
    pattern, share = this.pattern, this.way.share
    right = _right(this, part)
    yield from ((b, b.name, Decimal(0)) for b in own if b.fits(share) and right(b))
    usable: Iterable[Bin] = (b for b in _common(packer, share, part, right) if not packer.stale(this.job, b, done))
    if pattern.named:
        usable = sorted(usable, key=lambda b: b.name not in pattern.named)
    yield from ((b, b.name, Decimal(0)) for b in usable)
    if done.stuck or done.given_up:
        return
    for route in pattern.routes:
        pool = route.pool
        if route.price is None or this.way.partition not in pool.partitions:
            continue
        if not part.expression.holds(pool.shape.features) or share.lacking(pool.shape):
            continue
        for slot in packer.slots(route, pattern):
            yield (route, slot), slot, route.price


def _right(this: _Try, part: Part) -> Callable[[Bin], bool]:
    """Tells of a bin with room whether it may be taken."""
    partition, excluded, holds = this.way.partition, this.pattern.excluded, part.expression.holds

    def right(found: Bin) -> bool:
        # What this plan fills for others is theirs, and so is a claim on its way that others wait for.
        if found.kind is Kind.NEW:
            return False
        return partition in found.site.partitions and found.name not in excluded and holds(found.site.features)

    return right


def _common(packer: Packer, share: Share, part: Part, right: Callable[[Bin], bool]) -> Iterator[Bin]:
    """The nodes that are nobody's, in the order in which they are filled."""

    def free(found: Bin) -> bool:
        return right(found) and (found.kind is not Kind.COMING or (found.whole and found.name not in packer.promised))

    for number, row in enumerate(packer.rows):
        # What has no room now has none for the next one either.
        start = part.cursors[number] = row.find(part.cursors[number], share, free)
        yield from row.rest(start, share, free)
