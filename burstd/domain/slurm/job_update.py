"""What burstd changes of a pending job's request, so that Slurm itself starts it on no other node."""

from __future__ import annotations

from dataclasses import dataclass

from burstd.domain.slurm.shape import Gres


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """One ``scontrol update`` of a pending job: all of it or nothing. What is left out stays as it is."""

    excluded_nodes: frozenset[str]
    """All nodes that it must not run on (``--exclude``), its user's among them; none: it may run on every node."""
    added_nodes: frozenset[str]
    """Those of them that burstd has put there."""
    gres_per_node: tuple[Gres, ...] = ()
    memory_mib: int = 0
    """Of each node."""
    cpus: int = 0
    """Of the job, which takes one node."""
    cpus_per_node: int = 0
    """Of each of its nodes."""
    start_now: bool = False
    """Set its begin time to now."""
