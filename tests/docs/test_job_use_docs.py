"""The example of docs/job-use.md is what burstctl prints, and its limits are those of the code."""

from __future__ import annotations

import importlib
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.api.routers.job_use import job_use_view
from burstd.cli.commands.job_use import print_use
from burstd.cli.output import ConsoleOutput
from burstd.db.repositories import job_use
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse
from burstd.node import job_use as node_job_use
from burstd.settings.sampler import SamplerSettings

sampler: Any = importlib.import_module("burstd.node.scripts.sampler")
DOCS = (Path(__file__).parents[2] / "docs/job-use.md").read_text(encoding="utf-8")

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
    assert shown == DOCS.split("```\n")[1].splitlines()


def test_the_limits_are_those_of_the_code() -> None:
    said = " ".join(DOCS.split())
    for words in (
        f"at most {sampler.MAX_POINTS} points", f"each job, {sampler.MAX_FILES} at most",
        f"{sampler.MAX_SHARE * 100:.0f} % of one CPU at most", f"less than {sampler.FLAT_MIB:.0f} MiB",
        f"fetches {node_job_use._MAX_ANSWER_BYTES >> 10} KiB at most", f"({job_use.MAX_ROWS:,} rows at most)",
        f"the latest {job_use.MAX_SERIES:,}",
    ):  # fmt: skip
        assert words in said


def test_the_settings_are_shown_with_their_defaults() -> None:
    shown = tomllib.loads(DOCS.partition("## Settings")[2].split("```")[1].removeprefix("toml"))["sampler"]
    assert SamplerSettings(**shown) == SamplerSettings()
    assert shown.keys() == SamplerSettings.model_fields.keys()
    assert SamplerSettings().calls_per_minute == 12 * 60
    assert "at most twelve machines a second" in " ".join(DOCS.split())
