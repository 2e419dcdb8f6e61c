"""A request in one world: which pools can run it, and what was found out about it while jobs are placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from decimal import Decimal

from burstd.domain.claim import USABLE
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.feature_expression import Expression, split
from burstd.planner.demand.job_requirements import Need, Share
from burstd.planner.demand.request import Fit, Request
from burstd.planner.placement.bins import Bin, Kind, Site, Stencils, shape_of


@dataclass(frozen=True, slots=True)
class Route:
    """A pool whose slots can run the pattern."""

    pool: Pool
    nodes: int
    """How many empty ones it takes."""
    share: Share
    """What each of them gives."""
    room: int
    """How many shares fit on an empty one."""
    price: Decimal | None
    """Of the best offer, for an hour; None: there is no offer now."""

    @property
    def usable(self) -> bool:
        """A new slot of it takes one of one node."""
        return self.price is not None and self.nodes == 1 and self.room > 0


@dataclass(slots=True, eq=False)
class Part:
    """So many of the nodes of a way: those for which the expression holds. ``cursors`` as in Pattern."""

    count: int
    expression: Expression
    cursors: list[int] = field(default_factory=lambda: [0, 0, 0])


@dataclass(slots=True, eq=False)
class Way:
    """One way to start a job of several nodes: in one partition, by one alternative of the constraint."""

    partition: str
    share: Share
    parts: tuple[Part, ...]


@dataclass(slots=True, eq=False)
class Pattern:
    """One request, and what was found out about it while placing. Never leaves core/."""

    request: Request
    routes: tuple[Route, ...]
    """Cheapest node first; those without an offer last."""
    lacking: Mapping[str, str]
    """What each other pool of its partitions lacks, by the pool's name."""
    gang: bool
    """It takes more than one node."""
    choosy: bool
    """It names nodes, or excludes some."""
    left: int = 0
    """How many of it are still to be placed."""
    cursors: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Index, in each of the packer's rows, of the first bin that may have room for one of it: room only shrinks."""
    full: bool = False
    """No room was found for one of it; there will be none for the next."""
    full_at: int = 0
    """The place in the queue of the first for which there was none."""
    choices: list[tuple[int, list[Route], Route]] = field(default_factory=list)
    """For each new slot, where several pools would do: how many were left, the pools, and the one that was chosen."""
    shift: int = 0
    """How many more there are now than at first: what the choices have for the number left is without them."""
    why: tuple[str, str] | None = None
    """Verdict and reason, once one of it was left out."""
    ways: tuple[Way, ...] = ()
    _usable: dict[Site, bool] = field(default_factory=dict)

    @property
    def need(self) -> Need:
        """What one of it needs."""
        return self.request.need

    @property
    def partitions(self) -> tuple[str, ...]:
        """Where it may run."""
        return self.request.partitions

    @property
    def excluded(self) -> frozenset[str]:
        """Nodes that it must not run on."""
        return self.request.excluded

    @property
    def named(self) -> frozenset[str]:
        """Nodes that it asks for."""
        return self.request.named

    def allows(self, name: str) -> bool:
        """See Request."""
        return self.request.allows(name)

    def usable(self, found: Bin) -> bool:
        """True where partition, features, name and who pays are right for a job of one node."""
        if found.payer and found.payer != self.request.payer:
            return False
        known = self._usable.get(found.site)
        if known is None:
            holds = self.need.constraint.of_one_node
            site = found.site
            known = self._usable[site] = not site.partitions.isdisjoint(self.partitions) and holds(site.features)
        return known and (not self.choosy or self.allows(found.name))


class Patterns:
    """The patterns of one world."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, offers: Mapping[str, tuple[Offer, ...]]) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._offers = offers
        self.known: dict[Request, Pattern] = {}
        self._others: Counter[tuple[tuple[str, ...], Shape]] | None = None

    def of(self, request: Request) -> Pattern:
        """The request's pattern."""
        found = self.known.get(request)
        if found is None:
            found = self.known[request] = self._new(request)
        return found

    def _new(self, request: Request) -> Pattern:
        wanted = request.need
        routes: list[Route] = []
        lacking: dict[str, str] = {}
        for pool in self._snapshot.pools.values():
            if set(pool.partitions).isdisjoint(request.partitions):
                continue
            fit = fit_of(request, pool)
            if isinstance(fit, str):
                lacking[pool.name] = fit
                continue
            offers = self._offers.get(pool.name, ())
            routes.append(Route(pool, fit.nodes, fit.share, fit.room, offers[0].price if offers else None))
        routes.sort(key=lambda r: (r.price is None, r.price or Decimal(0), r.pool.name))
        several = wanted.nodes > 1 or wanted.constraint.fewest_nodes > 1
        gang = several or (bool(routes) and all(route.nodes > 1 for route in routes))
        return Pattern(request, tuple(routes), lacking, gang, bool(request.excluded or request.named))

    def elsewhere(self, pattern: Pattern) -> bool:
        """True where nodes that are in no pool, in whatever state, could run it, alone or with the pools' slots."""
        others = self._nodes_of_others()
        return any(self._possible(pattern, partition, others) for partition in pattern.partitions)

    def _nodes_of_others(self) -> Counter[tuple[tuple[str, ...], Shape]]:
        if self._others is None:
            ours = {slot for pool in self._snapshot.pools.values() for slot in pool.slots}
            self._others = Counter(
                (node.partitions, shape_of(node)) for node in self._slurm.nodes.values() if node.name not in ours
            )
        return self._others

    def without(self, pattern: Pattern, pools: AbstractSet[str]) -> bool:
        """True where it could run without new machines of these pools: on their nodes that are there, or elsewhere."""
        if any(claim.pool in pools and claim.state in USABLE for claim in self._snapshot.claims):
            return True
        left = {name: pool for name, pool in self._snapshot.pools.items() if name not in pools}
        rest = Patterns(replace(self._snapshot, pools=left), self._slurm, self._offers)
        rest._others = self._nodes_of_others()
        return rest.elsewhere(pattern)

    def possible(self, pattern: Pattern) -> bool:
        """True where the pools' slots alone could run it, all of them free."""
        return any(self._possible(pattern, partition, Counter()) for partition in pattern.partitions)

    def _possible(self, pattern: Pattern, partition: str, others: Counter[tuple[tuple[str, ...], Shape]]) -> bool:
        shapes: Counter[Shape] = Counter()
        names: set[str] = set()
        for pool in self._snapshot.pools.values():
            if partition in pool.partitions:
                named = bool(pattern.excluded or pattern.named)
                shapes[pool.shape] += sum(map(pattern.allows, pool.slots)) if named else len(pool.slots)
                names |= pattern.named.intersection(pool.slots) if named else set()
        for (partitions, shape), count in others.items():
            if partition in partitions:
                shapes[shape] += count
        if others:
            names |= {
                n for n in pattern.named if n in self._slurm.nodes and partition in self._slurm.nodes[n].partitions
            }
        if names != pattern.named:
            return False
        wanted = pattern.need
        fitting = {shape: nodes for shape in shapes if isinstance(nodes := wanted.nodes_of(shape), int)}
        return any(
            all(
                sum(shapes[s] for s in fitting if expression.holds(s.features)) >= count
                for count, expression in split(alternative, nodes)
            )
            and sum(shapes[s] for s, n in fitting.items() if n <= nodes) >= nodes
            for alternative in wanted.constraint.alternatives
            for nodes in set(fitting.values())
        )


def ways(pattern: Pattern) -> tuple[Way, ...]:
    """The ways to start it, for jobs of several nodes: those that it may be spread over the fewest nodes come first."""
    if not pattern.ways:
        wanted = pattern.need
        pattern.ways = tuple(
            Way(partition, share, tuple(Part(count, expression) for count, expression in split(alternative, nodes)))
            for partition in pattern.partitions
            for alternative in wanted.constraint.alternatives
            for nodes, share in _splits(pattern, partition, max(wanted.nodes, sum(g.count for g in alternative)))
        )
    return pattern.ways


def _splits(pattern: Pattern, partition: str, fewest: int) -> list[tuple[int, Share]]:
    """The numbers of nodes that it may be spread over: the fewest, and what each pool makes of it."""
    counts = {fewest} | {max(fewest, r.nodes) for r in pattern.routes if partition in r.pool.partitions}
    return [(nodes, pattern.need.share(nodes)) for nodes in sorted(counts)]


def fit_of(request: Request, pool: Pool) -> Fit | str:
    """How it fits the pool's slots, or what one of them lacks."""
    known = request.fits.get(pool.name)
    if known is None or known[0] is not pool:
        nodes = _missing(request.need, pool)
        fit: Fit | str
        if isinstance(nodes, str):
            fit = nodes
        else:
            share = request.need.share(nodes)
            fit = Fit(nodes, share, Stencils().of_shape(pool, "", Kind.NEW).room(share))
        known = request.fits[pool.name] = (pool, fit)
    return known[1]


def _missing(wanted: Need, pool: Pool) -> int | str:
    """How many of the pool's slots it takes, or what one of them lacks."""
    constraint = wanted.constraint
    if constraint.problem:
        return constraint.problem
    single = wanted.nodes == 1 and constraint.fewest_nodes == 1
    holds = constraint.of_one_node if single else constraint.may_use
    if not holds(pool.shape.features):
        return f"the features {constraint.text}"
    return wanted.nodes_of(pool.shape)
