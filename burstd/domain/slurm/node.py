"""A Slurm node and a reservation as burstd sees them."""

from __future__ import annotations

from dataclasses import dataclass

from burstd.domain.slurm.shape import Gres


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
    features: frozenset[str] = frozenset()
    reason: str = ""
    address: str = ""
    hostname: str = ""
    reservation: str = ""
    version: str = ""
    boot_time: float = 0.0
    slurmd_start: float = 0.0
    last_busy: float = 0.0
    unreliable_because: str = ""
    """Why what is said of it is not to be trusted, and the remedy; empty: it is."""

    @property
    def powered_down(self) -> bool:
        """No machine behind it, as far as Slurm knows, none on its way, and nothing that Slurm is still to do."""
        return "POWERED_DOWN" in self.flags and not self.flags & {
            "POWERING_UP", "POWER_UP", "POWERING_DOWN", "POWER_DOWN",
        }  # fmt: skip

    @property
    def busy(self) -> bool:
        """A job is on it or still leaving it."""
        return self.cpus_allocated > 0 or self.state in ("ALLOCATED", "MIXED") or "COMPLETING" in self.flags

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
