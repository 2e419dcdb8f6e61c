"""Slurm's nodes for the machines of the replay: slots, off or up, and pools that have as many as are needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.simulate.traces.window import Unit
from burstd.simulate.world.market import size_of

SPARE_SLOTS = 8
"""Slots that a pool which grows has beyond what is needed."""
_OFF = frozenset({"CLOUD", "POWERED_DOWN"})
_UP = frozenset({"CLOUD"})


class SimulatedSlots:
    """All slots, by pool."""

    def __init__(self, pools: Sequence[Pool], unit: Unit) -> None:
        self.pools = {pool.name: pool for pool in pools}
        self.nodes: dict[str, Node] = {}
        """Slurm's nodes."""
        self._unit = unit
        self._growing = sorted((size_of(p.shape, unit), p.name) for p in pools if not p.slots)
        self._off: dict[str, Node] = {}
        for pool in pools:
            self._declare(pool, pool.slots)

    def resize_pools(self, wanted: Mapping[int, int], claimed: Mapping[str, int], taken: Container[str]) -> None:
        """Gives pools that grow the slots that ``wanted`` nodes (by their units) need; lets go of very many.

        ``claimed``: how many slots of each pool have machines; ``taken``: these slots.
        """
        sizes = [size for size, _ in self._growing]
        need = [0] * len(sizes)
        for units, nodes in wanted.items():
            at = bisect_left(sizes, units)
            if at < len(sizes):
                need[at] += nodes
        for (_, name), more in zip(self._growing, need, strict=True):
            pool = self.pools[name]
            enough = claimed[name] + more
            if enough > len(pool.slots) or not pool.slots:
                self._resize(pool, SPARE_SLOTS + enough + enough // 4)
            elif len(pool.slots) > 4 * SPARE_SLOTS + 2 * enough:
                self._shrink(pool, SPARE_SLOTS + enough + enough // 4, taken)

    def mark_in_service(self, slot: str, pool: str, used: int, last_busy: float) -> None:
        """Its machine is open; so many units are in use."""
        shape = self.pools[pool].shape
        state = "MIXED" if used else "IDLE"
        if used == size_of(shape, self._unit):
            state = "ALLOCATED"
        self.nodes[slot] = replace(
            self._off[slot], state=state, flags=_UP, cpus_allocated=used, gres_used=gres_used(shape, used, self._unit),
            last_busy=last_busy,
        )  # fmt: skip

    def mark_powered_down(self, slot: str) -> None:
        """It has no machine any more."""
        self.nodes[slot] = self._off[slot]

    def _resize(self, pool: Pool, count: int) -> None:
        slots = tuple(f"{pool.name}-{i}" for i in range(1, count + 1))
        self.pools[pool.name] = replace(pool, slots=slots)
        self._declare(pool, slots[len(pool.slots) :])

    def _shrink(self, pool: Pool, count: int, taken: Container[str]) -> None:
        slots = list(pool.slots)
        while len(slots) > count and slots[-1] not in taken:
            slot = slots.pop()
            del self.nodes[slot], self._off[slot]
        self.pools[pool.name] = replace(pool, slots=tuple(slots))

    def _declare(self, pool: Pool, slots: Sequence[str]) -> None:
        shape = pool.shape
        for slot in slots:
            node = Node(
                slot, "IDLE", _OFF, pool.partitions, shape.cpus, 0, shape.memory_mib, 0, shape.gres,
                features=shape.features,
            )  # fmt: skip
            self._off[slot] = self.nodes[slot] = node


def gres_used(shape: Shape, used: int, unit: Unit) -> tuple[Gres, ...]:
    """GPUs in use, of a node's types in their order."""
    found: list[Gres] = []
    for gres in shape.gres if unit == "gpu" else ():
        if gres.name == "gpu" and used:
            found.append(Gres(gres.name, gres.type, min(used, gres.count)))
            used -= found[-1].count
    return tuple(found)
