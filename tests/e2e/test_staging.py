"""A job's data, end to end: input in the store before Slurm allocates, output home whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from burstd.model.offer import Pool
from tests.e2e.sites import QUICK, site_up, wait_all_gone
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SCRIPT = """#!/bin/sh
#BURST stage_in data/set as set
#BURST stage_out . to results
{more}
cat "$BURST_IN/set/a.txt" > "$BURST_OUT/copy.txt"
{run}
"""


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with site_up(pools=[CPU], settings=QUICK, staging="") as up:
        yield up


@pytest.fixture
def site(whole: Site) -> Site:
    whole.cluster.sh("scancel -u ada")
    wait_all_gone(whole)
    whole.cluster.sh("rm -rf data results; mkdir -p data/set; echo hello > data/set/a.txt; ln -s a.txt data/set/b", "ada")
    return whole


def test_the_main_path(site: Site) -> None:
    job = site.submit_script(SCRIPT.format(more="", run="hostname > $BURST_OUT/where"), "-p burst")
    site.wait_job(job, ["RUNNING", "COMPLETING", "STAGE_OUT", "COMPLETED"])
    site.wait_job(job, ["COMPLETED"])
    assert site.cluster.sh("cat results/copy.txt", "ada") == "hello\n"
    assert site.cluster.sh("cat results/where", "ada").startswith("lab-cpu")
    assert site.cluster.sh("stat -c %U results/copy.txt", "ada") == "ada\n"
    manifest = json.loads(site.cluster.sh(f"cat results/burst-{job}.json", "ada"))
    assert manifest["complete"] and manifest["state"] == "COMPLETED", manifest
    assert {f["path"].rpartition("/")[2] for f in manifest["files"]} >= {"copy.txt", "where"}


POOLS: tuple[Pool, ...] = (CPU,)
