"""What burstctl job show prints of jobs on many nodes; docs/job-use.md has what it prints of one node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.api.routers.job_use import job_use_view
from burstd.cli.commands.job_use import print_use
from burstd.cli.output import ConsoleOutput
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.domain.units import memory_text

GPU = GpuUse("GPU-1", 0, "A100", GpuShare.WHOLE, 61.0, 100.0, 900, 81920, 3600.0, 0.0, 0.0, 3600.0)
NODE = NodeUse("gpu1", 8, 64 << 10, 0.0, 3600.0, 3600.0, 1.0, 1.1, 2048, 3 << 10, gpus=(GPU,))


def test_of_many_nodes_those_are_printed_that_used_least(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    nodes = [replace(NODE, node=f"gpu{n:02}", cpus_mean=8 - n / 10) for n in range(60)]
    nodes[7] = replace(nodes[7], gpus=(replace(GPU, idle_s=60.0),), memory_peak_mib=4 << 10)
    use = JobUse("7", "7", 0, "ada", "lab", "burst", tuple(nodes), 60, 0.0, 3600.0)
    print_use(ConsoleOutput(), job_use_view(use, 3600.0, series=False))
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[0] for line in lines if line.startswith("gpu")]
    least = ["gpu07", *(f"gpu{n}" for n in range(59, 50, -1))]
    assert named == [*least, *least]
    assert "Its 60 nodes used 2.1 to 8.0 CPUs on average and 3 GiB to 4 GiB of memory at most." in "\n".join(lines)
    assert "  and 50 more nodes (--json has all)" in lines


@pytest.mark.parametrize(
    ("mebibytes", "text"),
    [(0, "0 MiB"), (1023, "1023 MiB"), (2970, "2.9 GiB"), (1500 << 10, "1500 GiB"), (118 << 20, "118 TiB")],
)
def test_memory_is_said_in_plain_words(mebibytes: int, text: str) -> None:
    assert memory_text(mebibytes) == text
