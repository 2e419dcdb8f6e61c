"""Figures of jobs, brought home from a node: the sampler is kept running there, and what it says is read strictly.

Root on a rented node may lie: what it says is bounded in size and read field by field. No money and no end of a
machine depends on it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from burstd.domain.job_use import GpuShare, GpuUse, NodeUse, Series
from burstd.domain.plugins.shell import Shell
from burstd.node.errors import CommandFailed

MAX_JOB_BYTES = 256 << 10
"""Of the figures of one job on one node, as JSON."""
_MAX_ANSWER_BYTES = 512 << 10
_MAX_LINES = 2048
"""More than fit into an answer: figures of a job take 400 bytes at least."""
MAX_NAMES = 256
"""Runs that a node can be made to forget in one call, and that it can be asked for first."""
_ANSWER_S = 20.0
_RUN = r"[1-9][0-9]{0,9}-[0-9]{1,10}"
_LINE = re.compile(rf"use ({_RUN}) ([A-Za-z0-9+/]{{1,200000}}={{0,2}})")
_MIB = 1 << 20
_STATES = frozenset({"running", "started", "refused", "no_python", "ended"})

_Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
_Percent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=1 << 40)]
_Points = Annotated[list[_Number | None], Field(max_length=2000)]


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """How nodes are to measure."""

    every_s: float
    idle_below_percent: float


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """What a node said."""

    state: str
    """Of its sampler: ``running``, ``started`` (just now), ``no_python``, ``refused`` (by systemd), ``ended``."""
    runs: Mapping[str, NodeUse]
    """By the node's name of the run: ``JOB-START``, Slurm's number of the job and whole seconds since boot. A job that
    was requeued has several, and so has a number that Slurm has given again."""
    unreadable: tuple[str, ...]
    """Names of runs whose figures are not what a sampler writes."""
    left_out: bool = False
    """Not all of it fitted into the answer."""


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Series(_Answer):
    start: _Number
    every: Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]
    mean: _Points
    peak: _Points


class _Gpu(_Answer):
    uuid: Annotated[str, Field(pattern=r"^(GPU|MIG)-[0-9A-Za-z/-]{1,80}$")]
    index: Annotated[int, Field(ge=0, le=9999)]
    model: Annotated[str, Field(max_length=100, pattern=r"^[ -~]*$")]
    memory_mib: _Count
    mean: _Percent | None
    peak: _Percent | None
    memory_peak_mib: _Count
    seen_s: _Number
    known_s: _Number
    idle_s: _Number
    idle_now_s: _Number
    at: _Number
    series: _Series


def _without_doubles(gpus: list[_Gpu]) -> list[_Gpu]:
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError("a GPU is named twice")
    return gpus


_Counter = tuple[_Number, _Number, str]


class _Job(_Answer):
    start: _Number
    at: _Number
    ended: bool
    suspended_s: _Number
    cpus: _Count
    memory_mib: _Count
    shared: bool
    cpu: _Counter
    cpus_peak: _Number
    cpus_now: _Number
    read_now_mib_s: _Number
    memory_mean_mib: _Number
    memory_peak_mib: _Number
    read: _Counter | None
    written: _Counter | None
    gpus: Annotated[list[_Gpu], Field(max_length=16), AfterValidator(_without_doubles)]
    cpu_series: _Series
    memory_series: _Series


def fetch_figures(
    shell: Shell,
    node: str,
    config: SamplerConfig | None,
    *,
    forget: Collection[str],
    now: float,
    owed: Collection[str] = (),
) -> NodeFigures:
    """The figures of all runs on a node, whose sampler is started where it does not run; ``config`` None ends it.

    ``forget``: names of runs whose figures the node need not keep; ``owed``: of those that come before what was sent
    once. MAX_NAMES at most of each. ``now``: burstd's time; the
    node says how old its figures are, so that its clock does not matter. Raises CommandFailed, ConnectionLost,
    CommandTimedOut.
    """
    source = _script("sampler.py").encode() if config is not None else b""
    every, idle = (config.every_s, config.idle_below_percent) if config is not None else (0.0, 0.0)
    version = hashlib.sha256(source + f"{every:g} {idle:g}".encode()).hexdigest()[:16]
    names = [name for name in forget if re.fullmatch(_RUN, name)]
    names += [f"+{name}" for name in owed if re.fullmatch(_RUN, name)]
    arguments = [version, f"{every:g}", f"{idle:g}", str(_MAX_ANSWER_BYTES), *names]
    done = shell.script(_script("sampling.sh"), *arguments, input=source, timeout_s=_ANSWER_S)
    if done.rc != 0:
        raise CommandFailed(f"{node} does not send figures of jobs: {done.last_line}", rc=done.rc, err=done.err)
    return read_figures(done.out, node, now)


def read_figures(text: str, node: str, now: float) -> NodeFigures:
    """What sampling.sh printed. Raises CommandFailed where that is not what it prints."""
    lines = text[: _MAX_ANSWER_BYTES + 4096].splitlines()
    uptime = re.fullmatch(r"uptime ([0-9]{1,9}(?:\.[0-9]{1,3})?)", lines[0]) if lines else None
    state = lines[1].removeprefix("sampler ") if len(lines) > 1 else ""
    if uptime is None or state not in _STATES:
        raise CommandFailed(f"{node} does not send figures of jobs: '{text[:100]}'", rc=0, err="")
    booted = now - float(uptime[1])
    runs: dict[str, NodeUse] = {}
    unreadable: list[str] = []
    for line in lines[2 : 2 + _MAX_LINES]:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        found = _read_job(match[2])
        if found is None:
            unreadable.append(match[1])
        else:
            runs[match[1]] = _node_use(found, node, booted, now)
    return NodeFigures(state, runs, tuple(unreadable), left_out=lines[-1] == "more")


def _read_job(encoded: str) -> _Job | None:
    try:
        unpacked = zlib.decompressobj()
        plain = unpacked.decompress(base64.b64decode(encoded, validate=True), MAX_JOB_BYTES)
        return _Job.model_validate_json(plain, strict=True)
    except (ValueError, ValidationError, zlib.error):
        return None


def _node_use(job: _Job, node: str, booted: float, now: float) -> NodeUse:
    start, at = (min(booted + t, now) for t in (job.start, job.at))
    cpu_s = job.cpu[0]
    suspended_s = min(job.suspended_s, at - start)
    return NodeUse(
        node=node, cpus=job.cpus, memory_mib=job.memory_mib, started=start, sampled_at=at, cpu_s=cpu_s,
        cpus_mean=cpu_s / (at - start - suspended_s) if at > start + suspended_s else 0.0, cpus_peak=job.cpus_peak,
        memory_mean_mib=round(job.memory_mean_mib), memory_peak_mib=round(job.memory_peak_mib),
        read_mib=round(job.read[0] / _MIB) if job.read else None,
        written_mib=round(job.written[0] / _MIB) if job.written else None,
        suspended_s=suspended_s, cpus_now=job.cpus_now, read_now_mib_s=job.read_now_mib_s,
        gpus=tuple(_gpu_use(gpu, booted, start, now, shared=job.shared) for gpu in job.gpus), ended=job.ended,
        cpu_series=_series(job.cpu_series, booted, now), memory_series=_series(job.memory_series, booted, now),
    )  # fmt: skip


def _gpu_use(gpu: _Gpu, booted: float, start: float, now: float, *, shared: bool) -> GpuUse:
    mig = gpu.uuid.startswith("MIG-")
    seen_s = min(gpu.seen_s, now - start)
    idle_s = min(gpu.idle_s, gpu.known_s, seen_s)
    return GpuUse(
        uuid=gpu.uuid, index=gpu.index, model=gpu.model, memory_peak_mib=gpu.memory_peak_mib,
        share=GpuShare.MIG if mig else GpuShare.SHARD if shared else GpuShare.WHOLE,
        utilisation_mean=gpu.mean, utilisation_peak=gpu.peak, memory_mib=gpu.memory_mib, seen_s=seen_s,
        idle_s=idle_s, idle_now_s=min(gpu.idle_now_s, idle_s), sampled_at=min(booted + gpu.at, now),
        series=_series(gpu.series, booted, now),
    )  # fmt: skip


def _series(series: _Series, booted: float, now: float) -> Series:
    """Without points of a time that is to come."""
    start = min(booted + series.start, now)
    points = min(len(series.mean), len(series.peak), int((now - start) / series.every) + 1)
    return Series(start, series.every, tuple(series.mean[:points]), tuple(series.peak[:points]))


def _script(name: str) -> str:
    return files("burstd.node").joinpath("scripts", name).read_text(encoding="utf-8")
