"""A request in one world: which pools can run it, and what was found out about it while jobs are placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from decimal import Decimal

from burstd.domain.claim import USABLE
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.feature_expression import Expression, features_text, node_counts
from burstd.planner.demand.job_requirements import NodeShare, ResourceRequirements
from burstd.planner.demand.request import PoolFit, ResourceRequest
from burstd.planner.placement.bins import Bin, BinFactory, BinKind, NodeTraits, shape_of


@dataclass(frozen=True, slots=True)
class EligiblePool:
    """A pool whose slots can run the jobs of the class."""

    pool: Pool
    nodes: int
    """How many empty ones it takes."""
    share: NodeShare
    """What each of them gives."""
    shares_per_node: int
    """How many shares fit on an empty one."""
    price: Decimal | None
    """Of the best offer, for an hour, as it is compared; None: there is no offer now."""
    price_differs: bool = False
    """It cannot be compared with those of other pools, for want of a rate: the pool comes after them, at price 0."""

    @property
    def takes_single_node_jobs(self) -> bool:
        """A new slot of it takes one of one node."""
        return self.price is not None and self.nodes == 1 and self.shares_per_node > 0


@dataclass(slots=True, eq=False)
class NodeGroup:
    """So many of the nodes of a way: those for which the expression holds. ``cursors`` as in EquivalenceClass."""

    count: int
    expression: Expression
    cursors: list[int] = field(default_factory=lambda: [0, 0, 0])


@dataclass(slots=True, eq=False)
class GangLayout:
    """One way to start a job of several nodes: in one partition, by one alternative of the constraint."""

    partition: str
    share: NodeShare
    node_groups: tuple[NodeGroup, ...]


@dataclass(slots=True, eq=False)
class EquivalenceClass:
    """One request, and what was found out about it while placing. Never leaves the planner."""

    request: ResourceRequest
    eligible_pools: tuple[EligiblePool, ...]
    """Cheapest node first; those without an offer last."""
    lacking_by_pool: Mapping[str, str]
    """What each other pool of its partitions lacks, by the pool's name."""
    is_gang: bool
    """It takes more than one node."""
    names_nodes: bool
    """It names nodes, or excludes some."""
    remaining: int = 0
    """How many of it are still to be placed."""
    cursors: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Index, in each of the packer's rows, of the first bin that may have room for one of it: room only shrinks."""
    exhausted: bool = False
    """No room was found for one of it; there will be none for the next."""
    exhausted_at: int = 0
    """The place in the queue of the first for which there was none."""
    pool_choices: list[tuple[int, list[EligiblePool], EligiblePool]] = field(default_factory=list)
    """For each new slot, where several pools would do: how many were left, the pools, and the one that was chosen."""
    shift: int = 0
    """How many more there are now than at first: what the choices have for the number left is without them."""
    rejection: tuple[str, str] | None = None
    """Verdict and reason, once one of it was left out."""
    layouts: tuple[GangLayout, ...] = ()
    _accepted: dict[NodeTraits, bool] = field(default_factory=dict)

    @property
    def requirements(self) -> ResourceRequirements:
        """What one of it needs."""
        return self.request.requirements

    @property
    def partitions(self) -> tuple[str, ...]:
        """Where it may run."""
        return self.request.partitions

    @property
    def excluded_nodes(self) -> frozenset[str]:
        """Nodes that it must not run on."""
        return self.request.excluded_nodes

    @property
    def required_nodes(self) -> frozenset[str]:
        """Nodes that it asks for."""
        return self.request.required_nodes

    def allows_node(self, name: str) -> bool:
        """True where the job may run on the node of this name."""
        return self.request.allows_node(name)

    def accepts_bin(self, found: Bin) -> bool:
        """True where partition, features, name, users and who pays are right for a job of one node."""
        if found.payer and found.payer != self.request.payer:
            return False
        if found.users and not found.admits_users(self.request):
            return False
        if found.gpu_jobs_only and not self.requirements.asks_for_gpus:
            return False
        return self._accepts_place(found)

    def kept_off_by_users(self, found: Bin) -> bool:
        """True where nothing but the users of its jobs keeps a job of one node off the bin."""
        return not found.admits_users(self.request) and self._accepts_place(found)

    def _accepts_place(self, found: Bin) -> bool:
        known = self._accepted.get(found.traits)
        if known is None:
            matches = self.requirements.constraint.met_by_one_node
            traits = found.traits
            known = self._accepted[traits] = not traits.partitions.isdisjoint(self.partitions) and matches(
                traits.features
            )
        return known and (not self.names_nodes or self.allows_node(found.name))


class EquivalenceClasses:
    """The equivalence classes of one snapshot."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, offers: Mapping[str, tuple[Offer, ...]]) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._offers = offers
        self.by_request: dict[ResourceRequest, EquivalenceClass] = {}
        self._site_shapes: Counter[tuple[tuple[str, ...], Shape]] | None = None

    def class_of(self, request: ResourceRequest) -> EquivalenceClass:
        """The request's equivalence class."""
        found = self.by_request.get(request)
        if found is None:
            found = self.by_request[request] = self._new_class(request)
        return found

    def _new_class(self, request: ResourceRequest) -> EquivalenceClass:
        wanted = request.requirements
        fitting: list[tuple[Pool, PoolFit]] = []
        lacking_by_pool: dict[str, str] = {}
        for pool in self._snapshot.pools.values():
            if set(pool.partitions).isdisjoint(request.partitions):
                continue
            fit = pool_fit(request, pool)
            if isinstance(fit, str):
                lacking_by_pool[pool.name] = fit
                continue
            fitting.append((pool, fit))
        eligible_pools = self._eligible_pools(fitting)
        several = wanted.nodes > 1 or wanted.constraint.min_nodes > 1
        gang = several or (bool(eligible_pools) and all(route.nodes > 1 for route in eligible_pools))
        return EquivalenceClass(
            request,
            eligible_pools,
            lacking_by_pool,
            gang,
            bool(request.excluded_nodes or request.required_nodes),
        )

    def _eligible_pools(self, fitting: Sequence[tuple[Pool, PoolFit]]) -> tuple[EligiblePool, ...]:
        rates, best = self._snapshot.rates, [self._offers.get(pool.name, ())[:1] for pool, _ in fitting]
        currency = rates.common_currency(offer for first in best for offer in first)
        found: list[EligiblePool] = []
        for (pool, fit), first in zip(fitting, best, strict=True):
            unit, price = rates.price(first[0]) if first else (currency, None)
            if differs := unit != currency:
                price = Decimal(0)
            found.append(EligiblePool(pool, fit.nodes, fit.share, fit.shares_per_node, price, differs))
        found.sort(key=lambda r: (r.price is None, r.price_differs, r.price or Decimal(0), r.pool.name))
        return tuple(found)

    def fits_with_site_nodes(self, job_class: EquivalenceClass) -> bool:
        """True where nodes that are in no pool, in whatever state, could run it, alone or with the pools' slots."""
        site_shapes = self._count_site_shapes()
        return any(self._fits_partition(job_class, partition, site_shapes) for partition in job_class.partitions)

    def _count_site_shapes(self) -> Counter[tuple[tuple[str, ...], Shape]]:
        if self._site_shapes is None:
            burst_slots = {slot for pool in self._snapshot.pools.values() for slot in pool.slots}
            self._site_shapes = Counter(
                (node.partitions, shape_of(node)) for node in self._slurm.nodes.values() if node.name not in burst_slots
            )
        return self._site_shapes

    def fits_without_pools(self, job_class: EquivalenceClass, pools: AbstractSet[str]) -> bool:
        """True where it could run without new machines of these pools: on their nodes that are there, or elsewhere."""
        if any(claim.pool in pools and claim.state in USABLE for claim in self._snapshot.claims):
            return True
        left = {name: pool for name, pool in self._snapshot.pools.items() if name not in pools}
        rest = EquivalenceClasses(replace(self._snapshot, pools=left), self._slurm, self._offers)
        rest._site_shapes = self._count_site_shapes()
        return rest.fits_with_site_nodes(job_class)

    def fits_pools(self, job_class: EquivalenceClass) -> bool:
        """True where the pools' slots alone could run it, all of them free."""
        return any(self._fits_partition(job_class, partition, Counter()) for partition in job_class.partitions)

    def _fits_partition(
        self, job_class: EquivalenceClass, partition: str, site_shapes: Counter[tuple[tuple[str, ...], Shape]]
    ) -> bool:
        shapes: Counter[Shape] = Counter()
        names: set[str] = set()
        for pool in self._snapshot.pools.values():
            if partition in pool.partitions and _starts_for(pool, job_class.requirements):
                named = bool(job_class.excluded_nodes or job_class.required_nodes)
                shapes[pool.shape] += sum(map(job_class.allows_node, pool.slots)) if named else len(pool.slots)
                names |= job_class.required_nodes.intersection(pool.slots) if named else set()
        for (partitions, shape), count in site_shapes.items():
            if partition in partitions:
                shapes[shape] += count
        if site_shapes:
            names |= {
                n
                for n in job_class.required_nodes
                if n in self._slurm.nodes and partition in self._slurm.nodes[n].partitions
            }
        if names != job_class.required_nodes:
            return False
        wanted = job_class.requirements
        fitting = {shape: nodes for shape in shapes if isinstance(nodes := wanted.nodes_needed(shape), int)}
        return any(
            all(
                sum(shapes[s] for s in fitting if expression.holds(s.features)) >= count
                for count, expression in node_counts(alternative, nodes)
            )
            and sum(shapes[s] for s, n in fitting.items() if n <= nodes) >= nodes
            for alternative in wanted.constraint.alternatives
            for nodes in set(fitting.values())
        )


def gang_layouts(job_class: EquivalenceClass) -> tuple[GangLayout, ...]:
    """The ways to start it, for jobs of several nodes: those that it may be spread over the fewest nodes come first."""
    if not job_class.layouts:
        wanted = job_class.requirements
        job_class.layouts = tuple(
            GangLayout(
                partition,
                share,
                tuple(NodeGroup(count, expression) for count, expression in node_counts(alternative, nodes)),
            )
            for partition in job_class.partitions
            for alternative in wanted.constraint.alternatives
            for nodes, share in _node_splits(job_class, partition, max(wanted.nodes, sum(g.count for g in alternative)))
        )
    return job_class.layouts


def _node_splits(job_class: EquivalenceClass, partition: str, fewest: int) -> list[tuple[int, NodeShare]]:
    """The numbers of nodes that it may be spread over: the fewest, and what each pool makes of it."""
    counts = {fewest} | {max(fewest, r.nodes) for r in job_class.eligible_pools if partition in r.pool.partitions}
    return [(nodes, job_class.requirements.share_per_node(nodes)) for nodes in sorted(counts)]


def pool_fit(request: ResourceRequest, pool: Pool) -> PoolFit | str:
    """How it fits the pool's slots, or what one of them lacks."""
    known = request.fits.get(pool.name)
    if known is None or known[0] is not pool:
        nodes = _nodes_needed(request.requirements, pool)
        fit: PoolFit | str
        if isinstance(nodes, str):
            fit = nodes
        else:
            share = request.requirements.share_per_node(nodes)
            fit = PoolFit(nodes, share, BinFactory().slot_bin(pool, "", BinKind.NEW).shares_that_fit(share))
        known = request.fits[pool.name] = (pool, fit)
    return known[1]


def _nodes_needed(wanted: ResourceRequirements, pool: Pool) -> int | str:
    """How many of the pool's slots it takes, or what one of them lacks."""
    if not _starts_for(pool, wanted):
        return "a place for a job without GPUs (--gres=gpu:1 asks for one)"
    constraint = wanted.constraint
    if constraint.problem:
        return constraint.problem
    single = wanted.nodes == 1 and constraint.min_nodes == 1
    matches = constraint.met_by_one_node if single else constraint.may_use
    if not matches(pool.shape.features):
        return features_text(constraint.text)
    return wanted.nodes_needed(pool.shape)


def _starts_for(pool: Pool, wanted: ResourceRequirements) -> bool:
    """False where no machine of the pool starts for it, whatever its shape."""
    return wanted.asks_for_gpus or not pool.gpu_jobs_only
