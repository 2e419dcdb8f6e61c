"""What burstctl job show prints of jobs on many nodes; docs/job-use.md has what it prints of one node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from burstd.api.routers.job_use import job_use_view
from burstd.cli.commands.job_use import print_use, write_plot
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, Params
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


def test_plots_may_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    class Plots(ApiClient):
        def get_json(self, path: str, params: Params | None = None) -> Any:  # noqa: ARG002
            return {"svg": f"<svg>{path}</svg>"}

    write_plot(Plots(Path("none"), as_json=False), "7", Path("-"))
    assert capsys.readouterr().out == "<svg>/jobs/7/use/plot</svg>\n"


def test_idle_hours_that_would_round_to_none_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for idle_s, hours in ((359.0, 0), (360.0, 1)):
        node = replace(NODE, gpus=(replace(GPU, idle_s=idle_s),))
        use = JobUse("7", "7", 0, "ada", "lab", "burst", (node,), 1, 0.0, 3600.0)
        print_use(ConsoleOutput(), job_use_view(use, 3600.0, series=False))
        assert capsys.readouterr().out.count("0.1 of 1.0 GPU hours were idle") == hours


@pytest.mark.parametrize(
    ("mebibytes", "text"),
    [
        (0, "0 B"),
        (1000, "1000 MiB"),
        (1234, "1.21 GiB"),
        (2970, "2.9 GiB"),
        (1500 << 10, "1.46 TiB"),
        (118 << 20, "118 TiB"),
    ],
)
def test_memory_is_said_in_plain_words(mebibytes: int, text: str) -> None:
    assert memory_text(mebibytes) == text
