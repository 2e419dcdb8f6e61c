"""Pending jobs onto nodes: in priority order, first fit, onto what is there, then what is coming, then new slots.

Jobs that ask for the same share all that can be known about them (pattern.py), and what was once found full is not
looked at again, so that the time grows with jobs plus patterns times bins, not with jobs times nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
        self._spot_interruptions = spot_interruptions
        self._patterns = Patterns(snapshot, slurm, offers)
        self._remarks: list[Remark] = []
        self._placed: dict[str, tuple[str, ...]] = {}
        self._order: dict[str, int] = {}

    def run(self, demand: Demand) -> Target:
        asks = [(ask, [self._patterns.of(job) for job in ask.jobs]) for ask in demand.asks]
        self._order = {job.id: index for index, ask in enumerate(demand.asks) for job in ask.jobs}
        for ask, patterns in asks:
            for pattern in patterns:
                pattern.left += ask.tasks
        room = capacity(self._snapshot, self._slurm, self._gangs(demand))
        packer = Packer(self._snapshot, room, self._order.keys())
        wording = Wording(self._snapshot, self._judged, self._patterns, packer)
        said: list[tuple[Ask, tuple[str, str], Bin | None]] = []
        for ask, patterns in asks:
            if len(ask.jobs) == 1 and not patterns[0].gang:
                done = packer.place_single(ask.job, patterns[0], ask.tasks)
                if done.there:
                    self._placed[ask.job.id] = tuple(b.name for b in done.there)
            else:
                done = self._place_gangs(packer, ask, patterns)
            if ask.burst:
                alone = (
                    done.new[0] if ask.tasks == 1 and not done.left and not done.there and len(done.new) == 1 else None
                )
                said.append((ask, wording.of(ask, patterns, done), alone))
        for ask, words, alone in said:
            # Which offer comes first for a new node hangs on all the jobs that share it.
            times = self._times(alone.jobs) if alone is not None else 0
            own = times and self._times(job.id for job in ask.jobs)
            whose = "its machines" if own else _SHARED
            verdict, reason = wording.new_node(alone, times, whose) if alone is not None and times else words
            self._remarks += [Remark("placement", f"job:{job.id}", verdict, reason) for job in ask.jobs]
        releases = tuple(
            Release(claim.id, claim.pool, f"{claim.slot} is idle and no pending job needs it")
            for claim, found in room.idle
            if found is None or not found.used
        )
        return Target(
            wants=self._wants(packer),
            releases=releases,
            remarks=(*demand.remarks, *self._remarks),
            offers=self._offers,
            placed=self._placed,
            look_at=demand.look_at,
        )

    def _gangs(self, demand: Demand) -> frozenset[str]:
        """The words of claims' gangs whose job still waits and counts, and the jobs that nodes are bound to."""
        words = {claim.gang for claim in self._snapshot.claims if claim.gang} | set(self._snapshot.bound)
        if not words:
            return frozenset()
        waiting: set[str] = set()
        for ask in demand.asks:
            waiting.update((ask.gang(), *(job.id for job in ask.jobs)))
            if ask.job.array_tasks:
                prefix = ask.job.array_job_id or ask.job.id
                if any(word.startswith(prefix + "_") for word in words):
                    waiting.update(f"{prefix}_{task}" for task in task_ids(ask.job.array_tasks))
        return frozenset(words & waiting)

    def _place_gangs(self, packer: Packer, ask: Ask, patterns: list[Pattern]) -> Outcome:
        """Each task of an array of multi-node jobs is a gang of its own."""
        done = Outcome(left=ask.tasks)
        parts = list(zip(ask.jobs, patterns, strict=True))
        single = len(parts) == 1
        for pattern in patterns:
            pattern.left -= ask.tasks
        for task in ask.task_ids():
            if not done.left:
                break
            gang = ask.gang(task)
            if single and patterns[0].full and gang not in packer.reserved:
                continue
            one = place_gang(packer, gang, parts)
            done.stuck = done.stuck or one.stuck
            done.given_up = done.given_up or one.given_up
            if one.left:
                if single and not one.stuck and not one.given_up:
                    patterns[0].full = True
                done.lacking = one.lacking
                continue
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
        wants = [self._want([found]) for found in packer.later.bins if found.kind is Kind.NEW]
        for gang, bins in packer.gangs:
            alike: dict[tuple[str, str], list[Bin]] = {}
            for found in bins:
                alike.setdefault((found.pool, found.jobs[0]), []).append(found)
            wants += [self._want(some, gang) for some in alike.values()]
        return tuple(sorted(wants, key=lambda w: self._order[w.jobs[0]]))

    def _times(self, jobs: Iterable[str]) -> int:
        return wary(self._snapshot, jobs, self._spot_interruptions)

    def _want(self, bins: list[Bin], gang: str = "") -> Want:
        first = bins[0]
        jobs = tuple(dict.fromkeys(first.jobs))
        times, offers = self._times(jobs), self._offers[first.pool]
        steady = steady_first(offers) if times else offers
        whose = _SHARED if len(jobs) > 1 else "its machines"
        shown = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
        return Want(
            pool=first.pool,
            nodes=len(bins),
            cause=Cause.DEMAND,
            reason=f"{'jobs' if len(jobs) > 1 else 'job'} {shown}{why_steady(steady, times, whose)}",
            offers=steady,
            jobs=jobs,
            users=tuple(first.users),
            gang=gang,
            slots=tuple(b.name for b in bins),
            accounts=tuple(first.accounts),
        )
