"""Pending jobs onto nodes: in priority order, first fit, onto what is there, then what is coming, then new slots.

Jobs that ask for the same share all that can be known about them (pattern.py), and what was once found full is not
looked at again, so that the time grows with jobs plus patterns times bins, not with jobs times nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

from burstd.domain.claim import Cause
from burstd.domain.plugins.policy import Release, Remark, Target, Want
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.changes import Changes, changed
from burstd.planner.demand.demand import Ask, Demand, tasks_among
from burstd.planner.demand.request import Request
from burstd.planner.demand.requeued_jobs import steady_first, wary, why_steady
from burstd.planner.offers.offers import candidates
from burstd.planner.placement.bins import Bin, Kind, capacity
from burstd.planner.placement.equivalence_class import Pattern, Patterns
from burstd.planner.placement.first_fit import Outcome, Packer, cheapest
from burstd.planner.placement.gangs import place_gang
from burstd.planner.placement.inputs import World, usable, world_of
from burstd.planner.placement.verdicts import Wording


class PlacementMemory:
    """The last placement, where there was one."""

    def __init__(self) -> None:
        self.last: Placement | None = None

    def free(self) -> Mapping[str, Sequence[str]]:
        """By pool, the slots on which there was nothing before it."""
        return self.last.free if self.last is not None else {}


def place(
    snapshot: Snapshot, demand: Demand, spot_interruptions: int = 0, memory: PlacementMemory | None = None
) -> Target:
    """What is wanted for the jobs that count, what is idle, and a remark for each job of a burst partition.

    ``spot_interruptions`` is Tuning's. ``memory`` saves work where little has changed since its last placement; the
    answer is the same without it.
    """
    if not isinstance(snapshot.slurm, SlurmView):
        offers = usable({name: candidates(snapshot, pool) for name, pool in snapshot.pools.items()})
        why = f"Slurm could not be read: {snapshot.slurm.error}"
        return Target(offers=offers, remarks=(Remark("placement", "slurm", "wait", why),))
    last = memory.last if memory is not None else None
    world = world_of(snapshot, snapshot.slurm, spot_interruptions, last.world if last is not None else None)
    if last is not None and world.same(last.world):
        last.world = world
        found = changed(last.asks, demand.asks)
        if found is not None and last.bears(found, len(demand.asks)):
            return last.again(demand, found)
    fresh = Placement(snapshot, snapshot.slurm, world)
    if memory is not None:
        memory.last = fresh
    return fresh.run(demand)


_SHARED = "machines of a job that shares it"
_MANY = 1000
"""So many changes are not looked at one by one."""


class Placement:
    """One run over the queue, and what can be told of the next from it."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, world: World) -> None:
        self.world = world
        self.asks: tuple[Ask, ...] = ()
        self._snapshot = snapshot
        self._slurm = slurm
        self._offers = usable(world.judged)
        # Without interruptions nobody's machines need be counted.
        self._most = world.spot_interruptions if snapshot.interruptions else 0
        self._patterns = Patterns(snapshot, slurm, self._offers)
        self.free: Mapping[str, Sequence[str]] = {}
        self._placed: dict[str, tuple[str, ...]] = {}
        self._said: list[Remark] | None = None
        self._order = 0
        self._wants: tuple[Want, ...] = ()
        self._releases: tuple[Release, ...] = ()

    def run(self, demand: Demand) -> Target:
        """Places every ask."""
        self.asks = demand.asks
        self._count(demand)
        self._room = capacity(self._snapshot, self._slurm, self._gangs(demand), self.world.private)
        self.free = self._room.free
        self._packer = Packer(self.world.doubts, self._room, self._waiting(demand))
        self._wording = Wording(self._snapshot, self.world.judged, self._patterns, self._packer)
        alone = self._fill(demand.asks)
        for ask, found in alone if self._most else ():
            # Which offer comes first for a new node hangs on all the jobs that share it.
            times = self._times(job.id for job in found.jobs)
            if times:
                whose = "its machines" if self._times(job.id for job in ask.jobs) else _SHARED
                _say(ask, self._wording.new_node(found, times, whose))
        self._sum_up()
        return self._target(demand)

    def bears(self, found: Changes[Ask], length: int) -> bool:
        """True where the changes leave everything else in its place: what is gone had none, what has come gets none.

        What has come at the end of the queue may get one.
        """
        if len(found) > _MANY:
            return False
        known, special = self._patterns.known, self._packer.special
        changes: Counter[Request] = Counter()
        for at, ask in found.gone:
            if not ask.plain or ask.placed or ask.job.id in special or known[ask.request].full_at == at:
                return False
            changes[ask.request] -= 1
        last = length
        for at, ask in reversed(found.come):
            if not ask.plain or ask.job.id in special or ask.job.id in self._words:
                return False
            pattern = known.get(ask.request)
            left_out = pattern is not None and pattern.full and at > _shifted(pattern.full_at, found)
            if not left_out and (at != last - 1 or self._most):
                return False
            if at == last - 1:
                last = at
            changes[ask.request] += 1
        return all(_chosen_alike(known[request], more) for request, more in changes.items() if request in known)

    def again(self, demand: Demand, found: Changes[Ask]) -> Target:
        """The target after such changes."""
        if not len(found):
            return self._target(demand)
        self.asks = demand.asks
        self._said = None
        for pattern in self._patterns.known.values():
            if pattern.full:
                pattern.full_at = _shifted(pattern.full_at, found)
        for _, ask in found.gone:
            self._patterns.known[ask.request].shift -= 1
        unfilled: set[Pattern] = set()
        for _, ask in found.come:
            pattern = self._patterns.of(ask.request)
            pattern.shift += 1
            if not pattern.full:
                pattern.left += 1
                unfilled.add(pattern)
        if found.come:
            self._placed = dict(self._placed)
            self._fill([ask for _, ask in found.come])
        for at, ask in reversed(found.come):
            pattern = self._patterns.of(ask.request)
            if pattern in unfilled and not ask.placed:
                pattern.full_at = at
        if any(ask.placed for _, ask in found.come):
            self._sum_up()
        return self._target(demand)

    def _sum_up(self) -> None:
        self._wants = self._all_wants()
        self._releases = tuple(
            Release(claim.id, claim.pool, f"{claim.slot} is idle and no pending job needs it")
            for claim, found in self._room.idle
            if found is None or not found.used
        )

    def _target(self, demand: Demand) -> Target:
        if self._said is None:
            self._said = _remarks(demand)
        return Target(
            wants=self._wants,
            releases=self._releases,
            remarks=(*demand.remarks, *self._said),
            offers=self._offers,
            placed=self._placed,
            look_at=demand.look_at,
        )

    @cached_property
    def _words(self) -> frozenset[str]:
        """All jobs and gangs that claims are for, or that nodes are bound to."""
        claims = self.world.claims
        return frozenset(word for claim in claims for word in (*claim.jobs, claim.gang)) | self.world.bound.keys()

    def _count(self, demand: Demand) -> None:
        """How many of each pattern there are."""
        for request, times in Counter(map(attrgetter("request"), demand.asks)).items():
            self._patterns.of(request).left = times
        for ask in demand.asks:
            if ask.tasks > 1 or ask.more:
                self._patterns.of(ask.request).left += ask.tasks - 1
                for _, request in ask.more:
                    self._patterns.of(request).left += ask.tasks

    def _fill(self, asks: Sequence[Ask]) -> list[tuple[Ask, Bin]]:
        """Places asks, in their order, and says so; returns those that get one new node, and the node."""
        packer, wording = self._packer, self._wording
        patterns, special, placed = self._patterns.known, packer.special, self._placed
        alone: list[tuple[Ask, Bin]] = []
        for order, ask in enumerate(asks, self._order):
            pattern = patterns[ask.request]
            if not ask.plain or (pattern.gang and not pattern.full) or (special and ask.job.id in special):
                ask.placed = True
                self._place(packer, wording, ask, order, alone)
                continue
            found = None if pattern.full else packer.place_one(ask.job, pattern, order)
            if found is None:
                if not pattern.full:
                    pattern.full, pattern.full_at = True, order
                ask.placed = False
                words = pattern.why or wording.left_out(pattern)
            else:
                ask.placed = True
                words = found.words or wording.on(found)
                if found.kind is not Kind.NEW:
                    placed[ask.job.id] = (found.name,)
                elif ask.burst:
                    alone.append((ask, found))
            if ask.burst:
                said = ask.said
                # What is said again is the same remark.
                if said is None or said.reason != words[1] or said.verdict != words[0]:
                    ask.said = Remark("placement", "job:" + ask.job.id, words[0], words[1])
        self._order += len(asks)
        return alone

    def _place(self, packer: Packer, wording: Wording, ask: Ask, order: int, alone: list[tuple[Ask, Bin]]) -> None:
        patterns = [self._patterns.of(request) for _, request in ask.parts]
        if not ask.more and not patterns[0].gang:
            done = packer.place_single(ask.job, patterns[0], ask.tasks, order)
            if done.there:
                self._placed[ask.job.id] = tuple(b.name for b in done.there)
        else:
            done = self._place_gangs(packer, ask, patterns, order)
        if ask.burst:
            _say(ask, wording.of(ask, patterns, done))
            if ask.tasks == 1 and not done.left and not done.there and len(done.new) == 1:
                alone.append((ask, done.new[0]))

    def _waiting(self, demand: Demand) -> AbstractSet[str]:
        """The jobs that count, where claims were made for any."""
        if not any(claim.jobs for claim in self._snapshot.claims):
            return frozenset()
        return {job.id for ask in demand.asks for job in (ask.jobs if ask.more else (ask.job,))}

    def _gangs(self, demand: Demand) -> frozenset[str]:
        """The words of claims' gangs whose job still waits and counts, and the jobs that nodes are bound to."""
        words = {claim.gang for claim in self._snapshot.claims if claim.gang} | set(self._snapshot.bound)
        if not words:
            return frozenset()
        waiting: set[str] = set()
        for ask in demand.asks:
            job = ask.job
            waiting.add(job.id)
            if job.het_job_id:
                waiting.update((ask.gang(), *(job.id for job in ask.jobs)))
            if job.array_tasks:
                prefix = job.array_job_id or job.id
                named = [word.removeprefix(prefix + "_") for word in words if word.startswith(prefix + "_")]
                waiting.update(f"{prefix}_{task}" for task in tasks_among(job.array_tasks, named))
        return frozenset(words & waiting)

    def _place_gangs(self, packer: Packer, ask: Ask, patterns: list[Pattern], order: int) -> Outcome:
        """Each task of an array of multi-node jobs is a gang of its own."""
        done = Outcome(left=ask.tasks)
        members = [(job, pattern) for (job, _), pattern in zip(ask.parts, patterns, strict=True)]
        for pattern in patterns:
            pattern.left -= ask.tasks
        job = ask.job
        named = tasks_among(job.array_tasks, packer.named.get(job.array_job_id or job.id, ()))
        full = False

        def tries() -> Iterator[str]:
            # All tasks are alike but those of which more is known: once one finds no room, no other does.
            apart = dict.fromkeys(named)
            for task in ask.task_ids():
                if full or (not ask.more and patterns[0].full):
                    break
                apart.pop(task, None)
                yield task
            yield from apart

        for task in tries():
            if not done.left:
                break
            gang = ask.gang(task)
            if not ask.more and patterns[0].full and gang not in packer.reserved:
                continue
            one = place_gang(packer, gang, members)
            done.stuck = done.stuck or one.stuck
            done.given_up = done.given_up or one.given_up
            if one.left:
                if not ask.more and not one.stuck and not one.given_up:
                    patterns[0].full, patterns[0].full_at = True, order
                done.lacking = one.lacking
                full = full or bool(ask.more) or task not in named
                continue
            for found in one.new:
                found.order = order
            done.left -= 1
            done.there += one.there
            done.new += one.new
            done.tasks_there += one.tasks_there
            done.tasks_new += one.tasks_new
            if one.there:
                self._placed[gang] = tuple(b.name for b in one.there)
        return done

    def _all_wants(self) -> tuple[Want, ...]:
        """One for each new node of single jobs, one for each pool of a gang, in the order of their first jobs."""
        units = [("", [found]) for found in self._packer.later.bins if found.kind is Kind.NEW]
        for gang, bins in self._packer.gangs:
            alike: dict[tuple[str, str], list[Bin]] = {}
            for found in bins:
                alike.setdefault((found.pool, found.jobs[0].id), []).append(found)
            units += [(gang, some) for some in alike.values()]
        units.sort(key=lambda unit: unit[1][0].order)
        return tuple(self._want(bins, gang) for gang, bins in units)

    def _times(self, jobs: Iterable[str]) -> int:
        return wary(self._snapshot, jobs, self._most)

    def _want(self, bins: list[Bin], gang: str) -> Want:
        first = bins[0]
        jobs = tuple(dict.fromkeys([job.id for job in first.jobs]))
        times, steady = self._times(jobs) if self._most else 0, self._offers[first.pool]
        why = ""
        if times:
            steady = steady_first(steady)
            why = why_steady(steady, times, _SHARED if len(jobs) > 1 else "its machines")
        shown = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
        return Want(
            pool=first.pool,
            nodes=len(bins),
            cause=Cause.DEMAND,
            reason=f"{'jobs' if len(jobs) > 1 else 'job'} {shown}{why}",
            offers=steady,
            jobs=jobs,
            users=tuple(dict.fromkeys([job.user for job in first.jobs])),
            gang=gang,
            slots=tuple([b.name for b in bins]),
            accounts=tuple(dict.fromkeys([job.account for job in first.jobs if job.account])),
        )


def _shifted(at: int, found: Changes[Ask]) -> int:
    """Where in the new queue what stood there in the old one stands."""
    at -= sum(gone < at for gone, _ in found.gone)
    for come, _ in found.come:
        if come > at:
            break
        at += 1
    return at


def _chosen_alike(pattern: Pattern, more: int) -> bool:
    """True where the pools for it would be the same if there were so many more of it."""
    more += pattern.shift
    return all(cheapest(routes, left + more) is chosen for left, routes, chosen in pattern.choices)


def _say(ask: Ask, words: tuple[str, str]) -> None:
    """Leaves the remark with the ask; the one that it has where it says the same."""
    known, (verdict, reason) = ask.said, words
    if known is None or known.reason != reason or known.verdict != verdict:
        ask.said = Remark("placement", f"job:{ask.job.id}", verdict, reason)


def _remarks(demand: Demand) -> list[Remark]:
    """What was said, of each component of a het job as well."""
    # Those that are none of our business have none.
    remarks = list(filter(None, map(attrgetter("said"), demand.asks)))
    if not demand.het:
        return remarks
    every: list[Remark] = []
    for ask in demand.asks:
        if ask.burst and ask.said is not None:
            every += [ask.said, *(replace(ask.said, subject=f"job:{job.id}") for job, _ in ask.more)]
    return every
