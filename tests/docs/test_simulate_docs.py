"""docs/simulate.md: its commands, typed as they stand, on a small trace; all options and columns stand in it."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer

from burstd.cli.offline.simulate import simulate
from burstd.simulate.report.columns import report_columns
from burstd.simulate.report.report import SimulationReport
from tests.docs.blocks import shell_blocks
from tests.lab.programs import PROJECT

DOCUMENT = PROJECT / "docs" / "simulate.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
SACCT = """\
import os, sys
assert os.environ["TZ"] == "UTC" and {{"-X", "-P", "-a", "-S", "-E"}} <= set(sys.argv), sys.argv
(columns,) = [word.removeprefix("--format=").split(",") for word in sys.argv if word.startswith("--format=")]
(delimiter,) = [word.removeprefix("--delimiter=") for word in sys.argv if word.startswith("--delimiter=")]
assert len(delimiter) > 10, delimiter
for line in open({history!r}, encoding="utf-8"):
    row = dict(zip({known!r}, line.rstrip("\\n").split("|")))
    print(delimiter.join(row[column] for column in columns))
"""
KNOWN = [
    "JobID", "Submit", "Eligible", "Start", "End", "Elapsed", "State", "AllocTRES", "ReqTRES", "Timelimit", "User",
    "Account", "Partition", "JobName",
]  # fmt: skip


def history(jobs: int = 120) -> str:
    """Two days of a busy queue, with columns as Slurm has them."""
    dice = random.Random(4)  # noqa: S311 - dice, no secrets
    rows = ["|".join(KNOWN)]
    for number in range(1, jobs + 1):
        submitted = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=dice.randrange(2 * 86400))
        run = timedelta(seconds=dice.randrange(600, 20_000))
        times = [when.strftime("%Y-%m-%dT%H:%M:%S") for when in (submitted, submitted, submitted, submitted + run)]
        gpus = dice.choice([1, 2, 4])
        tres = f"billing={gpus},cpu={gpus * 4},gres/gpu={gpus},mem={gpus * 32}G,node=1"
        rows.append("|".join([
            str(number), *times, str(run).zfill(8), "COMPLETED", tres, tres, "08:00:00", dice.choice(["ada", "bob"]),
            dice.choice(["bio", "physics"]), "gpu", "train",
        ]))  # fmt: skip
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader works: with all of the document's commands typed, in order."""
    made = tmp_path_factory.mktemp("simulate")
    programs = made / "bin"
    programs.mkdir()
    (made / "history").write_text(history(), encoding="utf-8")
    (made / "sacct.py").write_text(SACCT.format(history=str(made / "history"), known=KNOWN), encoding="utf-8")
    for name, words in (("burstctl", "-m burstd.cli.main"), ("sacct", made / "sacct.py")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    for name, text in re.findall(r"^```toml (\w+\.toml)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        (made / name).write_text(text, encoding="utf-8")
    # A table that is wide enough for its first column.
    environment = os.environ | {
        "COLUMNS": "160",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(PROJECT),
    }
    for number, block in enumerate(shell_blocks(DOCUMENT)):
        text = block.text.replace("/etc/burstd/burstd.toml", str(PROJECT / "config" / "burstd.toml"))
        done = subprocess.run(
            ["bash", "-ec", text], cwd=made, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"line {block.line}: {done.stdout}{done.stderr}"
        (made / f"said-{number}").write_text(done.stdout, encoding="utf-8")
    return made


@pytest.mark.slow
def test_sacct_gives_what_is_replayed(folder: Path) -> None:
    assert len((folder / "jobs.txt").read_text(encoding="utf-8").splitlines()) == 121
    said = (folder / "said-1").read_text(encoding="utf-8")
    assert "jobs.txt (sacct)" in said
    for chain in ("wait_aware,idle ", "immediate ", "never "):
        assert re.search(rf"^{chain}", said, re.MULTILINE)
    assert "cloud GPU-hours than immediate" in said


@pytest.mark.slow
def test_the_page_is_there(folder: Path) -> None:
    text = (folder / "simulate.html").read_text(encoding="utf-8")
    for heading in re.findall(r"^- \*(.*?)\*:", TEXT, re.MULTILINE):
        assert f"<h2>{heading}</h2>" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.slow
def test_own_pools_and_offers_are_used(folder: Path) -> None:
    own = (folder / "said-2").read_text(encoding="utf-8")
    assert "12.4 EUR/h" in own
    report = SimulationReport.model_validate_json((folder / "simulate.json").read_text(encoding="utf-8"))
    assert "p4d.24xlarge spot 9.6 EUR/h" in report.cloud
    assert [chain.chain for chain in report.chains] == ["wait_aware,spot,idle"]
    assert 0 < report.chains[0].jobs < 120
    assert json.loads((folder / "simulate.json").read_text(encoding="utf-8"))["version"] == 1


@pytest.mark.slow
def test_projects_are_replayed_beside_fair_share(folder: Path) -> None:
    said = (folder / "said-4").read_text(encoding="utf-8")
    assert re.search(r"^bio +4 +\d\d ", said, re.MULTILINE)
    assert re.search(r"^physics +12 +\d\d ", said, re.MULTILINE)


@pytest.mark.slow
def test_more_gpus_are_compared_with_bursting(folder: Path) -> None:
    said = (folder / "said-5").read_text(encoding="utf-8")
    for row in (" +0  no cloud", " +8  bought + burst", "+16  3y"):
        assert f"{row} " in said
    assert "Buying pays when about " in said
    assert "Cheapest with waits (median, 90 %) not longer than with bursting alone: " in said
    assert (folder / "talk" / "cost.svg").exists()
    assert "buy, rent or burst</h1>" in (folder / "compare.html").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Buy, rent or burst\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^GPUs +(.*)$", said, re.MULTILINE)[0].split("  ")
    for head in (head.strip().removesuffix(" (EUR)") for head in heads if head.strip()):
        assert re.search(rf"^\| ([^|]*, )?{re.escape(head)}[, ]", section, re.MULTILINE), head


def test_every_option_stands_in_the_document() -> None:
    (section,) = re.findall(r"^## Options\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    app = typer.Typer()
    app.command()(simulate)
    command = typer.main.get_command(app)
    there = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
    told = set(re.findall(r"`(--[a-z-]+)", section))
    assert told == there - {"--help", "--install-completion", "--show-completion"}


def test_every_column_stands_in_the_document(folder: Path) -> None:
    (section,) = re.findall(r"^## Reading the table\n(.*?)^## ", TEXT, re.MULTILINE | re.DOTALL)
    report = SimulationReport.model_validate_json((folder / "simulate.json").read_text(encoding="utf-8"))
    heads = [column.head for column in report_columns(report) if column.in_main_table and not column.only_page]
    for head in heads:
        assert re.search(rf"^\| ([^|]*, )?{re.escape(re.sub(r' [(].*[)]$', '', head))}[, ]", section, re.MULTILINE), (
            head
        )
