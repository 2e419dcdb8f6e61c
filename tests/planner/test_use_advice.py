"""What is advised by what a job used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.planner.explain.use_advice import use_advice

HOUR = 3600.0
BUSY = GpuUse("GPU-1", 0, "A100", GpuShare.WHOLE, 90.0, 100.0, 60_000, 81_920, HOUR, 0.0, 0.0, HOUR)
UNUSED = replace(BUSY, utilisation_mean=0.0, idle_s=HOUR)
LAZY = replace(BUSY, utilisation_mean=12.0, idle_s=0.8 * HOUR)
MIG = replace(BUSY, share=GpuShare.MIG, utilisation_mean=None)
FULL = NodeUse("cl1", 8, 65_536, 0.0, HOUR, 7 * HOUR, 7.0, 8.0, 50_000, 60_000)
LITTLE = replace(FULL, memory_peak_mib=3 << 10)
PART = "It had a part of a GPU: the figures of that GPU are of all jobs on it"


def gpus(*some: GpuUse) -> NodeUse:
    return replace(FULL, gpus=some)


@pytest.mark.parametrize(
    ("nodes", "advice"),
    [
        ((), []),
        ((FULL,), []),
        ((gpus(BUSY, BUSY),), []),
        ((gpus(BUSY, UNUSED, UNUSED, UNUSED),), ["It asked for 4 GPUs and used 1: ask for 1"]),
        ((gpus(BUSY), gpus(UNUSED)), ["It asked for 2 GPUs and used 1: ask for 1"]),
        ((gpus(UNUSED),), ["It asked for 1 GPU and used none: run it without GPUs"]),
        ((gpus(LAZY),), ["Its GPU was idle 80% of the time (48 min in all)"]),
        (
            (gpus(LAZY, LAZY, UNUSED),),
            [
                "It asked for 3 GPUs and used 2: ask for 2",
                "The GPUs that it used were idle 80% of the time (1 h 36 min in all)",
            ],
        ),
        ((gpus(replace(UNUSED, seen_s=200.0, idle_s=200.0)),), []),
        ((gpus(MIG),), [PART]),
        ((gpus(replace(UNUSED, share=GpuShare.SHARD)),), [PART]),
        ((gpus(replace(BUSY, utilisation_mean=None, utilisation_peak=None)),), []),
        ((LITTLE,), ["It asked for 64 GiB of memory, and its peak was 3 GiB: 4 GiB would do"]),
        ((LITTLE, FULL), []),
        ((LITTLE, LITTLE), ["It asked for 64 GiB of memory on a node, and its peak was 3 GiB: 4 GiB would do"]),
        ((replace(LITTLE, memory_mib=1024, memory_peak_mib=10),), []),
        ((replace(LITTLE, memory_mib=0),), []),
        (
            (replace(FULL, memory_peak_mib=65_000),),
            ["It used 63.5 GiB of 64 GiB of memory: ask for more before it is killed"],
        ),
        ((replace(FULL, cpus_peak=1.1),), ["It asked for 8 CPUs, and used 1.1 at most: 2 would do"]),
        ((replace(FULL, cpus_peak=4.0),), []),
        ((replace(FULL, cpus=1, cpus_peak=0.1),), []),
        ((replace(LITTLE, cpus_peak=0.1, sampled_at=200.0),), []),
    ],
)
def test_advice(nodes: tuple[NodeUse, ...], advice: list[str]) -> None:
    use = JobUse("7", "7", 0, "ada", "lab", "burst", nodes, len(nodes), 0.0, ended=HOUR)
    assert list(use_advice(use)) == advice
