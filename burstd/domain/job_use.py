"""What a job used of the CPUs, memory and GPUs that it had, as its nodes measured it.

Root on a rented node may lie in all of it: it is shown, and the job may be warned or ended for it (idle_gpus.py). No
money and no end of a machine is decided by it. Missing figures are never zero: a node, a GPU or a sample that was not
seen is not there, or None.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from burstd.domain.slurm.job import Job


class GpuShare(StrEnum):
    """How much of a GPU a job had. Figures of a GPU that is not WHOLE are of all jobs on it together."""

    WHOLE = "whole"
    MIG = "mig"
    """An instance of a GPU that is divided by MIG."""
    SHARD = "shard"
    """GRES ``shard``, or ``mps``: several jobs on one GPU."""


@dataclass(frozen=True, slots=True)
class Series:
    """Figures at equal distances in time, for a plot. At most 2,000 points; neighbours are joined when it is full."""

    start: float
    """Of the first point, in burstd's time."""
    every_s: float
    """Each point is the mean, and the peak, of so many seconds."""
    mean: tuple[float | None, ...]
    """None: nothing was measured in this time."""
    peak: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU of a job on one node.

    A sample is idle where utilisation is below ``[sampler] idle_below_percent`` and the memory in use has changed by
    less than 64 MiB since the sample before. Time that was not measured counts neither as idle nor as seen.
    """

    uuid: str
    """``GPU-...`` or ``MIG-...``, as nvidia-smi writes it."""
    index: int
    """nvidia-smi's, on its node; of a MIG device that of its GPU."""
    model: str
    """nvidia-smi's name: ``NVIDIA A100-SXM4-80GB``."""
    share: GpuShare
    utilisation_mean: float | None
    """Percent of the time in which a kernel ran (utilization.gpu); None: nvidia-smi does not say, as of MIG."""
    utilisation_peak: float | None
    memory_peak_mib: int
    memory_mib: int
    """Of the whole GPU."""
    seen_s: float
    """Seconds that were measured."""
    idle_s: float
    """Of these, seconds in which it was idle, in all."""
    idle_now_s: float
    """Seconds for which it was idle without a break up to ``sampled_at``; a gap in the samples begins it anew."""
    sampled_at: float
    """When it was last measured, in burstd's time; old where the GPU or the node is lost, or nothing was fetched."""
    series: Series | None = None
    """Of the utilisation in percent."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What a job used of one node, from its start there to ``sampled_at``. Memory in MiB."""

    node: str
    cpus: int
    """Allocated to the job; 0: not known."""
    memory_mib: int
    """Allocated to the job; 0: not known."""
    started: float
    """When the job's processes were first seen there, in burstd's time."""
    sampled_at: float
    """When they were last measured, in burstd's time."""
    cpu_s: float
    """CPU seconds in all."""
    cpus_mean: float
    """CPUs in use on average: ``cpu_s`` by ``measured_s``."""
    cpus_peak: float
    """Most CPUs in use between two samples."""
    memory_mean_mib: int
    memory_peak_mib: int
    """The most of any sample, without the page cache."""
    read_mib: int | None = None
    """Read from disks in all; None: the kernel does not count it."""
    written_mib: int | None = None
    cpus_now: float = 0.0
    """CPUs in use over the last five minutes before ``sampled_at``."""
    read_now_mib_s: float = 0.0
    """Read from disks over the last five minutes, in MiB a second."""
    gpus: tuple[GpuUse, ...] = ()
    ended: bool = False
    """The job has left the node, and these figures are its last."""
    cut: bool = False
    """The node was lost, or its last figures did not come home: these are the last that did."""
    gpu_price: Decimal = Decimal(0)
    """What an hour of one GPU of the machine costs, by its offer; 0: it costs nothing, or has no GPU."""
    currency: str = ""
    cpu_series: Series | None = None
    """Of the CPUs in use."""
    memory_series: Series | None = None
    """In MiB."""
    suspended_s: float = 0.0
    """Seconds up to ``sampled_at`` in which the job was suspended: they count as neither used nor idle."""
    loading_at: float = 0.0
    """When it was last seen to read more than ``[sampler] loading_mib_s``, in burstd's time; 0: never."""

    @property
    def measured_s(self) -> float:
        """How long the job was measured at work."""
        return self.sampled_at - self.started - self.suspended_s

    def without_series(self) -> NodeUse:
        """The same in a few hundred bytes."""
        gpus = tuple(replace(gpu, series=None) for gpu in self.gpus)
        return replace(self, gpus=gpus, cpu_series=None, memory_series=None)


@dataclass(frozen=True, slots=True)
class JobUse:
    """What one run of a job used, by node."""

    job: str
    """The job's id in the queue (``Job.id``)."""
    number: str
    """Slurm's own number of it."""
    restarts: int
    """Which run: how often it had been requeued before."""
    user: str
    account: str
    partition: str
    nodes: tuple[NodeUse, ...]
    """Those that have sent figures, by name."""
    nodes_allocated: int
    """How many nodes it had."""
    started: float
    """When Slurm started the run, in burstd's time."""
    ended: float | None = None
    """When the run left the queue; None: it runs."""
    run_start: int = 0
    """When Slurm started it, by Slurm's own record (``Job.run_start``). With ``job`` and ``restarts`` it names the run:
    Slurm gives ids again."""

    def is_of(self, job: Job) -> bool:
        """Whether it is a run of this job, and not of another that had the same id before."""
        if self.restarts == job.restarts:
            return self.run_start == job.run_start
        return self.restarts < job.restarts and self.user == job.user

    @property
    def gpus(self) -> tuple[GpuUse, ...]:
        """All GPUs of all nodes."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @property
    def cut(self) -> bool:
        """Some figures are missing at the end, or a node has sent none."""
        return any(node.cut for node in self.nodes) or len(self.nodes) < self.nodes_allocated

    @property
    def gpu_idle_s(self) -> float:
        """GPU seconds without use, of whole GPUs only: of a shared one nobody knows whose idleness it is."""
        return sum(gpu.idle_s for gpu in self.gpus if gpu.share is GpuShare.WHOLE)

    def gpu_idle_cost(self) -> dict[str, Decimal]:
        """By currency, what these seconds cost by the machines' hourly prices: an estimate, and no part of a bill."""
        sums: dict[str, Decimal] = {}
        for node in self.nodes:
            idle_s = sum(gpu.idle_s for gpu in node.gpus if gpu.share is GpuShare.WHOLE)
            if node.gpu_price and idle_s:
                cost = node.gpu_price * Decimal(idle_s) / 3600
                sums[node.currency] = sums.get(node.currency, Decimal(0)) + cost
        return sums
