"""Jobs of several nodes and het jobs: every node at once, or none.

A gang is filled with its own claims first, then with room on nodes that are there, then with new slots; of the ways
to do it (partition, alternative of the constraint, number of nodes) the one that costs least is taken. New slots of a
gang are its own: nothing else is packed on them, so that it can be bound to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain

from burstd.core.capacity import Bin, Kind, Taken, new_bin
from burstd.core.constraint import Alternative, Expression, split
from burstd.core.need import Share
from burstd.core.packer import Outcome, Packer, undo
from burstd.core.pattern import Pattern, Route
from burstd.model.job import Job

Part = tuple[Job, Pattern]
Pick = Bin | tuple[Route, str]


@dataclass(slots=True)
class _Way:
    """One way to start a job: its nodes, and what the new ones cost an hour."""

    picks: list[Pick]
    share: Share
    cost: Decimal


def place_gang(packer: Packer, gang: str, parts: Sequence[Part]) -> Outcome:
    """Places every part or none: one job of several nodes, or the components of a het job."""
    done = Outcome(left=1, given_up=packer.given_up(gang))
    taken: list[Taken] = []
    slots: list[tuple[str, str]] = []
    bins: list[Bin] = []
    for index, (job, pattern) in enumerate(parts):
        way = _best(packer, gang, job, pattern, done)
        if way is None:
            undo(taken)
            for pool, slot in reversed(slots):
                packer.give_back(pool, [slot])
            done.there.clear()
            done.lacking = index
            # What is ready waits for the rest (until gate.py opens it to all); it is neither free nor idle.
            for found in packer.reserved.get(gang, ()):
                found.used = True
            return done
        for pick in way.picks:
            if isinstance(pick, Bin):
                found = pick
                done.there.append(found)
            else:
                route, slot = pick
                found = new_bin(route.pool, packer.take_slot(route, pattern, slot))
                found.jobs.append(job.id)
                found.users.append(job.user)
                if job.account:
                    found.accounts.append(job.account)
                slots.append((route.pool.name, slot))
                bins.append(found)
            taken.append(found.put(way.share))
    done.new = bins
    done.left = 0
    if bins:
        done.tasks_new = 1
        packer.gangs.append((gang, bins))
    else:
        done.tasks_there = 1
    return done


def _best(packer: Packer, gang: str, job: Job, pattern: Pattern, done: Outcome) -> _Way | None:
    best: _Way | None = None
    own = _own(packer, gang, job)
    for partition in job.partitions:
        for alternative in pattern.need.constraint.alternatives:
            for nodes, share in _splits(pattern, partition, alternative):
                way = _fill(packer, _Try(job, pattern, partition, alternative, nodes, share), own, done)
                if way is not None and (best is None or way.cost < best.cost):
                    best = way
                if best is not None and not best.cost:
                    return best
    return best


def _own(packer: Packer, gang: str, job: Job) -> list[Bin]:
    """Bins that are kept for the gang, those made for this component first."""
    own = packer.reserved.get(gang, [])
    if job.id != gang:
        own = [*own, *packer.reserved.get(job.id, [])]
    return sorted(own, key=lambda b: b.claim is None or job.id not in b.claim.jobs)


def _splits(pattern: Pattern, partition: str, alternative: Alternative) -> list[tuple[int, Share]]:
    """The numbers of nodes that it may be spread over: the fewest, and what each pool makes of it."""
    fewest = max(pattern.need.nodes, sum(g.count for g in alternative))
    counts = {fewest} | {max(fewest, r.nodes) for r in pattern.routes if partition in r.pool.partitions}
    return [(nodes, pattern.need.share(nodes)) for nodes in sorted(counts)]


@dataclass(frozen=True, slots=True)
class _Try:
    """One way to be tried: in one partition, by one alternative of the constraint, on so many nodes."""

    job: Job
    pattern: Pattern
    partition: str
    alternative: Alternative
    nodes: int
    share: Share


def _fill(packer: Packer, this: _Try, own: Sequence[Bin], done: Outcome) -> _Way | None:
    picks: list[Pick] = []
    used: set[str] = set()
    cost = Decimal(0)
    for count, expression in split(this.alternative, this.nodes):
        missing = count
        for pick, name, price in _candidates(packer, this, expression, own, done):
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
    return _Way(picks, this.share, cost) if this.pattern.named <= used else None


def _candidates(
    packer: Packer, this: _Try, expression: Expression, own: Sequence[Bin], done: Outcome
) -> Iterator[tuple[Pick, str, Decimal]]:
    """Nodes that can take one share, in the order in which they are to be taken."""
    pattern, share = this.pattern, this.share

    def good(found: Bin) -> bool:
        return (
            this.partition in found.partitions
            and found.fits(share)
            and found.name not in pattern.excluded
            and expression.holds(found.features)
        )

    def free_to_take(found: Bin) -> bool:
        """A slot that this plan fills for others is theirs, and so is a claim on its way that others wait for."""
        if found.kind is Kind.COMING:
            return found.whole and found.name not in packer.promised
        return found.kind is not Kind.NEW

    yield from ((b, b.name, Decimal(0)) for b in own if good(b))
    common = chain(packer.site.rest(), packer.open.rest(), packer.later.rest())
    usable: Iterator[Bin] = (b for b in common if free_to_take(b) and good(b) and not packer.stale(this.job, b, done))
    if pattern.named:
        usable = iter(sorted(usable, key=lambda b: b.name not in pattern.named))
    yield from ((b, b.name, Decimal(0)) for b in usable)
    if done.stuck or done.given_up:
        return
    for route in pattern.routes:
        pool = route.pool
        if route.price is None or this.partition not in pool.partitions or not expression.holds(pool.shape.features):
            continue
        if share.lacking(pool.shape):
            continue
        for slot in packer.slots(route, pattern):
            yield (route, slot), slot, route.price
