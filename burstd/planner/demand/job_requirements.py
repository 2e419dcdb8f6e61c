"""What a job needs: of each node, over all nodes, and how many nodes of a given shape that makes. Slurm's semantics.

Slurm spreads what is asked for over all nodes (``-n``, ``--gpus``) as it likes; here it is spread evenly, which is
enough for the equal nodes of a pool. Memory for each CPU bounds the CPUs that one node can give.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from burstd.domain.slurm.job import Job
from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import PARTS_OF_GPUS, SHARD, Gres, Shape, gpus_of, shards_of_gpus
from burstd.planner.demand.feature_expression import Constraint, parse_constraint
from burstd.planner.demand.gres import GresCounts, available_gres, gres_text, lacking_gres


@dataclass(frozen=True, slots=True)
class PartitionDefaults:
    """What the partition gives a job that asks for no memory. MiB, for each CPU or each node; 0: nothing."""

    memory_mib: int = 0
    memory_per_cpu: bool = False


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What one node must give a job: CPUs, MiB, GRES; the whole node where exclusive."""

    cpus: int
    memory_mib: int
    gres: tuple[Gres, ...] = ()
    exclusive: bool = False

    def lacking(self, shape: Shape) -> str:
        """What an empty node of this shape lacks (``64 CPUs (a node has 16)``); empty: it fits."""
        if self.cpus > shape.cpus:
            return f"{self.cpus} CPUs (a node has {shape.cpus})"
        if self.memory_mib > shape.memory_mib:
            return f"{self.memory_mib} MiB of memory (a node has {shape.memory_mib})"
        if self.exclusive and any(g.name == SHARD for g in self.gres):
            # slurmctld gives an exclusive job the whole GPUs, and then finds no shards left for it.
            return "shards for a job with --exclusive (request gpu:1, or leave --exclusive out)"
        return lacking_gres(GresCounts(shape.gres), self.gres)

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPUs", f"{self.memory_mib} MiB" if self.memory_mib else "", gres_text(self.gres)]
        return ", ".join(p for p in parts if p) + (", whole nodes" if self.exclusive else "")


@dataclass(frozen=True, slots=True)
class ResourceRequirements:
    """What a job (or one task of an array, or one component of a het job) needs."""

    nodes: int
    """Fewest nodes."""
    nodes_max: int
    """Most nodes; 0: no limit."""
    cpus: int
    """CPUs over all nodes."""
    cpus_per_node: int
    """Fewest CPUs of each node."""
    memory_mib: int
    """MiB of each node, or of each CPU where ``memory_per_cpu``; 0: none asked for."""
    memory_per_cpu: bool
    gres_per_node: tuple[Gres, ...]
    gres_per_job: tuple[Gres, ...]
    constraint: Constraint
    exclusive: bool

    @property
    def asks_for_gpus(self) -> bool:
        """True where it asks for GPUs, or for parts of one."""
        return any(g.name == "gpu" or g.name in PARTS_OF_GPUS for g in (*self.gres_per_node, *self.gres_per_job))

    def share_per_node(self, nodes: int) -> NodeShare:
        """What each of so many nodes gives, spread evenly."""
        cpus = max(1, self.cpus_per_node, -(-self.cpus // nodes))
        spread = tuple(Gres(g.name, g.type, -(-g.count // nodes)) for g in self.gres_per_job if g.count)
        memory = self.memory_mib * cpus if self.memory_per_cpu else self.memory_mib
        return NodeShare(cpus, memory, self.gres_per_node + spread, self.exclusive)

    def nodes_needed(self, shape: Shape) -> int | str:
        """How many empty nodes of this shape it takes, or what one of them lacks."""
        usable = shape.cpus
        if self.memory_per_cpu and self.memory_mib:
            usable = min(usable, shape.memory_mib // self.memory_mib)
            if usable < max(1, self.cpus_per_node):
                return f"{self.memory_mib} MiB per CPU (a node has {shape.memory_mib} MiB)"
        if usable < 1:
            return f"{self.cpus} CPUs (a node has {shape.cpus})"
        nodes = max(self.nodes, self.constraint.min_nodes, -(-self.cpus // usable))
        gres_counts = GresCounts(shape.gres)
        for gres in self.gres_per_job:
            count = available_gres(gres_counts, gres.name, gres.type)
            if gres.count and not count:
                return str(gres)
            nodes = max(nodes, -(-gres.count // count) if gres.count else 0)
        if self.nodes_max and nodes > max(self.nodes_max, self.nodes):
            most = max(self.nodes_max, self.nodes)
            return f"{self.share_per_node(most)} (needed on each of {most} node(s))"
        return self.share_per_node(nodes).lacking(shape) or nodes


_NONE = PartitionDefaults()


def resource_requirements(job: Job, defaults: PartitionDefaults = _NONE) -> ResourceRequirements:
    """What the job needs; ``defaults`` are its partition's."""
    asked = job.memory_mib > 0
    return ResourceRequirements(
        nodes=max(1, job.nodes),
        nodes_max=job.nodes_max,
        cpus=max(1, job.cpus, job.cpus_per_node * max(1, job.nodes)),
        cpus_per_node=job.cpus_per_node,
        memory_mib=job.memory_mib if asked else defaults.memory_mib,
        memory_per_cpu=job.memory_per_cpu if asked else defaults.memory_per_cpu,
        gres_per_node=tuple(g for g in job.gres_per_node if g.count),
        gres_per_job=tuple(g for g in job.gres_per_job if g.count),
        constraint=parse_constraint(job.constraint),
        # With all of a node's memory it leaves nothing that another job could run in.
        exclusive=job.exclusive or job.memory_whole,
    )


def dominant_share(job: Job, there: Node | Shape, nodes: int) -> Fraction:
    """The largest of the shares of a node's CPUs, memory and GPUs that a job has, spread evenly over so many nodes."""
    asked = resource_requirements(job).share_per_node(max(1, nodes))
    if asked.exclusive:
        return Fraction(1)
    shards = max(shards_of_gpus([there.gres]), default=0)
    parts = (
        (Fraction(asked.cpus), Fraction(there.cpus)),
        (Fraction(asked.memory_mib), Fraction(there.memory_mib)),
        (gpus_of(asked.gres, shards), gpus_of([g for g in there.gres if g.name == "gpu"], shards)),
    )
    return max((part / whole for part, whole in parts if whole), default=Fraction(1))
