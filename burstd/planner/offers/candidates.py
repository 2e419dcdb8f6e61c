"""Every pool and offer as a way to start a job, each with why it is taken or not and what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from burstd.domain.billing.costs import cost_of
from burstd.domain.billing.rates import Rates
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import DroppedWant, ExcludedOffer, Want
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.shape import SHARD, Shape, gpus_of, split_shards
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.feature_expression import features_text
from burstd.planner.demand.job_requirements import resource_requirements
from burstd.planner.offers.offers import OfferEvaluation, evaluate_offers


@dataclass(frozen=True, slots=True)
class JobCost:
    """What the machines for one job would cost, in the offer's currency; machines that it shares are counted whole.

    Where it asks for shards, these are what counts.
    """

    nodes: int
    expected: Decimal | None
    """If it runs as long as is expected; None: nothing is."""
    worst: Decimal | None
    """If it runs to its time limit; None: it has none."""
    of_shards: bool = False


@dataclass(frozen=True, slots=True)
class OfferCandidate:
    """One offer that was looked at, or a provider whose offers could not be read."""

    subject: str
    """The offer's id, or the provider's name."""
    offer: Offer | None
    rejected_because: str
    """Why it is not used; empty: it may be."""
    chosen: bool
    """A want of the plan takes it first for this job."""
    rejected_by: str = ""
    """The policy that refuses it; empty: none does."""
    note: str = ""
    """Why it comes after the one that is chosen; of the one that is chosen why others would come first."""
    cost: JobCost | None = None


@dataclass(frozen=True, slots=True)
class PoolCandidates:
    """One pool as a way to start the job."""

    pool: str
    lacks: str
    """Why it is none; empty: it is one."""
    slots: int
    free: int
    """Slots free when the plan was made."""
    shards: int
    """Shards of a node: a shard costs such a part of its price; 0: it has none."""
    gpu_memory_limit: str = ""
    """What keeps jobs to their shards' part of a GPU's memory there; empty: it has no shards."""
    candidates: tuple[OfferCandidate, ...] = ()
    """Usable ones first, best first; none where it lacks something."""


def offer_candidates(snapshot: Snapshot, plan: Plan, job: Job, outlook: Outlook | None) -> tuple[PoolCandidates, ...]:
    """One for each pool that serves a partition of the job's."""
    found: list[PoolCandidates] = []
    for name, pool in snapshot.pools.items():
        if set(pool.partitions).isdisjoint(job.partitions):
            continue
        nodes = _nodes(job, pool)
        lacks = nodes if isinstance(nodes, str) else ""
        verdict = _PlanVerdict(plan, job, pool, snapshot.rates)
        cost = None if isinstance(nodes, str) or verdict.never_by else _CostEstimator(nodes, job, outlook, pool.shape)
        found.append(
            PoolCandidates(
                pool=name,
                lacks=lacks,
                slots=len(pool.slots),
                free=len(snapshot.free_slots(pool)),
                shards=sum(gpu.shards for gpu in split_shards(pool.shape.gres)),
                gpu_memory_limit=pool.gpu_memory_limit if pool.shape.shards_per_gpu() else "",
                candidates=()
                if lacks
                else tuple(verdict.candidate(judged, cost) for judged in evaluate_offers(snapshot, pool)),
            )
        )
    return tuple(found)


def _nodes(job: Job, pool: Pool) -> int | str:
    """How many nodes of the pool it takes, or what one of them lacks."""
    wanted = resource_requirements(job)
    if wanted.constraint.problem:
        return wanted.constraint.problem
    if not wanted.constraint.may_use(pool.shape.features):
        return features_text(job.constraint)
    return wanted.nodes_needed(pool.shape)


@dataclass(frozen=True, slots=True)
class _CostEstimator:
    nodes: int
    job: Job
    outlook: Outlook | None
    shape: Shape

    def estimate(self, offer: Offer) -> JobCost:
        of_shards = shards_price(offer.price, self.job, self.shape)
        price = offer.price if of_shards is None else of_shards
        whole, limit = price * self.nodes, self.job.time_limit_s
        run = self.outlook.run_s if self.outlook is not None else 0.0
        return JobCost(
            self.nodes,
            cost_of(whole, run) if run else None,
            cost_of(whole, limit) if limit else None,
            of_shards is not None,
        )


def shards_price(price: Decimal, job: Job, shape: Shape) -> Decimal | None:
    """What an hour of a job's shards costs on one node of this shape and price; None: it asks for none.

    A GPU's part of the price, divided by its shards.
    """
    asked = [g for g in (*job.gres_per_node, *job.gres_per_job) if g.name == SHARD]
    per_gpu = shape.shards_per_gpu()
    if not asked or not per_gpu:
        return None
    part = gpus_of(asked, per_gpu) / shape.gpus()
    return price * part.numerator / part.denominator


class _PlanVerdict:
    """What the plan says of the offers of one pool for one job."""

    def __init__(self, plan: Plan, job: Job, pool: Pool, rates: Rates) -> None:
        target = plan.target
        self._rates = rates
        wants = [want for want in target.wants if _is_for(want, job, pool)]
        lost = [refused for refused in target.dropped_wants if _is_for(refused.want, job, pool)]
        self._chosen = next((want.offers[0] for want in wants if want.offers), None)
        self._left_out = {out.offer: out for want in (*(r.want for r in lost), *wants) for out in want.excluded_offers}
        self._refused = lost[-1] if lost and not wants else None
        self._refusal_reason = _reason_refused(plan, job, self._refused)
        last = next((r for r in reversed(plan.remarks) if r.subject == f"job:{job.id}"), None)
        self.never_by = last.by if last is not None and last.verdict == "impossible" else ""
        """Who says that the job is impossible; empty: nobody does."""
        self._allowed = {offer.id for offer in target.offers.get(pool.name, ())}

    def candidate(self, evaluation: OfferEvaluation, costs: _CostEstimator | None) -> OfferCandidate:
        offer = evaluation.offer
        by, refused = (
            ("", evaluation.rejected_because)
            if evaluation.rejected_because or offer is None
            else self._rejection(offer)
        )
        chosen = not refused and offer is not None and self._chosen is not None and offer.id == self._chosen.id
        note = "" if refused or offer is None else evaluation.last_because or ("" if chosen else self._note(offer))
        cost = (
            costs.estimate(offer)
            if costs is not None and offer is not None and not evaluation.rejected_because
            else None
        )
        return OfferCandidate(evaluation.subject, offer, refused, chosen, by, note, cost)

    def _rejection(self, offer: Offer) -> tuple[str, str]:
        out: ExcludedOffer | None = self._left_out.get(offer.id)
        if out is not None:
            return out.by, out.reason or "excluded"
        if self._refused is not None:
            return self._refused.by, self._refusal_reason
        if self.never_by:
            return self.never_by, "the job is impossible as it is"
        return "", "" if offer.id in self._allowed else "excluded from this pool by a policy"

    def _note(self, offer: Offer) -> str:
        first = self._chosen
        if first is None:
            return ""
        if self._rates.dearer(offer, first):
            return "more expensive than the chosen one"
        return "spot, after on-demand" if offer.spot and not first.spot else "after the chosen one"


def _is_for(want: Want, job: Job, pool: Pool) -> bool:
    return want.pool == pool.name and job.id in want.jobs


def _reason_refused(plan: Plan, job: Job, refused: DroppedWant | None) -> str:
    if refused is None:
        return ""
    said = [r.reason for r in plan.remarks if r.by == refused.by and r.subject == f"job:{job.id}"]
    return said[-1] if said else "no node for this job"


def preferred_candidate(pools: Sequence[PoolCandidates]) -> OfferCandidate | None:
    """The offer that is chosen, or the first that may be used, or that only a policy refuses; None: there is none."""
    usable = [c for pool in pools for c in pool.candidates if c.cost is not None]
    return min(usable, key=lambda c: (not c.chosen, bool(c.rejected_because)), default=None)
