"""What a node has, or what a job needs of one node."""

from __future__ import annotations

from dataclasses import dataclass


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
