"""What a replay has come to: figures of each chain of policies, its course, and each of its jobs.

Times are in seconds since 1970 by the virtual clock, lengths of time in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Figures:
    """One chain in numbers. Jobs are those submitted within the window; machines are all that were paid for."""

    jobs: int
    """Jobs submitted in the window that the site or a pool can run at all."""
    mean_wait_s: float
    """A job waits from its submission until the start of the run that it ends with."""
    p50_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    bounded_slowdown: float
    """Mean of max(1, (wait + run) / max(run, 10 s)) (Feitelson, Metrics for Parallel Job Scheduling, 2001)."""
    cloud_gpu_hours: float
    """Paid: whole machines, from their launch to their end, boot and idle time included."""
    cloud_node_hours: float
    cloud_busy_gpu_hours: float
    """GPUs that jobs were using, over time."""
    cost: Decimal
    currency: str
    waste: float
    """Share of the paid machine time in which no job was on the machine; 0 where nothing was paid."""
    launches: int
    interruptions: int
    """Spot machines that were taken back."""
    stockouts: int
    """Launches that a cloud had no machine for."""
    cloud_jobs: int
    """Of ``jobs``, those that ran on cloud machines."""
    unfinished: int
    """Of ``jobs``, those that had not ended when the replay was stopped."""
    impossible: int
    """Jobs of the window that neither the site nor a pool can ever run; they are not in ``jobs``."""
    used_site: float
    """Share of the site's GPU time (CPU time where it has none) that jobs used within the window."""
    decisions: int
    """How often the decision code was asked."""
    elapsed_s: float
    """Processor time that the replay of this chain took: it differs from one replay to the next."""


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """The state of things at one moment."""

    time: float
    pending_jobs: int
    site_busy: int
    """GPUs of the site in use (CPUs where it has none)."""
    cloud_nodes: int
    """Machines paid for."""
    cloud_busy: int
    """Of these, those with a job on them."""


@dataclass(frozen=True, slots=True)
class SimulatedJobRun:
    """One job of the window. ``started`` is of the run that it ended with; infinite where it never did."""

    id: str
    submitted: float
    started: float
    ended: float
    gpus: int
    nodes: int
    burst: bool
    """It ran on cloud machines."""
    interruptions: int = 0
    site_nodes: tuple[int, ...] = ()
    """Nodes of the site that it ran on, by number from 0."""

    @property
    def wait_s(self) -> float:
        """From its submission to its start."""
        return self.started - self.submitted


@dataclass(frozen=True, slots=True)
class ChainResult:
    """One chain of policies."""

    chain: str
    """As it was asked for: ``wait_aware,idle``, ``immediate``, ``aged:600``."""
    figures: Figures
    timeline: tuple[TimelineSample, ...]
    """At even distances over the window and what comes after it, at most a few hundred."""
    jobs: tuple[SimulatedJobRun, ...]
    """In the order of their submission."""


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The part of the trace that was replayed."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Several chains over one window of one trace."""

    title: str
    trace: str
    """The file and its format."""
    site: str
    """``31 nodes with 8 GPUs (load 1.00)``."""
    cloud: str
    """Pools and prices, in words."""
    window: TraceWindow
    seed: int
    results: tuple[ChainResult, ...]
    notes: tuple[str, ...] = ()
    """What was assumed, in sentences."""
    site_size: int = 0
    """The most that ``site_busy`` can be; 0: not said."""
    site_unit: str = "GPUs"
    """What ``site_busy`` counts."""
