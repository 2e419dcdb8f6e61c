"""The capacity that pending jobs can be placed on: bins. A bin is a node with room, or a slot that will be one."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum

from burstd.core.gres import GresCount, available, lacking_gres, take
from burstd.core.need import Share
from burstd.model.claim import USABLE, Claim, ClaimState
from burstd.model.node import Node
from burstd.model.offer import Pool
from burstd.model.shape import Gres, Shape
from burstd.model.snapshot import SlurmView, Snapshot


class Kind(IntEnum):
    """Where a bin's room comes from, in the order in which it is filled."""

    NODE = 0
    """A node of the site, up and open to jobs."""
    OPEN = 1
    """The node of an OPEN claim."""
    COMING = 2
    """A claim that is READY or on its way; all of the pool's shape."""
    NEW = 3
    """A slot that this plan fills."""


_STATE_ORDER = {
    ClaimState.READY: 0,
    ClaimState.PROVING: 1,
    ClaimState.BOOTING: 2,
    ClaimState.LAUNCHING: 3,
    ClaimState.PLANNED: 4,
}


@dataclass(slots=True, eq=False)
class Bin:
    """Room on one node. Filled in place while jobs are placed; never leaves core/."""

    name: str
    kind: Kind
    partitions: frozenset[str]
    features: frozenset[str]
    cpus: int
    memory_mib: int
    gres: GresCount
    whole: bool
    """Nothing runs or is placed on it."""
    free_since: float = 0.0
    """Since when what is free has been free, as far as Slurm says; 0: unknown."""
    pool: str = ""
    claim: Claim | None = None
    used: bool = False
    """A pending job was placed on it."""
    jobs: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)

    def fits(self, share: Share) -> bool:
        """True where there is room for the share now."""
        return (
            share.cpus <= self.cpus
            and share.memory_mib <= self.memory_mib
            and (self.whole or not share.exclusive)
            and (not share.gres or not lacking_gres(self.gres, share.gres))
        )

    def room(self, share: Share) -> int:
        """How many such shares fit."""
        if not self.fits(share):
            return 0
        if share.exclusive:
            return 1
        room = self.cpus // share.cpus
        if share.memory_mib:
            room = min(room, self.memory_mib // share.memory_mib)
        if len(share.gres) == 1:
            gres = share.gres[0]
            return min(room, available(self.gres, gres.name, gres.type) // gres.count)
        # Requests that draw on the same kind are counted one by one.
        return 1 if share.gres else room

    def put(self, share: Share, times: int = 1) -> Taken:
        """Takes what fits; the answer undoes it."""
        before = Taken(
            self, self.cpus, self.memory_mib, self.gres.copy() if share.gres else None, self.whole, self.used
        )
        self.cpus = 0 if share.exclusive else self.cpus - share.cpus * times
        self.memory_mib -= share.memory_mib * times
        if share.gres:
            take(self.gres, tuple(Gres(g.name, g.type, g.count * times) for g in share.gres))
        self.whole = False
        self.used = True
        return before


@dataclass(frozen=True, slots=True)
class Taken:
    """What a bin was like before a share was taken."""

    bin: Bin
    cpus: int
    memory_mib: int
    gres: GresCount | None
    whole: bool
    used: bool

    def undo(self) -> None:
        """Gives it back. The last taken is to be undone first."""
        self.bin.cpus, self.bin.memory_mib, self.bin.whole, self.bin.used = (
            self.cpus, self.memory_mib, self.whole, self.used,
        )  # fmt: skip
        if self.gres is not None:
            self.bin.gres = self.gres


@dataclass(frozen=True, slots=True)
class Capacity:
    """All bins. ``common`` in the order in which they are filled; ``reserved`` by gang or bound job."""

    common: list[Bin]
    reserved: Mapping[str, list[Bin]]
    free: dict[str, list[str]]
    """Free slots of each pool, in its order; taken from the front."""
    idle: tuple[tuple[Claim, Bin | None], ...]
    """OPEN and READY claims whose node is idle, with their bin where jobs may use it."""


def capacity(snapshot: Snapshot, slurm: SlurmView, gangs: AbstractSet[str]) -> Capacity:
    """Reads the bins off a snapshot. ``gangs`` are the words of the gangs that wait: their claims are theirs alone."""
    ours = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    reserved_nodes = {
        name for r in slurm.reservations if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
        for name in r.nodes
    }  # fmt: skip
    bound = {name: job for job, names in snapshot.bound.items() for name in names}
    common = [
        _of_node(node, Kind.NODE, node.last_busy)
        for node in slurm.nodes.values()
        if node.name not in ours and node.name not in reserved_nodes and _takes_jobs(node)
    ]
    reserved: dict[str, list[Bin]] = {}
    idle: list[tuple[Claim, Bin | None]] = []
    for claim in snapshot.claims:
        pool = snapshot.pools.get(claim.pool)
        if claim.state not in USABLE or pool is None:
            continue
        node = slurm.nodes.get(claim.slot)
        found = _of_claim(claim, pool, node, claim.slot in snapshot.held_slots)
        if found is not None:
            owner = bound.get(claim.slot, "") or (claim.gang if found.kind is Kind.COMING else "")
            if owner in gangs or claim.slot in bound:
                reserved.setdefault(owner, []).append(found)
            else:
                common.append(found)
        if claim.state in (ClaimState.OPEN, ClaimState.READY) and node is not None and not node.busy:
            idle.append((claim, found))
    common.sort(key=_filling_order)
    for bins in reserved.values():
        bins.sort(key=_filling_order)
    free = {name: list(snapshot.free_slots(pool)) for name, pool in snapshot.pools.items()}
    return Capacity(common, reserved, free, tuple(idle))


def new_bin(pool: Pool, slot: str) -> Bin:
    """The room that a new machine on this slot will have."""
    return _of_shape(pool, slot, Kind.NEW, None)


def shape_of(node: Node) -> Shape:
    """All that a node has, busy or not."""
    return Shape(node.cpus, node.memory_mib, node.gres, node.features)


def _takes_jobs(node: Node) -> bool:
    # PLANNED: the backfill scheduler keeps it for a job that waits for more than this node.
    return (
        node.up and not node.drained and node.cpus_allocated < node.cpus
        and not node.flags & {"PLANNED", "MAINTENANCE", "RESERVED", "FAIL", "REBOOT_REQUESTED"}
    )  # fmt: skip


def _of_node(node: Node, kind: Kind, free_since: float, pool: str = "", claim: Claim | None = None) -> Bin:
    gres = GresCount(node.gres)
    gres.add(node.gres_used, -1)
    return Bin(
        node.name, kind, frozenset(node.partitions), node.features, node.cpus - node.cpus_allocated,
        node.memory_mib - node.memory_allocated_mib, gres, not node.busy, free_since, pool, claim,
    )  # fmt: skip


def _of_shape(pool: Pool, slot: str, kind: Kind, claim: Claim | None) -> Bin:
    shape = pool.shape
    return Bin(
        slot, kind, frozenset(pool.partitions), shape.features, shape.cpus, shape.memory_mib,
        GresCount(shape.gres), True, 0.0, pool.name, claim,
    )  # fmt: skip


def _of_claim(claim: Claim, pool: Pool, node: Node | None, held: bool) -> Bin | None:
    if held or (node is not None and node.drained):
        return None
    if claim.state is not ClaimState.OPEN:
        # Slurm may have put jobs there already (it powered the slot up itself): what it gave away is gone.
        if node is not None and node.busy:
            return None
        return _of_shape(pool, claim.slot, Kind.COMING, claim)
    if node is None or not node.up or node.cpus_allocated >= node.cpus:
        return None
    return _of_node(node, Kind.OPEN, max(node.last_busy, claim.opened or claim.since), claim.pool, claim)


def _filling_order(found: Bin) -> tuple[int, bool, int, float, str]:
    """The site's own nodes first, then open ones, busy ones before idle ones, then claims by how far they are."""
    claim = found.claim
    state = _STATE_ORDER.get(claim.state, 0) if claim is not None else 0
    return found.kind, found.whole, state, claim.created if claim is not None else 0.0, found.name
