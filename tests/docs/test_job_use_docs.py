"""The example of docs/job-use.md is what burstctl prints."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from burstd.api.routers.job_use import job_use_view
from burstd.cli.commands.job_use import print_use
from burstd.cli.output import ConsoleOutput
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse

HOUR, START = 3600.0, 1.8e9
END = START + 4 * HOUR
BUSY = GpuUse(
    "GPU-1", 0, "NVIDIA A100-SXM4-80GB", GpuShare.WHOLE, 61.2, 100.0, 41 << 10, 80 << 10, 4 * HOUR, 1920.0, 0.0, END
)
IDLE = GpuUse(
    "GPU-2", 1, "NVIDIA A100-SXM4-80GB", GpuShare.WHOLE, 0.0, 0.0, 3, 80 << 10, 4 * HOUR, 4 * HOUR, 4 * HOUR, END
)
NODE = NodeUse(
    "gpu1", 8, 64 << 10, START, END, 4 * HOUR, 1.0, 1.1, 2970, 3 << 10, 118 << 10, 12, gpus=(BUSY, IDLE),
    gpu_price=Decimal("2.05"), currency="EUR", ended=True,
)  # fmt: skip
USE = JobUse("1234", "1234", 0, "ada", "lab", "burst", (NODE,), 1, START, END)


def test_the_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "118")
    print_use(ConsoleOutput(), job_use_view(USE, END + 120, series=False))
    shown = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    docs = (Path(__file__).parents[2] / "docs/job-use.md").read_text(encoding="utf-8")
    assert shown == docs.split("```\n")[1].splitlines()
