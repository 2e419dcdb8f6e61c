"""The gauges: what the last snapshot and plan say, as numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from burstd.api.routers.status import open_breakers
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import Pool
from burstd.domain.plan import Plan
from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.metrics.families import OTHER, Labels, Values
from burstd.planner.demand.pending_reasons import PENDING_REASONS, pending_reason
from burstd.planner.demand.request import PoolFit, RequestIndex
from burstd.planner.placement.equivalence_class import pool_fit
from burstd.runtime.precedence import UNDISTURBED, DecisionPrecedence

STARTING = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY})
"""States of claims that are to become nodes."""
NO_POOL = "none"
"""The pool of a job that no pool fits, and of nodes that are in none."""
_FAMILIES_OF_REASONS = ("Assoc", "QOS", "Max")
"""Slurm has dozens of limits whose names begin so; they count together."""


Join = Callable[[float, float], float]
"""How values are joined whose labels become the same."""


_JOBS_AT_A_TIME = 500


def snapshot_figures(
    snapshot: Snapshot, plan: Plan, precedence: DecisionPrecedence = UNDISTURBED
) -> Iterator[tuple[str, Values, Join]]:
    """Each gauge with its values by labels."""
    claims = all_claims(snapshot)
    jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    yield "burstd_slurm_up", {(): float(isinstance(snapshot.slurm, SlurmView))}, _lowest
    clouds: Values = {(name,): float(not isinstance(c.instances, Unavailable)) for name, c in snapshot.clouds.items()}
    yield "burstd_provider_up", clouds, _lowest
    count: Counter[Labels] = Counter((c.pool, c.offer.provider, c.offer.market, c.state.value) for c in claims)
    yield "burstd_claims", count, _add
    yield "burstd_slots", {(pool.name,): len(pool.slots) for pool in snapshot.pools.values()}, _add
    yield "burstd_starting_oldest_seconds", _oldest_start(snapshot), _highest
    breakers = {_breaker_labels(breaker.key): 1.0 for breaker in open_breakers(snapshot)}
    yield "burstd_breaker_open", breakers, _highest
    pending, oldest = _pending(snapshot, precedence.slices(jobs, _JOBS_AT_A_TIME))
    yield "burstd_pending_jobs", pending, _add
    yield "burstd_pending_oldest_seconds", oldest, _highest
    yield "burstd_cost_per_hour", _cost_per_hour(snapshot, claims), _add
    yield "burstd_budget_used_ratio", _budgets(plan.target.budgets), _highest
    idle: Counter[Labels] = Counter({(name,): 0 for name in snapshot.pools})
    idle.update((claim.pool,) for claim in idle_claims(snapshot, {S.IN_SERVICE}))
    yield "burstd_idle_machines", idle, _add
    gpus, cost = _idle_gpus(snapshot, plan)
    yield "burstd_idle_gpus", gpus, _add
    yield "burstd_idle_gpus_cost_per_hour", cost, _add
    projects, shares = snapshot.projects.projects, plan.target.shares
    yield "burstd_quota_gpus", {(name,): float(project.quota) for name, project in projects.items()}, _add
    yield "burstd_quota_used", {(name,): float(share.running) for name, share in shares.items()}, _add
    yield "burstd_quota_fair", {(name,): float(share.share) for name, share in shares.items()}, _add


def _add(one: float, other: float) -> float:
    return one + other


def _highest(one: float, other: float) -> float:
    return max(one, other)


def _lowest(one: float, other: float) -> float:
    return min(one, other)


def all_claims(snapshot: Snapshot) -> tuple[Claim, ...]:
    """All that are not GONE, whatever they are for."""
    return (*snapshot.claims, *snapshot.storage_claims, *snapshot.quarantined_claims)


def idle_claims(snapshot: Snapshot, states: Collection[S]) -> Iterator[Claim]:
    """Claims in these states whose nodes have no job, as far as Slurm can be read."""
    if isinstance(snapshot.slurm, SlurmView):
        nodes = snapshot.slurm.nodes
        for claim in snapshot.claims:
            if claim.state in states and (node := nodes.get(claim.slot)) is not None and not node.busy:
                yield claim


def _idle_gpus(snapshot: Snapshot, plan: Plan) -> tuple[Values, Values]:
    """How many, and what they cost, by pool; those of the site's own nodes under NO_POOL."""
    pools = {claim.slot: claim.pool for claim in snapshot.claims} if plan.idle_gpus else {}
    gpus: Counter[Labels] = Counter({(name,): 0 for name in snapshot.pools})
    cost: defaultdict[Labels, float] = defaultdict(float)
    for node in (node for job in plan.idle_gpus for node in job.nodes):
        pool = pools.get(node.node, NO_POOL)
        gpus[pool,] += node.gpus
        if node.cost_per_hour:
            cost[pool, node.currency] += float(node.cost_per_hour)
    return gpus, cost


def _oldest_start(snapshot: Snapshot) -> Values:
    oldest: dict[Labels, float] = {(name,): 0.0 for name in snapshot.pools}
    for claim in snapshot.claims:
        # Of one that was a node before, ``created`` is of that time.
        if claim.state in STARTING and claim.in_service_from is None and not claim.reused_from:
            oldest[claim.pool,] = max(oldest.get((claim.pool,), 0.0), snapshot.now - claim.created)
    return oldest


def _breaker_labels(key: str) -> Labels:
    provider, _, zone, instance_type, *_ = (*key.split("/"), "*", "*", "*", "*")
    return provider, instance_type, zone


def _cost_per_hour(snapshot: Snapshot, claims: Sequence[Claim]) -> Values:
    still_billed = snapshot.still_billed()
    found: defaultdict[Labels, float] = defaultdict(float)
    for claim in claims:
        if claim.billed_from is not None and (claim.billed_until is None or claim.id in still_billed):
            found[claim.pool, claim.offer.provider, claim.offer.currency] += float(claim.offer.price)
    return found


def _budgets(lines: Sequence[BudgetLine]) -> Values:
    return {
        (f"{line.kind}:{line.name}" if line.kind else "site",): float((line.spent + line.committed) / line.limit)
        if line.limit
        else 1.0
        for line in lines
        if line.kind != "user" and not line.fault
    }


def reason_label(reason: str) -> str:
    """A pending reason of Slurm's by its name in the table of reasons; ``other`` where it is not there."""
    name = reason.strip("() ").partition(",")[0]
    if name in PENDING_REASONS:
        return name or "None"
    return next((f"{family}*" for family in _FAMILIES_OF_REASONS if name.startswith(family)), OTHER)


def _pending(snapshot: Snapshot, jobs: Iterable[Job]) -> tuple[Values, Values]:
    """Jobs by pool and reason, and by pool the longest wait of those that more nodes may start."""
    pool_of_job = _PoolOfJob(snapshot.pools)
    count: Counter[Labels] = Counter()
    oldest: dict[Labels, float] = {(name,): 0.0 for name in snapshot.pools}
    reasons: dict[str, tuple[str, bool]] = {}
    for job in jobs:
        if job.state not in PENDING_STATES or (pool := pool_of_job(job)) is None:
            continue
        if (known := reasons.get(job.reason)) is None:
            known = reasons[job.reason] = (reason_label(job.reason), pending_reason(job.reason).needs_nodes)
        label, needs_nodes = known
        count[pool, label] += job.tasks
        if needs_nodes:
            waited = snapshot.now - (job.eligible or job.submitted)
            oldest[pool,] = max(oldest.get((pool,), 0.0), waited)
    return count, oldest


class _PoolOfJob:
    """The first pool of a job's partitions whose nodes fit it."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        self._pools = pools
        self._requests = RequestIndex()
        self._by_partitions: dict[tuple[str, ...], tuple[Pool, ...]] = {}

    def __call__(self, job: Job) -> str | None:
        """NO_POOL where none fits; None: its partitions have none."""
        pools = self._by_partitions.get(job.partitions)
        if pools is None:
            pools = tuple(p for p in self._pools.values() if not set(p.partitions).isdisjoint(job.partitions))
            self._by_partitions[job.partitions] = pools
        if not pools:
            return None
        request = self._requests.request_for(job)
        return next((pool.name for pool in pools if isinstance(pool_fit(request, pool), PoolFit)), NO_POOL)
