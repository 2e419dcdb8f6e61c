"""What a user could ask for instead, by what a job used."""

from __future__ import annotations

import math

from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.units import memory_text, span_text

MIN_SEEN_S = 300.0
"""Of less nothing is advised: a job's beginning is not like the rest of it."""
UNUSED = 0.98
"""A GPU that was idle for such a share of its time was not used."""
MOSTLY_IDLE = 0.5
LITTLE_MEMORY = 0.5
"""A job that used less than such a share of its memory, at its peak, could do with less."""
FULL_MEMORY = 0.95
SPARE = 1.25
"""Memory and CPUs that are advised are so many times the peak."""
_MIN_MEMORY_MIB = 2048
"""Of less memory nobody else has a use."""


def use_advice(use: JobUse) -> tuple[str, ...]:
    """Sentences, what costs most first; none where a job was not measured for long, or used what it had."""
    if use.ended is None and not use.nodes:
        return ()
    long_enough = [node for node in use.nodes if node.measured_s >= MIN_SEEN_S]
    found = _gpu_advice([gpu for gpu in use.gpus if gpu.share is GpuShare.WHOLE and gpu.seen_s >= MIN_SEEN_S])
    if long_enough and len(long_enough) == len(use.nodes):
        found += [*_memory_advice(long_enough), *_cpu_advice(long_enough)]
    if any(gpu.share is not GpuShare.WHOLE for gpu in use.gpus):
        found.append("It had a part of a GPU: the figures of that GPU are of all jobs on it")
    return tuple(found)


def _gpu_advice(gpus: list[GpuUse]) -> list[str]:
    known = [gpu for gpu in gpus if gpu.utilisation_mean is not None]
    if not known:
        return []
    used = [gpu for gpu in known if gpu.idle_s < UNUSED * gpu.seen_s]
    had = "1 GPU" if len(known) == 1 else f"{len(known)} GPUs"
    if not used:
        return [f"It asked for {had} and used none: run it without GPUs"]
    found = []
    if len(used) < len(known):
        found.append(f"It asked for {had} and used {len(used)}: ask for {len(used)}")
    share = sum(gpu.idle_s for gpu in used) / sum(gpu.seen_s for gpu in used)
    if share >= MOSTLY_IDLE:
        which = "Its GPU was" if len(used) == 1 else "The GPUs that it used were"
        found.append(f"{which} idle {share:.0%} of the time ({span_text(sum(gpu.idle_s for gpu in used))} in all)")
    return found


def _memory_advice(nodes: list[NodeUse]) -> list[str]:
    fullest = max(nodes, key=lambda node: node.memory_peak_mib)
    had, peak = fullest.memory_mib, fullest.memory_peak_mib
    if not had:
        return []
    where = "" if len(nodes) == 1 else " on a node"
    if peak >= FULL_MEMORY * had:
        return [f"It used {memory_text(peak)} of {memory_text(had)} of memory{where}: ask for more before it is killed"]
    if had < _MIN_MEMORY_MIB or peak >= LITTLE_MEMORY * had:
        return []
    wanted = max(1, math.ceil(peak * SPARE / 1024))
    asked = f"It asked for {memory_text(had)} of memory{where}, and its peak was {memory_text(peak)}"
    return [f"{asked}: {wanted} GiB would do"] if wanted * 1024 < had else []


def _cpu_advice(nodes: list[NodeUse]) -> list[str]:
    busiest = max(nodes, key=lambda node: node.cpus_peak)
    if not busiest.cpus:
        return []
    wanted = max(1, math.ceil(busiest.cpus_peak * SPARE))
    if wanted > busiest.cpus / 2:
        return []
    where = "" if len(nodes) == 1 else " on a node"
    had = f"It asked for {busiest.cpus} CPUs{where}, and used {busiest.cpus_peak:.1f} at most"
    return [f"{had}: {wanted} would do"]
