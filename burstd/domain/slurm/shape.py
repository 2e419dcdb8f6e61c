"""What a node has, or what a job needs of one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

SHARD = "shard"
"""Slurm's GRES for a part of a GPU."""
PARTS_OF_GPUS = frozenset({SHARD, "mps"})
"""GRES that Slurm makes of GPUs: no cloud knows them."""
_MAX_SHARED_GPUS = 1024
"""Of one node, more than any has."""


@dataclass(frozen=True, slots=True, order=True)
class Gres:
    """Generic resources of one name and type, as Slurm counts them (``gpu:v100:4``).

    ``type`` is empty where none is named: on a node it means untyped, in a request it means any type.
    """

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        return f"{self.name}:{self.type}:{self.count}" if self.type else f"{self.name}:{self.count}"


@dataclass(frozen=True, slots=True)
class Shape:
    """CPUs (Slurm's CPUs, that is threads or cores as the site counts them), memory in MiB, GRES, features."""

    cpus: int
    memory_mib: int
    gres: tuple[Gres, ...] = ()
    features: frozenset[str] = frozenset()

    def gpus(self) -> int:
        """Number of GPUs of every type."""
        return sum(g.count for g in self.gres if g.name == "gpu")

    def shards_per_gpu(self) -> int:
        """Shards of its largest GPU, which is what one job can get; 0: it has no shards."""
        return max((gpu.shards for gpu in split_shards(self.gres)), default=0)


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """One GPU of a node that has ``gres/shard``."""

    type: str
    shards: int
    free: int
    """Shards that jobs may still take; all of them: nothing is on it, and a job may have it whole."""
    whole: bool = False
    """A job has it for itself, without shards."""
    exact: bool = True
    """False: Slurm does not say how many are in use (22.05); burstd.domain.slurm.node.with_shards_in_use reckons."""


def split_shards(gres: Sequence[Gres]) -> tuple[SharedGpu, ...]:
    """The GPUs of a node and the shards of each, in Slurm's order; empty where it has no shards, or no GPUs.

    As slurmd spreads ``Name=shard Count=N`` of gres.conf: evenly, what is left over on the last GPUs.
    """
    count = sum(g.count for g in gres if g.name == "gpu")
    left = sum(g.count for g in gres if g.name == SHARD)
    if not 0 < count <= min(left, _MAX_SHARED_GPUS):
        return ()
    types = [g.type for g in gres if g.name == "gpu" for _ in range(g.count)]
    found = []
    for number, kind in enumerate(types):
        shards = left // (len(types) - number)
        found.append(SharedGpu(kind, shards, shards))
        left -= shards
    return tuple(found)


def shards_of_gpus(gres: Iterable[Sequence[Gres]]) -> frozenset[int]:
    """How many shards the GPUs of these nodes have; those that have none are left out."""
    return frozenset(gpu.shards for there in set(map(tuple, gres)) for gpu in split_shards(there))


def gpus_of(gres: Iterable[Gres], shards_per_gpu: int) -> Fraction:
    """GPUs that a request or a shape comes to: a shard counts as its part of a GPU, 0 where no GPU has shards."""
    parts = [(g.count, 1) if g.name == "gpu" else (g.count, shards_per_gpu) for g in gres if g.name in ("gpu", SHARD)]
    return sum((Fraction(count, of) for count, of in parts if of), Fraction(0))
