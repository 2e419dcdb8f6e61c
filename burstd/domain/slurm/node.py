"""A Slurm node and a reservation as burstd sees them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import SHARD, Gres, SharedGpu

LIFE_SIGN = '{"burstd-alive":'
"""How Extra of a node begins where it is burstd's (node/scripts/watch.sh reads it).

JSON, as slurmctld with ``extra_constraints`` takes nothing else.
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as ``scontrol show node`` tells it.

    ``state`` is Slurm's base state (IDLE, ALLOCATED, MIXED, DOWN, ERROR, FUTURE, UNKNOWN), ``flags`` the rest by
    Slurm's names (CLOUD, POWERED_DOWN, POWERING_UP, POWERING_DOWN, POWER_UP, POWER_DOWN, DRAIN, COMPLETING,
    NOT_RESPONDING, RESERVED, PLANNED, MAINTENANCE, INVALID_REG, DYNAMIC_NORM, ...).
    Memory in MiB, times in seconds since 1970 in burstd's own time.
    """

    name: str
    state: str
    flags: frozenset[str] = frozenset()
    partitions: tuple[str, ...] = ()
    cpus: int = 1
    cpus_allocated: int = 0
    memory_mib: int = 0
    memory_allocated_mib: int = 0
    gres: tuple[Gres, ...] = ()
    gres_used: tuple[Gres, ...] = ()
    """Of shards before Slurm 23.11 the GPUs that any are in use of."""
    features: frozenset[str] = frozenset()
    reason: str = ""
    comment: str = ""
    extra: str = ""
    address: str = ""
    hostname: str = ""
    reservation: str = ""
    version: str = ""
    boot_time: float = 0.0
    slurmd_start: float = 0.0
    last_busy: float = 0.0
    unreliable_because: str = ""
    """Why what is said of it is not to be trusted, and the remedy; empty: it is."""
    shared_gpus: tuple[SharedGpu, ...] = ()
    """What is left of each GPU, in Slurm's order; empty where the node has no shards."""
    has_suspended_job: bool = False
    """Slurm shows a node of suspended jobs alone as IDLE, though their processes are there."""

    @property
    def powered_down(self) -> bool:
        """No machine behind it, as far as Slurm knows, none on its way, and nothing that Slurm is still to do."""
        return "POWERED_DOWN" in self.flags and not self.flags & {
            "POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN",
        }  # fmt: skip

    @property
    def busy(self) -> bool:
        """A job is on it or still leaving it."""
        allocated = self.cpus_allocated > 0 or self.state in ("ALLOCATED", "MIXED")
        return allocated or "COMPLETING" in self.flags or self.has_suspended_job

    @property
    def up(self) -> bool:
        """Registered, answering, and powered up: jobs could run if nothing keeps them off."""
        return self.state in ("IDLE", "ALLOCATED", "MIXED") and not self.flags & {
            "POWERED_DOWN", "POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN", "NOT_RESPONDING", "INVALID_REG",
        }  # fmt: skip

    @property
    def responding(self) -> bool:
        """slurmctld hears its slurmd: it is registered, not silent, and not being powered up or down."""
        return self.state in ("IDLE", "ALLOCATED", "MIXED") and not self.flags & {
            "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "NOT_RESPONDING",
        }  # fmt: skip

    @property
    def drained(self) -> bool:
        """Somebody (a person or a health check) keeps new jobs off it, by draining it or setting it down."""
        return "DRAIN" in self.flags


def with_suspended_jobs(nodes: Mapping[str, Node], jobs: Iterable[Job]) -> Mapping[str, Node]:
    """The nodes, those of suspended jobs marked."""
    names = {name for job in jobs if job.state is JobState.SUSPENDED for name in job.node_list} & nodes.keys()
    return {**nodes, **{name: replace(nodes[name], has_suspended_job=True) for name in names}} if names else nodes


def with_shards_in_use(nodes: Mapping[str, Node], jobs: Iterable[Job]) -> dict[str, Node]:
    """The nodes, with what jobs leave of GPUs of which Slurm does not say how many shards are in use.

    So many jobs use as many GPUs at most. Of these one has at least the mean of what all of them have left; the others
    count as full.
    """
    found = dict(nodes)
    in_use: dict[str, list[int]] = {
        name: [] for name, node in nodes.items() if not all(gpu.exact for gpu in node.shared_gpus)
    }
    for job in jobs if in_use else ():
        shards = sum(g.count for g in job.gres_per_node if g.name == SHARD) if job.state is not JobState.PENDING else 0
        for name in job.node_list if shards else ():
            in_use.get(name, []).append(shards)
    for name, used in in_use.items():
        gpus = list(nodes[name].shared_gpus)
        touched = [place for place, gpu in enumerate(gpus) if gpu.free][: len(used)]
        left = max(0, sum(gpus[place].free for place in touched) - sum(used))
        for place in touched:
            gpus[place] = replace(gpus[place], free=min(-(-left // len(touched)), gpus[place].shards - 1))
            left = 0
        found[name] = replace(nodes[name], shared_gpus=tuple(gpus))
    return found


@dataclass(frozen=True, slots=True)
class Reservation:
    """A Slurm reservation. Times in seconds since 1970 in burstd's own time."""

    name: str
    nodes: frozenset[str]
    users: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    job_id: str = ""
    """The job that it was made for by Scheduler.bind; empty: it is none of those."""
    start: float = 0.0
    end: float = 0.0
