"""A store whose storage node burstd launches when there is data to stage, and ends when none is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.sites import QUICK, events, site_up, wait_all_gone
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

NODE = "storage-storage"
SCRIPT = """#!/bin/sh
#BURST stage_in data/set as set
#BURST stage_out . to results
cat "$BURST_IN/set/a.txt" > "$BURST_OUT/copy.txt"
{run}
"""


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with site_up(pools=[CPU], settings=QUICK, staging="", launch="idle_s = 4\nfree_gib = 0.1") as up:
        yield up


@pytest.fixture
def site(whole: Site) -> Site:
    whole.cluster.sh("scancel --hurry -u ada")
    whole.wait(lambda: not whole.api("/v1/stage")["jobs"], 60, "no job's data")
    wait_all_gone(whole)
    whole.cluster.sh("rm -rf data results; mkdir -p data/set; echo hello > data/set/a.txt", "ada")
    return whole


def submit(site: Site, run: str = "true") -> str:
    return site.submit_script(SCRIPT.format(run=run), "-p burst -c1 --mem=100")


def node(site: Site) -> dict[str, Any] | None:
    """The storage node, as burstctl shows it."""
    found: list[dict[str, Any]] = [n for n in site.api("/v1/nodes")["nodes"] if n["slot"] == NODE]
    return found[0] if found else None


def is_open(site: Site) -> bool:
    found = node(site)
    return found is not None and found["state"] == "in_service"


def ends_well(site: Site, job: str) -> None:
    """The output is home, and nothing is left: neither of the job nor of the storage node."""
    site.wait_job(job, ["COMPLETED"], 90)
    site.wait(lambda: not site.api("/v1/stage")["jobs"], 60, "no job's data")
    assert site.cluster.sh("cat results/copy.txt", "ada") == "hello\n"
    manifest = json.loads(site.cluster.sh(f"cat results/burst-{job}.json", "ada"))
    assert manifest["complete"], manifest
    assert wait_all_gone(site).alive == ()
    assert not site.cluster.sh("ls /var/lib/burstd/storage", check=False).strip(), "its keys are gone with it"


def test_it_comes_for_a_job_and_goes_when_its_output_is_home(site: Site) -> None:
    assert not site.instances()
    job = submit(site)
    site.wait(lambda: "waits for the storage node" in site.burstctl_in_process("stage", "status", job), 30, "waits")
    site.wait(lambda: is_open(site), 60, "the storage node is there")
    [pool] = [p for p in site.burstctl_json("status")["pools"] if p["name"] == NODE]
    assert (pool["partitions"], pool["slots"], pool["open"]) == ([], 1, 1)
    assert NODE not in site.cluster.sh("sinfo -N -h -o %N")
    ends_well(site, job)
    moves = {(e["old"], e["new"]): e["time"] for e in events(site, f"stage:{job}")}
    assert ("uploading", "staged") in moves
    assert moves["uploading", "staged"] <= moves["staged", "fetching"], "allocated before its input was there"
    early = [e["reason"] for e in events(site, f"stage:{job}") if e["old"] in ("", "waiting", "uploading")]
    assert not any("tried again" in reason for reason in early), f"waiting is no failure: {early}"
    lines = {line["key"]: line for line in site.burstctl_json("bill", "--by", "pool")["lines"]}
    assert float(lines[NODE]["cost"]["amount"]) > 0
    assert lines[NODE]["claims"] >= 1


def test_output_goes_through_a_new_one_where_the_first_was_lost(site: Site) -> None:
    job = submit(site, "sleep 8")
    site.wait_job(job, ["RUNNING"], 90)
    lost = node(site)
    assert lost is not None
    site.cloud.interrupt(lost["instance"])
    site.wait(lambda: is_open(site) and (node(site) or {})["claim"] != lost["claim"], 90, "another storage node")
    ends_well(site, job)


def test_a_burstd_that_is_killed_while_its_node_comes_up_has_it_afterwards(site: Site) -> None:
    job = submit(site)
    site.wait(lambda: (node(site) or {}).get("state") in ("launching", "booting", "validating"), 60, "on its way")
    coming = node(site)
    site.kill_burstd()
    site.start_burstd()
    site.wait(site.has_looked, 30, "burstd's first loop")
    assert coming is not None
    site.wait(lambda: is_open(site), 60, "the storage node is there")
    assert (node(site) or {})["claim"] == coming["claim"]
    ends_well(site, job)
