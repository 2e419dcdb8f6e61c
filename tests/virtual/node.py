"""Nodes of the simulated Slurm: what is on them, and their state by Slurm's names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from burstd.domain.slurm.node import Node
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.demand.feature_expression import parse_constraint
from tests.virtual.clock import Alarm
from tests.virtual.job import JobSpec

_COMING_OR_GOING = frozenset({"POWER_DOWN", "POWERING_DOWN", "DRAIN"})


@dataclass(slots=True)
class _Share:
    cpus: int
    memory_mib: int
    gres: dict[Gres, int]
    exclusive: bool


@dataclass(slots=True)
class SimNode:
    """One node. ``down`` and ``flags`` are slurmctld's belief; ``slurmd`` is whether one answers under its name."""

    name: str
    shape: Shape
    partitions: tuple[str, ...]
    cloud: bool
    down: bool = False
    flags: set[str] = field(default_factory=set)
    slurmd: bool = False
    reason: str = ""
    extra: str = ""
    address: str = ""
    reserved_by: set[str] = field(default_factory=set)
    """Reservations that hold it."""
    boot_time: float = 0.0
    last_response: float = 0.0
    last_busy: float = 0.0
    """By the system's clock; 0: never."""
    asked: float = 0.0
    """When it was last asked to power up or down, by slurmctld's clock."""
    alarm: Alarm | None = None
    """ResumeTimeout, SuspendTimeout or SlurmdTimeout, whichever runs."""
    shares: dict[int, _Share] = field(default_factory=dict)
    completing: set[int] = field(default_factory=set)
    cpus_used: int = 0
    memory_used: int = 0
    gres_used: dict[Gres, int] = field(default_factory=dict)
    _cached_view: tuple[float, Node] | None = None

    def __post_init__(self) -> None:
        if not self.address:
            self.address = self.name

    @property
    def open_to_jobs(self) -> bool:
        """True where the scheduler may place jobs on it, if no reservation forbids it: idle~ ones included."""
        if self.down or self.flags & _COMING_OR_GOING:
            return False
        return "NOT_RESPONDING" not in self.flags or "POWERING_UP" in self.flags

    @property
    def up(self) -> bool:
        """Registered and answering."""
        return not self.down and not self.flags & {"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "NOT_RESPONDING"}

    def changed(self) -> None:
        """Forgets the view that was made of it."""
        self._cached_view = None

    def could_fit(self, spec: JobSpec) -> bool:
        """True where an empty node of this kind could take the job's part."""
        shape = self.shape
        return (
            shape.cpus >= spec.cpus_per_node
            and shape.memory_mib >= spec.memory_mib
            and _has_features(spec.constraint, shape.features)
            and _allocatable_gres(shape.gres, {}, spec.gres_per_node) is not None
        )

    def fits(self, spec: JobSpec) -> bool:
        """True where the job's part fits beside what is there. ``could_fit`` is taken as given."""
        if spec.exclusive or any(share.exclusive for share in self.shares.values()):
            return not self.shares
        return (
            self.shape.cpus - self.cpus_used >= spec.cpus_per_node
            and self.shape.memory_mib - self.memory_used >= spec.memory_mib
            and _allocatable_gres(self.shape.gres, self.gres_used, spec.gres_per_node) is not None
        )

    def allocate(self, job: int, spec: JobSpec) -> None:
        """Gives the job its part. Raises ValueError where it does not fit."""
        if spec.exclusive:
            gres = {g: g.count for g in self.shape.gres}
            share = _Share(self.shape.cpus, self.shape.memory_mib, gres, exclusive=True)
        else:
            taken = _allocatable_gres(self.shape.gres, self.gres_used, spec.gres_per_node)
            if taken is None:
                raise ValueError(f"{self.name} has not got {spec.gres_per_node}")
            share = _Share(spec.cpus_per_node, spec.memory_mib, taken, exclusive=False)
        self.shares[job] = share
        self._count(share, 1)

    def free(self, job: int, now: float) -> None:
        """Takes the job's part back, where it has one."""
        share = self.shares.pop(job, None)
        self.completing.discard(job)
        if share is not None:
            self._count(share, -1)
            self.last_busy = now
        self.changed()

    def _count(self, share: _Share, sign: int) -> None:
        self.cpus_used += sign * share.cpus
        self.memory_used += sign * share.memory_mib
        for gres, count in share.gres.items():
            self.gres_used[gres] = self.gres_used.get(gres, 0) + sign * count
        self.changed()

    def view(self, behind: float) -> Node:
        """As burstd sees it, with the system's clock so far behind burstd's by now."""
        if self._cached_view is None or self._cached_view[0] != behind:
            if self.down:
                state = "DOWN"
            elif not self.shares:
                state = "IDLE"
            else:
                state = "ALLOCATED" if self.cpus_used >= self.shape.cpus else "MIXED"
            flags = set(self.flags) | ({"CLOUD"} if self.cloud else set())
            if self.reserved_by:
                flags.add("RESERVED")
            if self.completing:
                flags.add("COMPLETING")
            seen = Node(
                name=self.name, state=state, flags=frozenset(flags), partitions=self.partitions,
                cpus=self.shape.cpus, cpus_allocated=self.cpus_used, memory_mib=self.shape.memory_mib,
                memory_allocated_mib=self.memory_used, gres=self.shape.gres,
                gres_used=tuple(Gres(g.name, g.type, n) for g, n in self.gres_used.items() if n),
                features=self.shape.features, reason=self.reason, address=self.address, hostname=self.address,
                reservation=min(self.reserved_by, default=""), version="22.05.8", boot_time=self.boot_time,
                slurmd_start=self.boot_time, last_busy=self.last_busy + behind if self.last_busy else 0.0,
            )  # fmt: skip
            self._cached_view = (behind, seen)
        return self._cached_view[1]


def _allocatable_gres(there: Iterable[Gres], used: dict[Gres, int], wanted: tuple[Gres, ...]) -> dict[Gres, int] | None:
    """How many of which of a node's GRES a request gets; None: it has not enough left."""
    taken: dict[Gres, int] = {}
    for want in wanted:
        left = want.count
        for gres in there:
            if gres.name == want.name and want.type in ("", gres.type):
                got = min(left, gres.count - used.get(gres, 0) - taken.get(gres, 0))
                if got > 0:
                    taken[gres] = taken.get(gres, 0) + got
                    left -= got
        if left > 0:
            return None
    return taken


@lru_cache(maxsize=4096)
def _has_features(constraint: str, features: frozenset[str]) -> bool:
    return not constraint or parse_constraint(constraint).may_use(features)
