"""All nodes of the last snapshot, those of pools and the site's own, with their GPUs. The same for every caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from burstd.api.backend import SLICE, Backend
from burstd.api.routers.nodes import ListedNode, listed_nodes
from burstd.domain.plan import Plan
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.gpu_map import GpuCell, gpu_cells, idle_gpu_texts

ON_PREMISES = "on premises"
"""Stands in place of the pool of nodes that no pool has."""


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A slot or claim, or a node of the site's own."""

    listed: ListedNode
    node: Node | None
    """As Slurm has it."""
    gpus: tuple[GpuCell, ...]


def node_entries(backend: Backend, loop: tuple[Snapshot, Plan]) -> Sequence[NodeEntry]:
    """All nodes, pool by pool, then the site's own by name."""
    snapshot, plan = loop
    entries = _entries(snapshot, idle_gpu_texts(plan.idle_gpus), backend)
    return tuple(backend.precedence().slices(entries, SLICE))


def _entries(snapshot: Snapshot, idle: Mapping[str, Sequence[str]], backend: Backend) -> Iterator[NodeEntry]:
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    seen = set()
    for listed in listed_nodes(snapshot, backend.reader.drained_slots()):
        seen.add(listed.slot)
        node = nodes.get(listed.slot) if listed.in_slurm else None
        pool = snapshot.pools.get(listed.pool)
        gres = pool.shape.gres if pool is not None else node.gres if node is not None else ()
        yield NodeEntry(listed, node, gpu_cells(gres, node, listed.claim, idle.get(listed.slot, ()), slot=True))
    for name in sorted(nodes.keys() - seen, key=_natural):
        node = nodes[name]
        cells = gpu_cells(node.gres, node, None, idle.get(name, ()), slot=False)
        yield NodeEntry(ListedNode(name, ON_PREMISES, node.state.lower()), node, cells)


def _natural(name: str) -> tuple[str, int, str]:
    """Orders ``n2`` before ``n10``."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name
