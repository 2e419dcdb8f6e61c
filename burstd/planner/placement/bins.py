"""The capacity that pending jobs can be placed on: bins. A bin is a node with room, or a slot that will be one.

Bins in the order in which they are filled, kept so that the first with room is found without a look at each.

Bins are looked at in blocks. Of each block is known the most CPUs, memory and GRES that any of its bins may have left:
a bound that is drawn tighter whenever a look at the whole block was in vain. Room shrinks while jobs are placed, so
the bounds hold; where something is given back the block is opened again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum

from burstd.domain.claim import USABLE, Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape, SharedGpu
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.gres import GresCounts, has_gres, requests_that_fit, subtract_gres
from burstd.planner.demand.job_requirements import NodeShare
from burstd.planner.demand.request import ResourceRequest
from burstd.planner.placement.node_users import NodeUsers


class BinKind(IntEnum):
    """Where a bin's room comes from, in the order in which it is filled."""

    SITE_NODE = 0
    """A node of the site, up and open to jobs."""
    IN_SERVICE = 1
    """The node of an IN_SERVICE claim."""
    IN_FLIGHT = 2
    """A claim that is READY or on its way; all of the pool's shape."""
    NEW = 3
    """A slot that this plan fills."""


_STATE_ORDER = {
    ClaimState.READY: 0,
    ClaimState.VALIDATING: 1,
    ClaimState.BOOTING: 2,
    ClaimState.LAUNCHING: 3,
    ClaimState.PLANNED: 4,
}


@dataclass(slots=True, eq=False)
class NodeTraits:
    """Where a bin stands, as far as jobs choose by it: bins that are alike in this share one."""

    partitions: frozenset[str]
    features: frozenset[str]


@dataclass(slots=True, eq=False)
class Bin:
    """Room on one node. Filled in place while jobs are placed; never leaves the planner."""

    name: str
    kind: BinKind
    traits: NodeTraits
    cpus: int
    memory_mib: int
    gres: GresCounts
    """Never changed in place: bins that are alike share one."""
    empty: bool
    """Nothing runs or is placed on it."""
    free_since: float = 0.0
    """Since when what is free has been free, as far as Slurm says; 0: unknown."""
    pool: str = ""
    claim: Claim | None = None
    used: bool = False
    """A pending job was placed on it."""
    jobs: list[Job] = field(default_factory=list)
    """Of a new one the jobs that were placed on it."""
    position: int = -1
    """Its place in its row; -1: it stands in none."""
    queue_position: int = 0
    """Of a new one the place in the queue of the first job that was placed on it."""
    payer: tuple[str, ...] = ()
    """Of a new one whose jobs alone may share it; empty: anybody's."""
    users: frozenset[str] = frozenset()
    """Of the jobs that are or were placed on it, where users matter for anything; an empty name: of an unknown one."""
    exclusive_user: bool = False
    """It takes no job of another user while it has any."""
    gpu_jobs_only: bool = False
    """It comes for jobs that ask for GPUs: others that took it would have one more machine started for those."""
    verdict: tuple[str, str] | None = None
    """Verdict and reason for a job that is placed on it alone, once they are known."""

    def fits(self, share: NodeShare) -> bool:
        """True where there is room for the share now."""
        return (
            share.cpus <= self.cpus
            and share.memory_mib <= self.memory_mib
            and (self.empty or not share.exclusive)
            and (not share.gres or has_gres(self.gres, share.gres))
        )

    def admits_users(self, request: ResourceRequest) -> bool:
        """True where the jobs on it and those of the request may share it, by their users."""
        return not self.users or self.users == request.users or not (self.exclusive_user or request.exclusive_user)

    def add_users(self, request: ResourceRequest) -> None:
        """Notes that a job of the request is on it."""
        self.users |= request.users
        self.exclusive_user |= request.exclusive_user

    def shares_that_fit(self, share: NodeShare) -> int:
        """How many such shares fit."""
        if not self.fits(share):
            return 0
        if share.exclusive:
            return 1
        count = self.cpus // share.cpus
        if share.memory_mib:
            count = min(count, self.memory_mib // share.memory_mib)
        if len(share.gres) == 1:
            return min(count, requests_that_fit(self.gres, share.gres[0]))
        # Requests that draw on the same kind are counted one by one.
        return 1 if share.gres else count

    def allocate(self, share: NodeShare, times: int = 1) -> None:
        """Takes what fits."""
        self.cpus = 0 if share.exclusive else self.cpus - share.cpus * times
        self.memory_mib -= share.memory_mib * times
        if share.gres:
            known, key = self.gres.left_by, (share.gres, times)
            self.gres = known.get(key) or known.setdefault(key, subtract_gres(self.gres, share.gres, times))
        self.empty = False
        self.used = True


@dataclass(frozen=True, slots=True)
class BinCheckpoint:
    """What a bin was like before something was taken."""

    bin: Bin
    cpus: int
    memory_mib: int
    gres: GresCounts
    empty: bool
    used: bool
    users: frozenset[str]
    exclusive_user: bool

    @classmethod
    def save(cls, found: Bin) -> BinCheckpoint:
        """As it is now."""
        return cls(
            found, found.cpus, found.memory_mib, found.gres, found.empty, found.used, found.users, found.exclusive_user
        )

    def restore(self) -> None:
        """Gives it back. The last taken is to be undone first."""
        self.bin.cpus, self.bin.memory_mib, self.bin.gres, self.bin.empty, self.bin.used = (
            self.cpus, self.memory_mib, self.gres, self.empty, self.used,
        )  # fmt: skip
        self.bin.users, self.bin.exclusive_user = self.users, self.exclusive_user


class BinFactory:
    """Parts that many bins share, so that bins are cheap to make."""

    def __init__(self, users: Mapping[str, NodeUsers] | None = None) -> None:
        """``users``: by node, those whose jobs it has."""
        self._users = users or {}
        self._traits: dict[tuple[tuple[str, ...], frozenset[str]], NodeTraits] = {}
        self._no_gres = GresCounts()
        self._gres: dict[tuple[tuple[Gres, ...], tuple[Gres, ...], tuple[SharedGpu, ...]], GresCounts] = {}

    def traits(self, partitions: tuple[str, ...], features: frozenset[str]) -> NodeTraits:
        """Of nodes of these partitions, with these features."""
        found = self._traits.get((partitions, features))
        if found is None:
            found = self._traits[partitions, features] = NodeTraits(frozenset(partitions), features)
        return found

    def gres_counts(
        self, there: tuple[Gres, ...], used: tuple[Gres, ...] = (), gpus: tuple[SharedGpu, ...] = ()
    ) -> GresCounts:
        """What is left of these where those are used. ``gpus``: what is left of each GPU, where there are shards."""
        if not there and not used:
            return self._no_gres
        found = self._gres.get((there, used, gpus))
        if found is None:
            found = self._gres[there, used, gpus] = GresCounts(there)
            found.add(used, -1)
            if gpus:
                found.set_gpus(gpus)
        return found

    def slot_bin(self, pool: Pool, slot: str, kind: BinKind, claim: Claim | None = None) -> Bin:
        """A slot with nothing on it."""
        shape = pool.shape
        return Bin(
            slot, kind, self.traits(pool.partitions, shape.features), shape.cpus, shape.memory_mib,
            self.gres_counts(shape.gres), True, 0.0, pool.name, claim, exclusive_user=pool.exclusive_user,
            gpu_jobs_only=pool.gpu_jobs_only,
        )  # fmt: skip

    def node_bin(
        self, node: Node, kind: BinKind, free_since: float, pool: Pool | None = None, claim: Claim | None = None
    ) -> Bin:
        """A node with what runs there."""
        found = Bin(
            node.name, kind, self.traits(node.partitions, node.features), node.cpus - node.cpus_allocated,
            node.memory_mib - node.memory_allocated_mib,
            self.gres_counts(node.gres, node.gres_used, node.shared_gpus), not node.busy, free_since,
            pool.name if pool else "", claim, exclusive_user=pool is not None and pool.exclusive_user,
        )  # fmt: skip
        there = self._users.get(node.name)
        if there is not None:
            found.users, found.exclusive_user = there.users, found.exclusive_user or there.exclusive_user
        return found


@dataclass(frozen=True, slots=True)
class Capacity:
    """All bins. ``common`` in the order in which they are filled; ``reserved`` by gang or bound job."""

    shared: list[Bin]
    reserved: Mapping[str, list[Bin]]
    free_slots: dict[str, list[str]]
    """Free slots of each pool, in its order; taken from the front."""
    idle_claims: tuple[tuple[Claim, Bin | None], ...]
    """IN_SERVICE and READY claims whose node is idle, with their bin where jobs may use it."""
    bin_factory: BinFactory


def read_capacity(
    snapshot: Snapshot,
    slurm: SlurmView,
    gangs: AbstractSet[str],
    dedicated: Mapping[str, Sequence[str]],
    users: Mapping[str, NodeUsers],
) -> Capacity:
    """Reads the bins off a snapshot. ``gangs`` are the ids of the gangs that wait: their claims are theirs alone.

    ``dedicated``: by claim, who may use its room. ``users``: by node, those whose jobs it has.
    """
    burst_slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    reserved_nodes = {
        name for r in slurm.reservations if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
        for name in r.nodes
    }  # fmt: skip
    bound = {name: job for job, names in snapshot.bound.items() for name in names}
    factory = BinFactory(users)
    others = slurm.nodes.keys() - burst_slots - reserved_nodes
    shared = [
        factory.node_bin(node, BinKind.SITE_NODE, node.last_busy)
        for name in others
        if _takes_jobs(node := slurm.nodes[name])
    ]  # fmt: skip
    reserved: dict[str, list[Bin]] = {}
    idle_claims: list[tuple[Claim, Bin | None]] = []
    for claim in snapshot.claims:
        pool = snapshot.pools.get(claim.pool)
        if claim.state not in USABLE or pool is None:
            continue
        seen = slurm.nodes.get(claim.slot)
        found = _claim_bin(claim, pool, seen, claim.slot in snapshot.drained_slots, factory)
        if found is not None:
            owner = bound.get(claim.slot, "") or (claim.gang if found.kind is BinKind.IN_FLIGHT else "")
            if claim.id in dedicated:
                for consumer in dedicated[claim.id]:
                    reserved.setdefault(consumer, []).append(found)
            elif owner in gangs or claim.slot in bound:
                reserved.setdefault(owner, []).append(found)
            else:
                shared.append(found)
        if (
            (claim.state is ClaimState.IN_SERVICE or claim.state is ClaimState.READY)
            and seen is not None
            and not seen.busy
        ):
            idle_claims.append((claim, found))
    shared.sort(key=_packing_order)
    for bins in reserved.values():
        bins.sort(key=_packing_order)
    free_slots = {name: list(snapshot.free_slots(pool)) for name, pool in snapshot.pools.items()}
    return Capacity(shared, reserved, free_slots, tuple(idle_claims), factory)


def shape_of(node: Node) -> Shape:
    """All that a node has, busy or not."""
    return Shape(node.cpus, node.memory_mib, node.gres, node.features)


def _takes_jobs(node: Node) -> bool:
    # PLANNED: the backfill scheduler keeps it for a job that waits for more than this node.
    return (
        node.cpus_allocated < node.cpus and node.up and not node.drained
        and node.flags.isdisjoint(_UNAVAILABLE_FLAGS)
    )  # fmt: skip


_UNAVAILABLE_FLAGS = frozenset({"PLANNED", "MAINTENANCE", "RESERVED", "FAIL", "REBOOT_REQUESTED"})


def _claim_bin(claim: Claim, pool: Pool, node: Node | None, held: bool, factory: BinFactory) -> Bin | None:
    if held or (node is not None and node.drained):
        return None
    if claim.state is not ClaimState.IN_SERVICE:
        # Slurm may have put jobs there already (it powered the slot up itself): what it gave away is gone.
        if node is not None and node.busy:
            return None
        return factory.slot_bin(pool, claim.slot, BinKind.IN_FLIGHT, claim)
    if node is None or node.cpus_allocated >= node.cpus or not node.up:
        return None
    return factory.node_bin(
        node, BinKind.IN_SERVICE, max(node.last_busy, claim.in_service_from or claim.since), pool, claim
    )


def _packing_order(found: Bin) -> tuple[int, bool, int, float, str]:
    """The site's own nodes first, then open ones, busy ones before idle ones, then claims by how far they are."""
    claim = found.claim
    state = _STATE_ORDER.get(claim.state, 0) if claim is not None else 0
    return found.kind, found.empty, state, claim.created if claim is not None else 0.0, found.name


_BLOCK_BITS = 6
_BLOCK = 1 << _BLOCK_BITS
_UNKNOWN = 1 << 62


class BinIndex:
    """A row of bins."""

    def __init__(self, bins: list[Bin]) -> None:
        self.bins: list[Bin] = []
        self._cpus: list[int] = []
        self._memory: list[int] = []
        self._gres: list[int] = []
        for found in bins:
            self.add(found)

    def add(self, found: Bin) -> None:
        """At the end."""
        found.position = len(self.bins)
        self.bins.append(found)
        if found.position >> _BLOCK_BITS == len(self._cpus):
            self._cpus.append(_UNKNOWN)
            self._memory.append(_UNKNOWN)
            self._gres.append(_UNKNOWN)
        else:
            self.reset_block(found.position)

    def reset_block(self, index: int) -> None:
        """The bin may have more room than before."""
        block = index >> _BLOCK_BITS
        self._cpus[block] = self._memory[block] = self._gres[block] = _UNKNOWN

    def find(self, start: int, share: NodeShare, accepts: Callable[[Bin], bool]) -> int:
        """Index of the first bin, from ``start`` on, that has room for the share and is right; else that of the end."""
        bins = self.bins
        cpus, memory, gres, exclusive = share.cpus, share.memory_mib, share.gres, share.exclusive
        asked = sum([g.count for g in gres]) if gres else 0
        index, last = start, len(bins)
        while index < last:
            block = index >> _BLOCK_BITS
            begun, end = index, min((block + 1) << _BLOCK_BITS, last)
            if cpus > self._cpus[block] or memory > self._memory[block] or asked > self._gres[block]:
                index = end
                continue
            for found in bins[index:end]:
                if (
                    cpus <= found.cpus
                    and memory <= found.memory_mib
                    and (found.empty or not exclusive)
                    and (not gres or (asked <= sum(found.gres.values()) and has_gres(found.gres, gres)))
                    and accepts(found)
                ):
                    return found.position
            if begun == block << _BLOCK_BITS:
                self._tighten(block)
            index = end
        return last

    def _tighten(self, block: int) -> None:
        some = self.bins[block << _BLOCK_BITS : (block + 1) << _BLOCK_BITS]
        self._cpus[block] = max([found.cpus for found in some])
        self._memory[block] = max([found.memory_mib for found in some])
        self._gres[block] = max([sum(found.gres.values()) for found in some])

    def find_all(self, start: int, share: NodeShare, accepts: Callable[[Bin], bool]) -> Iterator[Bin]:
        """All such bins, in order."""
        index = self.find(start, share, accepts)
        while index < len(self.bins):
            yield self.bins[index]
            index = self.find(index + 1, share, accepts)
