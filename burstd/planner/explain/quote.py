"""What a job would meet if it were submitted now: each way to run it, with start, end, cost, and what selects it.

The job is put at its place into the queue of the last snapshot, and the very decision that the daemon takes says what
becomes of it, policies and budgets included. Another way is the same job with other options of sbatch: where a way is
said to be selected by some, the decision took it with these. Nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import isfinite

from burstd.domain.billing.costs import BudgetLine, cost_of
from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.job_history import requested_gpus
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.quote import Quote, QuotedWay, TimeRange, UsablePartition
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.job_requirements import dominant_share
from burstd.planner.explain.explain import unplanned_remark
from burstd.planner.explain.job_lookup import request_text
from burstd.planner.explain.what_if import assigned_nodes, helpful_changes, ready_s, relevant_part
from burstd.planner.forecast.outlook import job_outlooks
from burstd.planner.forecast.start_range import LEAST_S, site_start_range
from burstd.planner.offers.candidates import OfferCandidate, PoolCandidates, offer_candidates
from burstd.planner.offers.offers import BY_RULE

JOB_ID = "0"
"""Slurm gives it to no job."""
MIN_DECISIONS, MAX_DECISIONS = 3, 12
MAX_WORK = 60_000
"""Jobs, nodes and claims that may be looked at in all, beyond MIN_DECISIONS."""
_AGES_S = (60.0, 300.0, 900.0, 3600.0)
"""Policies may let a job wait before they start a machine: so old it is taken to be, if need be."""
_MARKETS = (False, True)
_FAR_S = 10 * 366 * 86400.0
"""What starts later is said not to start."""
NO_SITE_COSTS = SiteCosts()
_NOT_DECIDED = "not looked at: the queue and the nodes are too many for more in one quote; name it to sbatch"
_NUMBER = re.compile(rf"\bjob {JOB_ID}(?:\+[0-9]+)?\b(?!\.)")


def quote_jobs(
    snapshot: Snapshot,
    plan: Plan,
    jobs: Sequence[Job],
    usable: Collection[UsablePartition],
    decide: Callable[[Snapshot], Target],
    site_costs: SiteCosts = NO_SITE_COSTS,
    in_time: Callable[[], bool] = lambda: True,
) -> tuple[Quote, ...]:
    """One quote a job: several are components of a het job, for which only their own partitions are looked at.

    A job with an id is submitted already: its own row of the queue does not count.
    ``usable``: partitions that the user may name. ``site_costs`` are Tuning's. Of an array each figure is of its first
    task. ``in_time``: whether there is time for another look at the whole queue. Slurm must have been read.
    """
    slurm = snapshot.slurm
    if not isinstance(slurm, SlurmView):
        raise TypeError("Slurm could not be read")
    placed = _in_queue(snapshot.now, slurm, jobs)
    submitted = {(job.id, job.user) for job in jobs if job.id}
    others = [row for row in slurm.jobs if (row.id, row.user) not in submitted] if submitted else slurm.jobs
    whole = replace(slurm, jobs=(*others, *placed))
    full = replace(snapshot, slurm=whole, outlook={})
    part, seen = relevant_part(full, whole, plan, placed[0])
    work = len(seen.jobs) + len(seen.nodes) + len(snapshot.claims)
    left = min(MAX_DECISIONS, max(MIN_DECISIONS, MAX_WORK // work))
    named = {partition.name: partition for partition in usable}
    return tuple(
        _Quoter(full, part, job, asked, named, decide, site_costs, in_time, left).quote()
        for job, asked in zip(placed, jobs, strict=True)
    )


def _in_queue(now: float, slurm: SlurmView, jobs: Sequence[Job]) -> tuple[Job, ...]:
    """The jobs as the queue would show them: with the priority of what came last, of the same user where he waits.

    What came last has waited the least, as these.
    """
    first = jobs[0]
    waiting = [job for job in slurm.jobs if job.state is JobState.PENDING]
    alike = (
        [job for job in waiting if (job.user, job.account) == (first.user, first.account)]
        or [job for job in waiting if first.account and job.account == first.account]
        or waiting
    )
    priority = max(alike, key=lambda job: job.submitted).priority if alike else 0
    het = len(jobs) > 1
    return tuple(
        replace(
            job, id=f"{JOB_ID}+{offset}" if het else JOB_ID, het_job_id=JOB_ID if het else "", het_offset=offset,
            state=JobState.PENDING, submitted=now, eligible=now, reason="Resources", priority=priority, tasks=1,
        )
        for offset, job in enumerate(jobs)
    )  # fmt: skip


@dataclass(slots=True)
class _Quoter:
    """Quotes one job while there are decisions left."""

    full: Snapshot
    part: Snapshot
    job: Job
    asked: Job
    """The same with its own id, empty where it is not submitted, and all its tasks."""
    usable: Mapping[str, UsablePartition]
    decide: Callable[[Snapshot], Target]
    site_costs: SiteCosts
    in_time: Callable[[], bool]
    left: int
    run: Outlook = field(init=False)
    """How long it runs; nothing else of it counts."""
    failure: str = ""

    def __post_init__(self) -> None:
        (self.run,) = self._outlooks([self.job], ())

    def quote(self) -> Quote:
        job = self.job
        plan = self._plan(job)
        if plan is None:
            failed = Remark("explain", f"job:{job.id}", "unknown", self.failure)
            plan = Plan((), Target(remarks=(failed,)), (failed,))
        last = _last_remark(self.part, plan, job)
        ways = (*self._site_ways(plan), *self._cloud_ways(plan))
        return Quote(
            self.full.now,
            request_text(job),
            job,
            self.run.run_s,
            self.run.run_basis,
            last.verdict,
            last.by,
            _plain(last.reason),
            ways,
            tuple(line for line in plan.target.budgets if _pays(line, job)),
            () if any(way.taken for way in ways) else self._changes(plan),
        )

    def _changes(self, plan: Plan) -> tuple[OptionChange, ...]:
        found = helpful_changes(self.part, plan, self.job.id, self.decide)
        return tuple(replace(change, command="") for change in found)

    # The site's own nodes.

    def _site_ways(self, plan: Plan) -> list[QuotedWay]:
        """The site's partitions of the job, or else those where it could run."""
        own = {partition for node in self._site_nodes() for partition in node.partitions}
        if asked := tuple(p for p in self.job.partitions if p in own):
            (way,) = self._ways_on_site([self._job_in(asked)])
            # No machine is started for it as it is: it is the site's nodes that start it.
            return [way if self._serving_pools(self.job, plan) else replace(way, options="")]
        if self.job.het_job_id:
            return []
        others = [self._job_in((partition,)) for partition in sorted(own & self.usable.keys())]
        alone = self._outlooks(others, ())
        return self._ways_on_site([job for job, one in zip(others, alone, strict=True) if isfinite(one.local_start)])

    def _site_nodes(self) -> Iterator[Node]:
        slots = {slot for pool in self.full.pools.values() for slot in pool.slots}
        nodes = self.full.slurm.nodes.values() if isinstance(self.full.slurm, SlurmView) else ()
        return (node for node in nodes if node.name not in slots)

    def _ways_on_site(self, jobs: Sequence[Job]) -> list[QuotedWay]:
        """Of the job in these partitions: two looks at the queue for all of them."""
        before = self._before()
        behind_all = self._outlooks(jobs, before) if jobs and self.in_time() else None
        size = _size(self.job)
        no_larger = [row for row in before if row.state is not JobState.PENDING or _size(row) <= size]
        soonest = self._outlooks(jobs, no_larger) if behind_all and self.in_time() else None
        if behind_all is None or soonest is None:
            return [QuotedWay("", job.partitions, self._options(job.partitions), reason=_NOT_DECIDED) for job in jobs]
        looks = zip(jobs, soonest, behind_all, strict=True)
        return [self._way_on_site(job, first.local_start, last.local_start) for job, first, last in looks]

    def _way_on_site(self, job: Job, soonest: float, behind_all: float) -> QuotedWay:
        partitions, options = job.partitions, self._options(job.partitions)
        if not behind_all - self.full.now < _FAR_S:
            when = " within ten years" if isfinite(behind_all) else ""
            reason = f"no node of the site in {', '.join(partitions)} can run it{when}"
            return QuotedWay("", partitions, options, reason=reason)
        start = site_start_range(self.full.now, soonest, behind_all)
        way = QuotedWay("", partitions, options, job.nodes, start=start, end=self._end(job, start), taken=True)
        return way if (hour := self._site_hour(job)) is None else self._with_site_cost(way, job, *hour)

    def _with_site_cost(self, way: QuotedWay, job: Job, price: Decimal, currency: str) -> QuotedWay:
        expected, limit_s = cost_of(price, self._run_of(job).run_s), job.time_limit_s
        worst = cost_of(price, limit_s) if limit_s else None
        return replace(way, expected=expected, worst=worst, currency=currency)

    def _site_hour(self, job: Job) -> tuple[Decimal, str] | None:
        """What an hour of the job costs at most on nodes of its partitions, by the site's prices; None: it has none."""
        shares: dict[tuple[object, ...], Fraction] = {}
        prices: set[tuple[Decimal, str]] = set()
        for node in self._site_nodes() if self.site_costs.groups else ():
            if (
                set(node.partitions).isdisjoint(job.partitions)
                or (group := self.site_costs.group_of(node.name)) is None
            ):
                continue
            shape = node.cpus, node.memory_mib, node.gres
            share = shares.setdefault(shape, dominant_share(job, node, job.nodes))
            if share <= 1:
                gpus = sum(gres.count for gres in node.gres if gres.name == "gpu")
                prices.add((group.hour.of_node(gpus).full * _decimal(share) * job.nodes, group.hour.currency))
        return max(prices, key=lambda price: self.full.rates.comparable(*price), default=None)

    # Machines of clouds.

    def _cloud_ways(self, plan: Plan) -> Iterator[QuotedWay]:
        """``plan``: of the job as it is."""
        job = self.job
        burst = {partition for pool in self.full.pools.values() for partition in pool.partitions}
        asked = tuple(p for p in job.partitions if p in burst)
        if asked == job.partitions:
            yield from self._partition_ways(job, plan)
        elif asked or not job.het_job_id:
            for partitions in (asked,) if asked else ((p,) for p in sorted(burst & self.usable.keys())):
                other = self._job_in(partitions)
                if (found := self._plan(other)) is None:
                    yield QuotedWay("", partitions, self._options(partitions), reason=_NOT_DECIDED)
                else:
                    yield from self._partition_ways(other, found)

    def _partition_ways(self, job: Job, plan: Plan) -> Iterator[QuotedWay]:
        options = self._options(job.partitions)
        age_s, plan = self._old_enough(job, plan)
        pools = self._candidates(job, plan)
        able = {one.pool: self.part.pools[one.pool] for one in pools if not one.lacks}
        served = self._serving_pools(job, plan)
        for one in pools:
            if one.lacks:
                yield QuotedWay(one.pool, job.partitions, options, reason=f"a node lacks {one.lacks}")
            elif one.pool in served or not served:
                yield from self._pool_ways(job, plan, options, age_s, one)
            elif (found := _naming_option(job, one.pool, able)) is None:
                reason = f"burstd takes pool {', '.join(sorted(served))} first, and no feature names this one alone"
                yield QuotedWay(one.pool, job.partitions, options, reason=reason)
            elif (other := self._plan(_older(found[0], age_s))) is None:
                yield QuotedWay(one.pool, found[0].partitions, _joined(options, found[1]), reason=_NOT_DECIDED)
            else:
                (own,) = (c for c in self._candidates(found[0], other) if c.pool == one.pool)
                yield from self._pool_ways(found[0], other, _joined(options, found[1]), age_s, own)

    def _old_enough(self, job: Job, plan: Plan) -> tuple[float, Plan]:
        """Since when it waits as policies want it, and the plan of then; 0: now, or none of _AGES_S is enough."""
        last = _last_remark(self.part, plan, job)
        if last.verdict == "wait" and last.by not in ("demand", "placement"):
            for age_s in _AGES_S:
                older = self._plan(_older(job, age_s))
                if older is None:
                    break
                if self._serving_pools(job, older):
                    return age_s, older
        return 0.0, plan

    def _pool_ways(self, job: Job, plan: Plan, options: str, age_s: float, pool: PoolCandidates) -> Iterator[QuotedWay]:
        """Nodes that are there, or the best offer of each market; where there is none, why."""
        wants = [want for want in plan.target.wants if job.id in want.jobs]
        given = assigned_nodes(plan.target, job)
        there = [c for c in self.part.claims if c.slot in given and c.pool == pool.pool]
        names = tuple(claim.slot for claim in there)
        if there and not wants:
            yield self._open_way(job, pool.pool, options, age_s, there[0].offer, (), names)
            return
        if not wants:
            last = _last_remark(self.part, plan, job)
            yield QuotedWay(pool.pool, job.partitions, options, reason=_plain(last.reason), by=last.by)
            return
        for spot in _MARKETS:
            offers = [c for c in pool.candidates if c.offer is not None and c.offer.spot is spot]
            usable = [c for c in offers if not c.rejected_because]
            best = next((c for c in usable if c.chosen), usable[0] if usable else None)
            if best is not None and best.offer is not None:
                if best.chosen:
                    yield self._open_way(job, pool.pool, options, age_s, best.offer, wants, names)
                else:
                    yield self._unchosen_way(job, pool.pool, options, age_s, best.offer, best.note, wants)
            elif (refused := _first_refused(offers)) is not None:
                why, by = _plain(refused.rejected_because), refused.rejected_by
                yield QuotedWay(pool.pool, job.partitions, options, offer=refused.offer, reason=why, by=by)

    def _unchosen_way(
        self, job: Job, pool: str, options: str, age_s: float, offer: Offer, note: str, wants: Sequence[Want]
    ) -> QuotedWay:
        """An offer of the other market than burstd's choice. A job that must not be requeued may be kept off spot."""
        if not offer.spot and job.requeue:
            firm = replace(job, requeue=False)
            if (plan := self._plan(_older(firm, age_s))) is not None:
                own = [want for want in plan.target.wants if job.id in want.jobs and want.pool == pool]
                if own and own[0].offers and own[0].offers[0].id == offer.id:
                    return self._open_way(firm, pool, _joined(options, "--no-requeue"), age_s, offer, own, ())
        way = self._open_way(job, pool, options, age_s, offer, wants, ())
        return replace(way, taken=False, reason=note or "after the one that burstd takes")

    def _open_way(
        self, job: Job, pool: str, options: str, age_s: float, offer: Offer, wants: Sequence[Want], names: Sequence[str]
    ) -> QuotedWay:
        shape, now = self.part.pools[pool].shape, self.part.now
        nodes = sum(want.nodes for want in wants) + len(names)
        p10, p50, p90 = (age_s + ready_s(self.part, wants, names, share) for share in (0.1, 0.5, 0.9))
        alone = any(want.dedicated or want.reserved for want in wants)
        if wants and not alone and any(c.pool == pool and self.part.accepts_any_job(c) for c in self.part.claims):
            # A job may end on an open machine meanwhile.
            p10 = age_s
        start = TimeRange(now + p10, now + p50, now + p90 + LEAST_S + (offer.capacity_wait_s if wants else 0.0))
        share = Decimal(1) if alone else _decimal(dominant_share(job, shape, nodes))
        boot_s = p50 - age_s if wants else 0.0
        boot = cost_of(offer.price * nodes, boot_s) + self._boot_on_record(names, now + p50 - age_s)
        run_s, limit_s = self._run_of(job).run_s, job.time_limit_s
        reserved = [r.amount for want in wants for r in want.reserved if r.offer == offer.id]
        return QuotedWay(
            pool,
            job.partitions,
            options,
            nodes,
            tuple(names),
            offer,
            start,
            self._end(job, start),
            boot + cost_of(offer.price * nodes * share, run_s),
            max(reserved) * nodes
            if reserved
            else cost_of(offer.price * nodes, limit_s + p90 - age_s)
            if limit_s
            else None,
            offer.currency,
            taken=True,
        )

    def _boot_on_record(self, names: Collection[str], ready: float) -> Decimal:
        """Of machines that boot for the submitted job until then: its part, as the bill charges it, for each task."""
        own = [c for c in self.part.claims if c.slot in names and c.in_service_from is None and self.asked.id in c.jobs]
        parts = (cost_of(c.offer.price, ready - (c.billed_from or self.part.now)) / len(c.jobs) for c in own)
        return sum(parts, Decimal(0)) / self.asked.tasks

    # What all need.

    def _plan(self, job: Job) -> Plan | None:
        """What the decision makes of the job in this form; None: there are no decisions left, or a policy failed."""
        slurm = self.part.slurm
        if self.left <= 0 or not isinstance(slurm, SlurmView):
            return None
        self.left -= 1
        jobs = tuple(job if row.id == job.id else row for row in slurm.jobs)
        target = self.decide(replace(self.part, slurm=replace(slurm, jobs=jobs)))
        if target.failed_policies:
            # A policy that overruns its time would do so again.
            self.left, failed = 0, target.failed_policies[0]
            self.failure = f"policy {failed.name} failed: {failed.error}"
            return None
        return Plan((), target, target.remarks)

    def _before(self) -> list[Job]:
        """What runs, and what waits before the job."""
        slurm, rank = self.full.slurm, (-self.job.priority, self.job.submitted)
        rows = slurm.jobs if isinstance(slurm, SlurmView) else ()
        return [
            row for row in rows
            if row.id != self.job.id and (row.state is not JobState.PENDING or (-row.priority, row.submitted) <= rank)
        ]  # fmt: skip

    def _outlooks(self, forms: Sequence[Job], others: Sequence[Job]) -> list[Outlook]:
        """What is expected of each form of the job behind these others, as if no other form were there."""
        slurm = self.full.slurm
        if not isinstance(slurm, SlurmView):
            raise TypeError("Slurm could not be read")
        named = [replace(job, id=f"{self.job.id}/{number}") for number, job in enumerate(forms)]
        ids = {job.id for job in named}
        whole = job_outlooks(replace(self.full, slurm=replace(slurm, jobs=(*others, *named))))
        found = whole.assuming(lambda job_id, _: job_id in ids)
        return [found[job.id] for job in named]

    def _run_of(self, job: Job) -> Outlook:
        """How long it runs in this form."""
        if job.time_limit_s == self.job.time_limit_s:
            return self.run
        return self._outlooks([job], ())[0]

    def _job_in(self, partitions: tuple[str, ...]) -> Job:
        """The job with these partitions and what the first of them gives it."""
        if partitions == self.job.partitions:
            return self.job
        given = self.usable.get(partitions[0])
        return replace(given.job_in(self.job) if given else self.job, partitions=partitions)

    def _candidates(self, job: Job, plan: Plan) -> tuple[PoolCandidates, ...]:
        return offer_candidates(self.part, plan, job, None)

    def _serving_pools(self, job: Job, plan: Plan) -> set[str]:
        names = assigned_nodes(plan.target, job)
        there = {claim.pool for claim in self.part.claims if claim.slot in names}
        return {want.pool for want in plan.target.wants if job.id in want.jobs} | there

    def _options(self, partitions: tuple[str, ...]) -> str:
        return "" if partitions == self.job.partitions else f"-p {','.join(partitions)}"

    def _end(self, job: Job, start: TimeRange) -> TimeRange | None:
        """None: nothing tells how long it runs."""
        run = self._run_of(job)
        if runs := self.full.history.similar_jobs(job).spread():
            # Of four the middle two: the mean may lie beyond all, as few run very long.
            return start.plus(runs[0], (runs[1] + runs[2]) / 2, runs[-1])
        return None if run.run_basis == "none" else start.plus(run.run_s, run.run_s, run.run_s)


def _size(job: Job) -> tuple[int, int]:
    return requested_gpus(job), job.cpus


def _decimal(share: Fraction) -> Decimal:
    return Decimal(share.numerator) / share.denominator


def _joined(*options: str) -> str:
    return " ".join(filter(None, options))


def _older(job: Job, age_s: float) -> Job:
    return replace(job, submitted=job.submitted - age_s, eligible=job.eligible - age_s) if age_s else job


def _last_remark(snapshot: Snapshot, plan: Plan, job: Job) -> Remark:
    found = next((r for r in reversed(plan.remarks) if r.subject == f"job:{job.id}"), None)
    return found or unplanned_remark(snapshot, plan, job)


def _plain(reason: str) -> str:
    """Without the job's number, which it has not."""
    return _NUMBER.sub("the job", reason)


def _first_refused(offers: Sequence[OfferCandidate]) -> OfferCandidate | None:
    """Those that the pool's rules leave out say nothing."""
    return next((c for c in offers if c.rejected_because != BY_RULE), None)


def _naming_option(job: Job, pool: str, able: Mapping[str, Pool]) -> tuple[Job, str] | None:
    """The job with one feature more, which of these pools only this one has, and its words; None: there is none."""
    if any(letter in job.constraint for letter in "|[(*"):
        return None
    others = {name: other for name, other in able.items() if name != pool}
    for feature in sorted(able[pool].shape.features):
        if not any(feature in other.shape.features for other in others.values()):
            constraint = "&".join(filter(None, (job.constraint, feature)))
            words = f"-C '{constraint}'" if "&" in constraint else f"-C {constraint}"
            return replace(job, constraint=constraint), words
    return None


def _pays(line: BudgetLine, job: Job) -> bool:
    return (line.kind, line.name) in (("project", job.account), ("user", job.user))
