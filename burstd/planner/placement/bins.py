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
from burstd.domain.slurm.shape import Gres, Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.demand.gres import GresCount, available, has_gres, without
from burstd.planner.demand.job_requirements import Share


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
class Site:
    """Where a bin stands, as far as jobs choose by it: bins that are alike in this share one."""

    partitions: frozenset[str]
    features: frozenset[str]


@dataclass(slots=True, eq=False)
class Bin:
    """Room on one node. Filled in place while jobs are placed; never leaves core/."""

    name: str
    kind: Kind
    site: Site
    cpus: int
    memory_mib: int
    gres: GresCount
    """Never changed in place: bins that are alike share one."""
    whole: bool
    """Nothing runs or is placed on it."""
    free_since: float = 0.0
    """Since when what is free has been free, as far as Slurm says; 0: unknown."""
    pool: str = ""
    claim: Claim | None = None
    used: bool = False
    """A pending job was placed on it."""
    jobs: list[Job] = field(default_factory=list)
    """Of a new one the jobs that were placed on it."""
    row: Row | None = None
    index: int = 0
    """Its place in the row."""
    order: int = 0
    """Of a new one the place in the queue of the first job that was placed on it."""
    payer: tuple[str, ...] = ()
    """Of a new one whose jobs alone may share it; empty: anybody's."""
    words: tuple[str, str] | None = None
    """Verdict and reason for a job that is placed on it alone, once they are known."""

    def fits(self, share: Share) -> bool:
        """True where there is room for the share now."""
        return (
            share.cpus <= self.cpus
            and share.memory_mib <= self.memory_mib
            and (self.whole or not share.exclusive)
            and (not share.gres or has_gres(self.gres, share.gres))
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

    def put(self, share: Share, times: int = 1) -> None:
        """Takes what fits."""
        self.cpus = 0 if share.exclusive else self.cpus - share.cpus * times
        self.memory_mib -= share.memory_mib * times
        if share.gres:
            self.gres = without(self.gres, share.gres, times)
        self.whole = False
        self.used = True


@dataclass(frozen=True, slots=True)
class Taken:
    """What a bin was like before something was taken."""

    bin: Bin
    cpus: int
    memory_mib: int
    gres: GresCount
    whole: bool
    used: bool

    @classmethod
    def of(cls, found: Bin) -> Taken:
        """As it is now."""
        return cls(found, found.cpus, found.memory_mib, found.gres, found.whole, found.used)

    def undo(self) -> None:
        """Gives it back. The last taken is to be undone first."""
        self.bin.cpus, self.bin.memory_mib, self.bin.gres, self.bin.whole, self.bin.used = (
            self.cpus, self.memory_mib, self.gres, self.whole, self.used,
        )  # fmt: skip
        if self.bin.row is not None:
            self.bin.row.reopen(self.bin.index)


class Stencils:
    """Parts that many bins share, so that bins are cheap to make."""

    def __init__(self) -> None:
        self._sites: dict[tuple[tuple[str, ...], frozenset[str]], Site] = {}
        self._gres: dict[tuple[tuple[Gres, ...], tuple[Gres, ...]], GresCount] = {}

    def site(self, partitions: tuple[str, ...], features: frozenset[str]) -> Site:
        """Of nodes of these partitions, with these features."""
        found = self._sites.get((partitions, features))
        if found is None:
            found = self._sites[partitions, features] = Site(frozenset(partitions), features)
        return found

    def gres(self, there: tuple[Gres, ...], used: tuple[Gres, ...] = ()) -> GresCount:
        """What is left of these where those are used."""
        if not there and not used:
            return _NO_GRES
        found = self._gres.get((there, used))
        if found is None:
            found = self._gres[there, used] = GresCount(there)
            found.add(used, -1)
        return found

    def of_shape(self, pool: Pool, slot: str, kind: Kind, claim: Claim | None = None) -> Bin:
        """A slot with nothing on it."""
        shape = pool.shape
        return Bin(
            slot, kind, self.site(pool.partitions, shape.features), shape.cpus, shape.memory_mib,
            self.gres(shape.gres), True, 0.0, pool.name, claim,
        )  # fmt: skip

    def of_node(self, node: Node, kind: Kind, free_since: float, pool: str = "", claim: Claim | None = None) -> Bin:
        """A node with what runs there."""
        return Bin(
            node.name, kind, self.site(node.partitions, node.features), node.cpus - node.cpus_allocated,
            node.memory_mib - node.memory_allocated_mib, self.gres(node.gres, node.gres_used), not node.busy,
            free_since, pool, claim,
        )  # fmt: skip


_NO_GRES = GresCount()


@dataclass(frozen=True, slots=True)
class Capacity:
    """All bins. ``common`` in the order in which they are filled; ``reserved`` by gang or bound job."""

    common: list[Bin]
    reserved: Mapping[str, list[Bin]]
    free: dict[str, list[str]]
    """Free slots of each pool, in its order; taken from the front."""
    idle: tuple[tuple[Claim, Bin | None], ...]
    """OPEN and READY claims whose node is idle, with their bin where jobs may use it."""
    stencils: Stencils


def capacity(
    snapshot: Snapshot, slurm: SlurmView, gangs: AbstractSet[str], private: Mapping[str, Sequence[str]]
) -> Capacity:
    """Reads the bins off a snapshot. ``gangs`` are the words of the gangs that wait: their claims are theirs alone.

    ``private``: see words_of.
    """
    ours = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    reserved_nodes = {
        name for r in slurm.reservations if r.start <= snapshot.now and (not r.end or snapshot.now < r.end)
        for name in r.nodes
    }  # fmt: skip
    bound = {name: job for job, names in snapshot.bound.items() for name in names}
    stencils = Stencils()
    others = slurm.nodes.keys() - ours - reserved_nodes
    common = [
        stencils.of_node(node, Kind.NODE, node.last_busy)
        for name in others
        if _takes_jobs(node := slurm.nodes[name])
    ]  # fmt: skip
    reserved: dict[str, list[Bin]] = {}
    idle: list[tuple[Claim, Bin | None]] = []
    for claim in snapshot.claims:
        pool = snapshot.pools.get(claim.pool)
        if claim.state not in USABLE or pool is None:
            continue
        seen = slurm.nodes.get(claim.slot)
        found = _of_claim(claim, pool, seen, claim.slot in snapshot.held_slots, stencils)
        if found is not None:
            owner = bound.get(claim.slot, "") or (claim.gang if found.kind is Kind.COMING else "")
            if claim.id in private:
                for word in private[claim.id]:
                    reserved.setdefault(word, []).append(found)
            elif owner in gangs or claim.slot in bound:
                reserved.setdefault(owner, []).append(found)
            else:
                common.append(found)
        if (claim.state is ClaimState.OPEN or claim.state is ClaimState.READY) and seen is not None and not seen.busy:
            idle.append((claim, found))
    common.sort(key=_filling_order)
    for bins in reserved.values():
        bins.sort(key=_filling_order)
    free = {name: list(snapshot.free_slots(pool)) for name, pool in snapshot.pools.items()}
    return Capacity(common, reserved, free, tuple(idle), stencils)


def shape_of(node: Node) -> Shape:
    """All that a node has, busy or not."""
    return Shape(node.cpus, node.memory_mib, node.gres, node.features)


def _takes_jobs(node: Node) -> bool:
    # PLANNED: the backfill scheduler keeps it for a job that waits for more than this node.
    return (
        node.cpus_allocated < node.cpus and node.up and not node.drained
        and node.flags.isdisjoint(_KEPT)
    )  # fmt: skip


_KEPT = frozenset({"PLANNED", "MAINTENANCE", "RESERVED", "FAIL", "REBOOT_REQUESTED"})


def _of_claim(claim: Claim, pool: Pool, node: Node | None, held: bool, stencils: Stencils) -> Bin | None:
    if held or (node is not None and node.drained):
        return None
    if claim.state is not ClaimState.OPEN:
        # Slurm may have put jobs there already (it powered the slot up itself): what it gave away is gone.
        if node is not None and node.busy:
            return None
        return stencils.of_shape(pool, claim.slot, Kind.COMING, claim)
    if node is None or node.cpus_allocated >= node.cpus or not node.up:
        return None
    return stencils.of_node(node, Kind.OPEN, max(node.last_busy, claim.opened or claim.since), claim.pool, claim)


def _filling_order(found: Bin) -> tuple[int, bool, int, float, str]:
    """The site's own nodes first, then open ones, busy ones before idle ones, then claims by how far they are."""
    claim = found.claim
    state = _STATE_ORDER.get(claim.state, 0) if claim is not None else 0
    return found.kind, found.whole, state, claim.created if claim is not None else 0.0, found.name


_BITS = 6
_BLOCK = 1 << _BITS
_UNKNOWN = 1 << 62


class Row:
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
        found.row, found.index = self, len(self.bins)
        self.bins.append(found)
        if found.index >> _BITS == len(self._cpus):
            self._cpus.append(_UNKNOWN)
            self._memory.append(_UNKNOWN)
            self._gres.append(_UNKNOWN)
        else:
            self.reopen(found.index)

    def reopen(self, index: int) -> None:
        """The bin may have more room than before."""
        block = index >> _BITS
        self._cpus[block] = self._memory[block] = self._gres[block] = _UNKNOWN

    def find(self, start: int, share: Share, right: Callable[[Bin], bool]) -> int:
        """Index of the first bin, from ``start`` on, that has room for the share and is right; else that of the end."""
        bins = self.bins
        cpus, memory, gres, exclusive = share.cpus, share.memory_mib, share.gres, share.exclusive
        if start < len(bins):
            found = bins[start]
            # Most often the last one has room for the next as well.
            if cpus <= found.cpus and memory <= found.memory_mib and found.fits(share) and right(found):
                return start
        asked = sum([g.count for g in gres])
        index, last = start, len(bins)
        while index < last:
            block = index >> _BITS
            begun, end = index, min((block + 1) << _BITS, last)
            if cpus > self._cpus[block] or memory > self._memory[block] or asked > self._gres[block]:
                index = end
                continue
            for found in bins[index:end]:
                if (
                    cpus <= found.cpus
                    and memory <= found.memory_mib
                    and (not gres or asked <= sum(found.gres.values()))
                    and (found.whole or not exclusive)
                    and found.fits(share)
                    and right(found)
                ):
                    return found.index
            if begun == block << _BITS:
                self._tighten(block)
            index = end
        return last

    def _tighten(self, block: int) -> None:
        some = self.bins[block << _BITS : (block + 1) << _BITS]
        self._cpus[block] = max([found.cpus for found in some])
        self._memory[block] = max([found.memory_mib for found in some])
        self._gres[block] = max([sum(found.gres.values()) for found in some])

    def rest(self, start: int, share: Share, right: Callable[[Bin], bool]) -> Iterator[Bin]:
        """All such bins, in order."""
        index = self.find(start, share, right)
        while index < len(self.bins):
            yield self.bins[index]
            index = self.find(index + 1, share, right)
