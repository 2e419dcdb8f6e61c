"""What each GPU of a node does, as far as Slurm and the claims show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.idle_gpus import IdleJob
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres


class GpuState(StrEnum):
    """Of one GPU, in the order of legends."""

    USED = "used"
    IDLE = "idle"
    """Its job does not use it, and was warned."""
    SHARED = "shared"
    FREE = "free"
    STARTING = "starting"
    OUT = "out of service"
    ASLEEP = "asleep"


_MARKS = {
    GpuState.USED: "\u25cf",
    GpuState.IDLE: "\u25d0",
    GpuState.FREE: "\u25cb",
    GpuState.STARTING: "\u2026",
    GpuState.OUT: "\u2715",
    GpuState.ASLEEP: "\u00b7",
}
_STARTING = frozenset({S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY})
_FAULTS = frozenset({"NOT_RESPONDING", "FAIL", "INVALID_REG"})


@dataclass(frozen=True, slots=True)
class GpuCell:
    """One GPU on the map. ``mark`` tells its state without colour, ``text`` in words."""

    state: GpuState
    mark: str
    text: str


@cache
def _cell(state: GpuState, text: str = "") -> GpuCell:
    return GpuCell(state, _MARKS[state], text or state.value)


@cache
def _shared(used: int, shards: int) -> GpuCell:
    return GpuCell(GpuState.SHARED, f"{used}/{shards}", f"shared, {used} of {shards} shards in use")


def idle_gpu_texts(jobs: Iterable[IdleJob]) -> Mapping[str, Sequence[str]]:
    """By node, a text for each GPU that its job does not use."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        for node in job.nodes:
            found.setdefault(node.node, []).extend([job.text] * node.gpus)
    return found


def gpu_cells(
    gres: Iterable[Gres], node: Node | None, claim: Claim | None, idle: Sequence[str] = (), *, slot: bool
) -> tuple[GpuCell, ...]:
    """The GPUs of a node, in Slurm's order.

    ``gres``: what the node has; ``slot``: it is one of a pool; ``idle``: of idle_gpu_texts. Where GPUs have no shards
    Slurm's counts say how many are in use, not which.
    """
    gpus = [g for g in gres if g.name == "gpu"]
    if not gpus:
        return ()
    number = sum(g.count for g in gpus)
    if claim is not None and claim.state in _STARTING:
        return (_cell(GpuState.STARTING),) * number
    if claim is not None and claim.state in (S.FAILED, S.LOST):
        return (_cell(GpuState.OUT, claim.state.value),) * number
    if slot and (claim is None or claim.state not in (S.IN_SERVICE, S.DRAINING)):
        drained = claim is None and node is not None and (node.drained or node.state == "DOWN")
        return (_cell(GpuState.OUT, "held") if drained else _cell(GpuState.ASLEEP),) * number
    if node is None:
        return (_cell(GpuState.OUT, "not known to Slurm"),) * number
    if node.state in ("DOWN", "ERROR", "UNKNOWN") or node.flags & _FAULTS:
        return (_cell(GpuState.OUT, "its node is down"),) * number
    closing = node.drained or (claim is not None and claim.state is S.DRAINING)
    unused = _cell(GpuState.OUT, "its node is drained") if closing else _cell(GpuState.FREE)
    used = _cell(GpuState.USED, "in use")
    cells = _shared_cells(node, used, unused) if node.shared_gpus else _whole_cells(gpus, node, used, unused)
    texts = iter(idle)
    return tuple(_idle_cell(next(texts, "")) or cell if cell is used else cell for cell in cells)


def _idle_cell(text: str) -> GpuCell | None:
    return GpuCell(GpuState.IDLE, _MARKS[GpuState.IDLE], text) if text else None


def _shared_cells(node: Node, used: GpuCell, unused: GpuCell) -> Iterator[GpuCell]:
    for gpu in node.shared_gpus:
        if gpu.whole:
            yield used
        elif gpu.free >= gpu.shards:
            yield unused
        else:
            yield _shared(gpu.shards - gpu.free, gpu.shards)


def _whole_cells(gpus: Iterable[Gres], node: Node, used: GpuCell, unused: GpuCell) -> Iterator[GpuCell]:
    taken = Counter[str]()
    for g in node.gres_used:
        if g.name == "gpu":
            taken[g.type] += g.count
    for g in gpus:
        busy = min(g.count, taken[g.type] + (taken[""] if g.type else 0))
        yield from (used,) * busy
        yield from (unused,) * (g.count - busy)


def count_gpus(cells: Iterable[GpuCell]) -> dict[GpuState, int]:
    """GPUs by state, those of which there are none left out."""
    found = Counter(cell.state for cell in cells)
    return {state: found[state] for state in GpuState if found[state]}
