"""Jobs that ask for the same are one pattern: what can run it is worked out once, however many they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from decimal import Decimal

from burstd.core.capacity import Bin, new_bin, shape_of
from burstd.core.constraint import split
from burstd.core.need import Need, Share, need
from burstd.model.claim import USABLE
from burstd.model.job import Job
from burstd.model.offer import Offer, Pool
from burstd.model.shape import Shape
from burstd.model.snapshot import SlurmView, Snapshot


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


@dataclass(slots=True, eq=False)
class Pattern:
    """One request, and what was found out about it while placing. Never leaves core/."""

    need: Need
    partitions: tuple[str, ...]
    excluded: frozenset[str]
    named: frozenset[str]
    routes: tuple[Route, ...]
    """Cheapest node first; those without an offer last."""
    lacking: Mapping[str, str]
    """What each other pool of its partitions lacks, by the pool's name."""
    alone: Share
    """What one node gives that takes all of it."""
    gang: bool
    """It takes more than one node."""
    left: int = 0
    """How many of it are still to be placed."""
    cursor_site: int = 0
    """Index of the first node of the site that may have room: room only shrinks."""
    cursor_open: int = 0
    """The same for burst nodes that are open."""
    cursor_later: int = 0
    """The same for those that are on their way or new."""
    full: bool = False
    """No room was found for a gang of it; there will be none for the next."""
    why: tuple[str, str] | None = None
    """Verdict and reason, once one of it was left out."""
    _usable: dict[tuple[frozenset[str], frozenset[str]], bool] = field(default_factory=dict)

    def allows(self, name: str) -> bool:
        """True where the job may run on the node of this name (``--exclude``, ``--nodelist`` of one node)."""
        return name not in self.excluded and (not self.named or self.need.nodes > 1 or name in self.named)

    def usable(self, found: Bin) -> bool:
        """True where partition, features and name are right for a job of one node."""
        key = (found.partitions, found.features)
        known = self._usable.get(key)
        if known is None:
            known = not found.partitions.isdisjoint(self.partitions) and self.need.constraint.of_one_node(
                found.features
            )
            self._usable[key] = known
        return known and (not (self.excluded or self.named) or self.allows(found.name))


class Patterns:
    """Sorts jobs into patterns."""

    def __init__(self, snapshot: Snapshot, slurm: SlurmView, offers: Mapping[str, tuple[Offer, ...]]) -> None:
        self._snapshot = snapshot
        self._slurm = slurm
        self._offers = offers
        self._known: dict[tuple[object, ...], Pattern] = {}
        self._others: Counter[tuple[tuple[str, ...], Shape]] | None = None

    def of(self, job: Job) -> Pattern:
        """The job's pattern."""
        key = (
            job.partitions, job.nodes, job.nodes_max, job.cpus, job.cpus_per_node, job.memory_mib, job.memory_per_cpu,
            job.gres_per_node, job.gres_per_job, job.constraint, job.exclusive, job.excluded_nodes, job.node_list,
        )  # fmt: skip
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._new(job)
        return found

    def _new(self, job: Job) -> Pattern:
        wanted = need(job)
        routes: list[Route] = []
        lacking: dict[str, str] = {}
        for pool in self._snapshot.pools.values():
            if set(pool.partitions).isdisjoint(job.partitions):
                continue
            nodes = _missing(wanted, pool)
            if isinstance(nodes, str):
                lacking[pool.name] = nodes
                continue
            share = wanted.share(nodes)
            offers = self._offers.get(pool.name, ())
            price = offers[0].price if offers else None
            routes.append(Route(pool, nodes, share, new_bin(pool, "").room(share), price))
        routes.sort(key=lambda r: (r.price is None, r.price or Decimal(0), r.pool.name))
        several = wanted.nodes > 1 or wanted.constraint.fewest_nodes > 1
        return Pattern(
            wanted, job.partitions, frozenset(job.excluded_nodes), frozenset(job.node_list), tuple(routes), lacking,
            alone=wanted.share(1), gang=several or (bool(routes) and all(route.nodes > 1 for route in routes)),
        )  # fmt: skip

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
                names |= pattern.named.intersection(pool.slots)
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
