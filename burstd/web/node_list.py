"""All nodes of the last snapshot, those of pools and the site's own, with their GPUs. The same for every caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from burstd.api.backend import SLICE, Backend
from burstd.api.routers.nodes import ListedNode, listed_gres, listed_nodes, own_nodes
from burstd.domain.plan import Plan
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.planner.explain.gpu_map import GpuCell, gpu_cells, idle_gpu_texts


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
    for listed in listed_nodes(snapshot, backend.reader.drained_slots()):
        node = nodes.get(listed.slot) if listed.in_slurm else None
        gres = listed_gres(snapshot, listed)
        yield NodeEntry(listed, node, gpu_cells(gres, node, listed.claim, idle.get(listed.slot, ()), slot=True))
    for listed in own_nodes(snapshot):
        node = nodes[listed.slot]
        yield NodeEntry(listed, node, gpu_cells(node.gres, node, None, idle.get(listed.slot, ()), slot=False))
