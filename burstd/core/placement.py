"""Pending jobs onto nodes: in priority order, first fit, onto what is there, then what is coming, then new slots.

Jobs that ask for the same share all that can be known about them (pattern.py), and what was once found full is not
looked at again, so that the time grows with jobs plus patterns times bins, not with jobs times nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter

from burstd.core.capacity import Bin, Kind, capacity
from burstd.core.demand import Ask, Demand, task_ids
from burstd.core.gangs import place_gang
from burstd.core.offers import Judged, candidates
from burstd.core.packer import Outcome, Packer
from burstd.core.pattern import Pattern, Patterns
from burstd.core.retry import steady_first, wary, why_steady
from burstd.core.wording import Wording
from burstd.model.claim import Cause
from burstd.model.offer import Offer
from burstd.model.policy import Release, Remark, Target, Want
from burstd.model.snapshot import SlurmView, Snapshot


def place(snapshot: Snapshot, demand: Demand, spot_interruptions: int = 0) -> Target:
    """What is wanted for the jobs that count, what is idle, and a remark for each job of a burst partition.

    ``spot_interruptions`` is Tuning's.
    """
    judged = {name: candidates(snapshot, pool) for name, pool in snapshot.pools.items()}
    offers = {name: tuple(j.offer for j in some if j.offer and not j.refused) for name, some in judged.items()}
    if not isinstance(snapshot.slurm, SlurmView):
        why = f"Slurm could not be read: {snapshot.slurm.error}"
        return Target(offers=offers, remarks=(Remark("placement", "slurm", "wait", why),))
    return _Placement(snapshot, snapshot.slurm, judged, offers, spot_interruptions).run(demand)


_SHARED = "machines of a job that shares it"


class _Placement:
    """One run over the queue."""

    def __init__(
        self,
        snapshot: Snapshot,
        slurm: SlurmView,
        judged: Mapping[str, tuple[Judged, ...]],
        offers: Mapping[str, tuple[Offer, ...]],
        spot_interruptions: int,
    ) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._judged = judged
        self._offers = offers
        # Without interruptions nobody's machines need be counted.
        self._most = spot_interruptions if snapshot.interruptions else 0
        self._patterns = Patterns(snapshot, slurm, offers)
        self._placed: dict[str, tuple[str, ...]] = {}

    def run(self, demand: Demand) -> Target:
        self._count(demand)
        room = capacity(self._snapshot, self._slurm, self._gangs(demand))
        packer = Packer(self._snapshot, room, self._waiting(demand))
        wording = Wording(self._snapshot, self._judged, self._patterns, packer)
        alone = self._fill(demand, packer, wording)
        for ask, found in alone if self._most else ():
            # Which offer comes first for a new node hangs on all the jobs that share it.
            times = self._times(job.id for job in found.jobs)
            if times:
                whose = "its machines" if self._times(job.id for job in ask.jobs) else _SHARED
                _say(ask, wording.new_node(found, times, whose))
        releases = tuple(
            Release(claim.id, claim.pool, f"{claim.slot} is idle and no pending job needs it")
            for claim, found in room.idle
            if found is None or not found.used
        )
        return Target(
            wants=self._wants(packer),
            releases=releases,
            remarks=(*demand.remarks, *_remarks(demand)),
            offers=self._offers,
            placed=self._placed,
            look_at=demand.look_at,
        )

    def _count(self, demand: Demand) -> None:
        """How many of each pattern there are."""
        for request, times in Counter(map(attrgetter("request"), demand.asks)).items():
            self._patterns.of(request).left = times
        for ask in demand.asks:
            if ask.tasks > 1 or ask.more:
                self._patterns.of(ask.request).left += ask.tasks - 1
                for _, request in ask.more:
                    self._patterns.of(request).left += ask.tasks

    def _fill(self, demand: Demand, packer: Packer, wording: Wording) -> list[tuple[Ask, Bin]]:
        """Places every ask and says so; returns those that get one new node, and the node."""
        patterns, special, placed = self._patterns.known, packer.special, self._placed
        alone: list[tuple[Ask, Bin]] = []
        for order, ask in enumerate(demand.asks):
            pattern = patterns[ask.request]
            if not ask.plain or (pattern.gang and not pattern.full) or (special and ask.job.id in special):
                self._place(packer, wording, ask, order, alone)
                continue
            found = None if pattern.full else packer.place_one(ask.job, pattern, order)
            if found is None:
                pattern.full = True
                words = pattern.why or wording.left_out(pattern)
            else:
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
                if any(word.startswith(prefix + "_") for word in words):
                    waiting.update(f"{prefix}_{task}" for task in task_ids(job.array_tasks))
        return frozenset(words & waiting)

    def _place_gangs(self, packer: Packer, ask: Ask, patterns: list[Pattern], order: int) -> Outcome:
        """Each task of an array of multi-node jobs is a gang of its own."""
        done = Outcome(left=ask.tasks)
        members = [(job, pattern) for (job, _), pattern in zip(ask.parts, patterns, strict=True)]
        for pattern in patterns:
            pattern.left -= ask.tasks
        for task in ask.task_ids():
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
                    patterns[0].full = True
                done.lacking = one.lacking
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

    def _wants(self, packer: Packer) -> tuple[Want, ...]:
        """One for each new node of single jobs, one for each pool of a gang, in the order of their first jobs."""
        units = [("", [found]) for found in packer.later.bins if found.kind is Kind.NEW]
        for gang, bins in packer.gangs:
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


def _say(ask: Ask, words: tuple[str, str]) -> None:
    """Leaves the remark with the ask; the one that it has where it says the same."""
    known, (verdict, reason) = ask.said, words
    if known is None or known.reason != reason or known.verdict != verdict:
        ask.said = Remark("placement", f"job:{ask.job.id}", verdict, reason)


def _remarks(demand: Demand) -> list[Remark]:
    """What was said, of each component of a het job as well."""
    remarks = [ask.said for ask in demand.asks if ask.burst and ask.said is not None]
    if not demand.het:
        return remarks
    every: list[Remark] = []
    for ask in demand.asks:
        if ask.burst and ask.said is not None:
            every += [ask.said, *(replace(ask.said, subject=f"job:{job.id}") for job, _ in ask.more)]
    return every
