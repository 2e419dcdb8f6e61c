"""burstctl simulate: what it prints and writes, and what it says of faults."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from burstd.cli.main import app
from burstd.cli.session import ExitCode

SHORT, LONG = 600.0, 7200.0
CONFIG = """
cluster = "site"
[pools.gpu]
nodes = "burst[1-3]"
partitions = ["burst", "gpu"]
cpus = 16
memory = "120G"
gres = "gpu:v100:4"
offers = [{ provider = "sandbox", instance_types = ["gpu*"] }]
[providers.sandbox]
kind = "sandbox"
[policies]
chain = ["idle", "limits"]
[policies.limits]
nodes = 2
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty jobs, one every five minutes, each longer than that: a node with two GPUs takes a part of them."""
    rows = [
        f"2026-11-01 {n // 12:02}:{n % 12 * 5:02}:00,{LONG if n % 3 else SHORT},{1 + n % 2},0,p{n % 2}"
        for n in range(40)
    ]
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]) + "\n")
    return path


def simulate(trace: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "--trace", str(trace), "--nodes", "1", "--gpus-per-node", "2", *more])


@pytest.mark.slow
def test_all_chains_as_a_table(trace: Path) -> None:
    done = simulate(trace)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("jobs.csv, 2026-11-01 to ")
    chains = [line.split()[0] for line in lines[lines.index("") + 2 : lines.index("") + 7]]
    assert chains[1:] == ["never", "immediate", "aged:600", "aged:3600"]
    assert "1 nodes with 2 GPUs each" in done.output
    assert "machines boot for 180 s" in done.output


def test_json_and_page_tell_the_same(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    given = ["--policy", "immediate", "--policy", "idle(keep_alive_s=0)", "--json", "--html", str(page), "--seed", "3"]
    first, second = simulate(trace, *given), simulate(trace, *given)
    assert first.exit_code == 0, first.output
    assert first.output == second.output
    found = json.loads(first.output)
    assert [chain["chain"] for chain in found["chains"]] == ["immediate", "idle(keep_alive_s=0)"]
    assert found["chains"][0]["waste"] > found["chains"][1]["waste"]
    assert "idle(keep_alive_s=0)" in page.read_text()


@pytest.mark.slow
def test_pools_and_policies_of_the_site(trace: Path, tmp_path: Path) -> None:
    config = tmp_path / "burstd.toml"
    config.write_text(CONFIG)
    more = ["--config", str(config), "--price", "1", "--json"]
    found = json.loads(simulate(trace, *more).output)
    assert [chain["chain"] for chain in found["chains"]][:2] == ["idle,limits", "never"]
    assert found["cloud"] == "gpu 4 EUR/h"
    ours, immediate = found["chains"][0], found["chains"][2]
    assert max(ours["course"]["cloud_nodes"]) == 2
    assert max(immediate["course"]["cloud_nodes"]) == 3
    fewer = json.loads(simulate(trace, *more, "--set", "limits.nodes=1").output)
    assert max(fewer["chains"][0]["course"]["cloud_nodes"]) == 1


def test_offers_of_a_file(trace: Path, tmp_path: Path) -> None:
    offers = tmp_path / "offers.toml"
    offers.write_text(
        'currency = "USD"\n[[offers]]\ngpus = 2\nprice = "3"\nboot_s = 60\nstockout = 1.0\n'
        '[[offers]]\ngpus = 2\nprovider = "other"\nprice = "5"\nboot_s = 90\n'
    )
    found = json.loads(simulate(trace, "--offers", str(offers), "--policy", "immediate", "--json").output)
    (chain,) = found["chains"]
    assert (chain["currency"], chain["stockouts"] > 0, chain["launches"] > 0) == ("USD", True, True)
    offers.write_text('[[offers]]\ngpus = 0\nprice = "3"\nzon = "a"\n')
    fault = simulate(trace, "--offers", str(offers))
    assert fault.exit_code == ExitCode.NEGATIVE
    assert "line 2: offers[0].gpus" in fault.output
    assert "line 4: offers[0].zon: there is no such key; did you mean 'zone'?" in fault.output


COMPARED = ("--compare", "2,4", "--committed", "1y=1.20 EUR", "--policy", "immediate", "--days", "1")
COSTS = """
cluster = "site"
[site.cost.gpu]
nodes = ["gpu*"]
gpu_hour = "0.60"
"""


@pytest.mark.slow
def test_buy_or_rent_as_table_json_page_and_plots(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    config, page, talk = tmp_path / "burstd.toml", tmp_path / "page.html", tmp_path / "talk"
    config.write_text(COSTS)
    done = simulate(trace, *COMPARED, "--config", str(config), "--html", str(page), "--plots", str(talk))
    assert done.exit_code == 0, done.output
    rows = re.findall(r"^ +(\+\d) +([\w+ ]*\w)  ", done.output, re.MULTILINE)
    names = ["bought", "bought + burst", "1y", "1y + burst"]
    assert rows == [("+0", "no cloud"), ("+0", "burst"), *(("+2", n) for n in names), *(("+4", n) for n in names)]
    assert "all figures are simulated from the trace, at list prices" in done.output
    assert "[site.cost.gpu] does not say what an hour of use adds" in done.output
    assert f"Written: {page}, {talk}/cost.svg, {talk}/wait.svg" in done.output
    assert {path.name for path in talk.iterdir()} >= {"cost.svg", "wait.svg"}
    found = json.loads(simulate(trace, *COMPARED, "--config", str(config), "--json").output)
    assert (found["basis"], [way["owned"] for way in found["ways"]]) == ("simulated", ["0.6000", "1.2000"])
    (best,) = [one for one in found["alternatives"] if one["cheapest"]]
    text = page.read_text()
    assert f"{best['cost']}*" in text.replace(",", "")
    assert all(sentence.replace("'", "&#39;") in text for sentence in found["verdict"])
    assert text.count("<svg") == 2
    # It loads and runs nothing.
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import|\son\w+=", text)
    for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL):
        assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in text


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (["--policy", "idel"], ExitCode.NEGATIVE, "there is no policy 'idel'; did you mean 'idle'?"),
        (["--policy", "idle,"], ExitCode.OK, ""),
        (["--policy", "idle", "--set", "idle.keep_alive_s=soon"], ExitCode.NEGATIVE, "policies.idle.keep_alive_s"),
        (
            ["--window", "2027-01-01"],
            ExitCode.NEGATIVE,
            "no job of the trace was submitted in the window of 2027-01-01",
        ),
        (["--window", "soon"], ExitCode.USAGE, "--window 'soon' is no date"),
        (["--load", "1"], ExitCode.USAGE, "--load and --nodes are both the size of the site"),
        (["--price", "cheap"], ExitCode.USAGE, "--price 'cheap' is no price"),
        (["--config", "nowhere.toml"], ExitCode.NEGATIVE, "nowhere.toml has 1 fault"),
        (["--compare", "8;16"], ExitCode.USAGE, "--compare '8;16' is no list of numbers, 16 at most; write 8,16,32"),
        ([*COMPARED, "--committed", "cheap"], ExitCode.USAGE, "--committed 'cheap' is no price: write NAME=PRICE"),
        ([*COMPARED, "--policy", "idle"], ExitCode.USAGE, "leave --projects out, and give --policy once"),
        (["--plots", "talk"], ExitCode.USAGE, "--site-cost, --committed and --plots are options of --compare"),
        ([*COMPARED, "--site-cost", "gpu"], ExitCode.NEGATIVE, "(--config) has no [site.cost.gpu], it has none"),
        (["--compare", "2"], ExitCode.NEGATIVE, "--compare needs what more GPUs cost: [site.cost.NAME] in burstd.toml"),
        (["--compare", "3", "--committed", "1y=1"], ExitCode.NEGATIVE, "3 GPUs are no whole number of nodes with 2"),
        ([*COMPARED, "--plots", "/proc/no"], ExitCode.NEGATIVE, "/proc/no cannot be written"),
        (
            ["--html", "nowhere/page.html", "--policy", "never"],
            ExitCode.NEGATIVE,
            "nowhere/page.html cannot be written",
        ),
    ],
)
def test_faults(trace: Path, more: list[str], code: ExitCode, says: str) -> None:
    done = simulate(trace, *more)
    assert done.exit_code == code, done.output
    assert says in done.output


def test_no_trace(tmp_path: Path) -> None:
    done = simulate(tmp_path / "none.csv")
    assert done.exit_code == ExitCode.NEGATIVE
    assert "none.csv cannot be read: No such file or directory" in done.output
