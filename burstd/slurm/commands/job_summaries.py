"""Summaries of jobs that have ended, in AdminComment, as jobstats writes and reads them.

``JS1:`` and base64 of gzip of JSON, the format of https://github.com/PrincetonUniversity/jobstats
(docs/setup/summaries.md): for each node its CPUs, CPU seconds, memory used and given in bytes, and by GPU index the
utilisation in percent and the memory used and given; ``total_time`` is the time that the job ran.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from burstd.domain.errors import SchedulerRefused
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.slurm.commands.run import SlurmCommands

_MARK = "JS1:"
_MIB = 1 << 20
MAX_CHARS = 60_000
"""A longer one is left out: a command may not be much longer."""


def jobstats_summary(use: JobUse) -> str:
    """The text for AdminComment of a run that has ended.

    Left out are shared GPUs, whose figures are of other jobs too, and those whose utilisation is not known: the format
    has no word for that, and 0 would say that they were idle.
    """
    plain = {
        "nodes": {node.node: _node(node) for node in use.nodes},
        "total_time": round((use.ended or use.started) - use.started),
        "gpus": sum(len(_utilisations(node)) for node in use.nodes),
    }
    packed = gzip.compress(json.dumps(plain, separators=(",", ":"), sort_keys=True).encode("ascii"), mtime=0)
    return _MARK + base64.b64encode(packed).decode("ascii")


def _utilisations(node: NodeUse) -> list[tuple[GpuUse, float]]:
    return [
        (gpu, gpu.utilisation_mean)
        for gpu in node.gpus
        if gpu.share is GpuShare.WHOLE and gpu.utilisation_mean is not None
    ]


def _node(node: NodeUse) -> dict[str, Any]:
    gpus = _utilisations(node)
    found: dict[str, Any] = {
        "cpus": node.cpus, "total_time": round(node.cpu_s, 1), "total_memory": node.memory_mib * _MIB,
        "used_memory": node.memory_peak_mib * _MIB,
    }  # fmt: skip
    if gpus:
        found |= {
            "gpu_utilization": {str(gpu.index): round(mean, 1) for gpu, mean in gpus},
            "gpu_used_memory": {str(gpu.index): gpu.memory_peak_mib * _MIB for gpu, _ in gpus},
            "gpu_total_memory": {str(gpu.index): gpu.memory_mib * _MIB for gpu, _ in gpus},
        }
    return found


class JobSummaries:
    """Writes them into Slurm's accounting. Its calls block."""

    def __init__(self, commands: SlurmCommands) -> None:
        self._commands = commands

    def write(self, use: JobUse) -> bool:
        """Writes one where AdminComment is empty or has such a summary; False: somebody else has written there.

        Raises SchedulerUnavailable, SchedulerRefused, the latter also where the summary is too long.
        """
        text = jobstats_summary(use)
        if len(text) > MAX_CHARS:
            raise SchedulerRefused(f"it has {len(text)} characters, and sacctmgr is given {MAX_CHARS} at most")
        lines = self._commands(
            "sacct", "-n", "-X", "-P", "-D", "-j", use.number, "-o", "AdminComment"
        ).splitlines()  # fmt: skip
        if any(line.strip() and not line.startswith(_MARK) for line in lines):
            return False
        self._commands("sacctmgr", "-i", "update", "job", "where", f"jobid={use.number}", "set", f"AdminComment={text}")
        return True
