"""What a job used: ``burstctl job show``."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time
from burstd.domain.job_use import GpuShare


class UseSeriesView(AnswerView):
    """Figures at equal distances in time."""

    start: Time
    every_s: float
    mean: list[float | None]
    peak: list[float | None]


class GpuUseView(AnswerView):
    """One GPU of a job; see burstd.domain.job_use.GpuUse."""

    uuid: str
    index: int
    model: str
    share: GpuShare
    utilisation_mean: float | None
    utilisation_peak: float | None
    memory_peak_mib: int
    memory_mib: int
    seen_s: float
    idle_s: float
    idle_now_s: float
    sampled_at: Time
    series: UseSeriesView | None = None


class NodeUseView(AnswerView):
    """One node of a job; see burstd.domain.job_use.NodeUse."""

    node: str
    cpus: int
    memory_mib: int
    started: Time
    sampled_at: Time
    measured_s: float
    """Without the time in which the job was suspended."""
    cpu_s: float
    cpus_mean: float
    cpus_peak: float
    memory_mean_mib: int
    memory_peak_mib: int
    read_mib: int | None
    written_mib: int | None
    cpus_now: float
    read_now_mib_s: float
    gpus: list[GpuUseView]
    ended: bool
    cut: bool
    cpu_series: UseSeriesView | None = None
    memory_series: UseSeriesView | None = None


class JobUseView(AnswerView):
    """What the last run of a job used."""

    now: Time
    job: str
    restarts: int
    user: str
    account: str
    partition: str
    started: Time
    ended: OptionalTime
    nodes_allocated: int
    cut: bool
    """Figures are missing at the end, or of a node."""
    missing: str
    """Which, in words; empty: none."""
    nodes: list[NodeUseView]
    gpu_seconds: float
    gpu_idle_seconds: float
    """Of whole GPUs."""
    gpu_idle_cost: list[Money]
    """By hourly prices: an estimate, no part of a bill."""
    advice: list[str]


class JobPlotView(AnswerView):
    """The same as a picture."""

    now: Time
    job: str
    svg: str
