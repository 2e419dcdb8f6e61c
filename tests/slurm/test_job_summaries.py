"""Summaries of jobs for jobstats."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from burstd.domain.errors import SchedulerRefused
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.slurm.commands import job_summaries
from burstd.slurm.commands.job_summaries import JobSummaries, jobstats_summary
from burstd.slurm.commands.run import SlurmCommands

MIB = 1 << 20
GPU = GpuUse("GPU-1", 1, "A100", GpuShare.WHOLE, 98.63, 100.0, 900, 81920, 100.0, 0.0, 0.0, 1000.0)
NODE = NodeUse("cl1", 12, 1024, 1000.0, 1100.0, 57.84, 0.5, 1.0, 300, 310, gpus=(GPU,))
USE = JobUse("7_1", "9", 0, "ada", "lab", "gpu", (NODE, replace(NODE, node="cl2", gpus=())), 2, 1000.0, ended=1100.0)


def test_the_text_is_what_jobstats_reads() -> None:
    """The keys of docs/setup/summaries.md of jobstats."""
    text = jobstats_summary(USE)
    assert text.startswith("JS1:")
    assert json.loads(gzip.decompress(base64.b64decode(text[4:]))) == {
        "gpus": 1,
        "nodes": {
            "cl1": {
                "cpus": 12, "total_time": 57.8, "total_memory": 1024 * MIB, "used_memory": 310 * MIB,
                "gpu_total_memory": {"1": 81920 * MIB}, "gpu_used_memory": {"1": 900 * MIB},
                "gpu_utilization": {"1": 98.6},
            },
            "cl2": {"cpus": 12, "total_time": 57.8, "total_memory": 1024 * MIB, "used_memory": 310 * MIB},
        },
        "total_time": 100,
    }  # fmt: skip
    unknown = replace(GPU, index=2, utilisation_mean=None, utilisation_peak=None)
    assert jobstats_summary(replace(USE, nodes=(replace(NODE, gpus=(GPU, unknown)), USE.nodes[1]))) == text
    shared = replace(USE, nodes=(replace(NODE, gpus=(replace(GPU, share=GpuShare.SHARD),)),))
    assert "gpu_utilization" not in gzip.decompress(base64.b64decode(jobstats_summary(shared)[4:])).decode()


def test_a_text_that_is_too_long_is_refused_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_summaries, "MAX_CHARS", 100)
    with pytest.raises(SchedulerRefused, match=r"^it has \d+ characters, and sacctmgr is given 100 at most$"):
        JobSummaries(SlurmCommands()).write(USE)


@pytest.mark.parametrize(("there", "written"), [("\n", True), ("JS1:abc\n", True), ("see ticket 12\n", False)])
def test_a_comment_of_somebody_else_stays(there: str, *, written: bool) -> None:
    calls: list[Sequence[str]] = []

    def run(argv: Sequence[str], _: Mapping[str, str], __: float) -> subprocess.CompletedProcess[str]:
        calls.append(argv)
        return subprocess.CompletedProcess(argv, 0, there if argv[0] == "sacct" else "", "")

    assert JobSummaries(SlurmCommands(run)).write(USE) is written
    assert [argv[0] for argv in calls] == ["sacct", *(["sacctmgr"] if written else [])]
    if written:
        assert calls[-1][:6] == ("sacctmgr", "-i", "update", "job", "where", "jobid=9")
        assert calls[-1][-1] == f"AdminComment={jobstats_summary(USE)}"
