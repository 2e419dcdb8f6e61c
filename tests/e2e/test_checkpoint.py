"""A job that counts, whose machines die: it goes on from its last checkpoint, and counts nothing twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import QUICK, site_up, wait_all_gone
from tests.e2e.test_staging import start_now, wait_over, wait_stage
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

EVERY_S = 10
LAST = 120
COUNT = f"""#!/bin/sh
#SBATCH -p burst -c1 --mem=100 -t9 --requeue
#BURST stage_out numbers to results
#BURST checkpoint state every={EVERY_S}s keep=2
cd "$BURST_OUT"
: > numbers
[ -z "$BURST_CHECKPOINT" ] || cp "$BURST_CHECKPOINT" numbers
n=$(wc -l < numbers)
while [ $n -lt {LAST} ]; do
  n=$((n + 1))
  echo "$n run ${{SLURM_RESTART_COUNT:-0}}" >> numbers
  cp numbers state.tmp && mv state.tmp state
  sleep 0.2
done
"""


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    try:
        ensure_rootfs(request.param)
    except SandboxError as error:
        pytest.skip(str(error))
    with site_up(request.param, pools=[CPU], settings=QUICK, staging="") as up:
        yield up


def numbers(site: Site) -> list[tuple[int, int]]:
    """What came home: each number, and the run that wrote it."""
    lines = site.cluster.sh("cat results/numbers", "ada").splitlines()
    return [(int(line.split()[0]), int(line.split()[2])) for line in lines]


def test_a_job_that_counts_outlives_its_machines(site: Site, figure: Callable[[str], None]) -> None:
    site.cluster.sh("mkdir -p results", "ada")
    job = site.submit_script(COUNT)
    wait_stage(site, job, lambda row: bool(row["checkpoints"]), "it has a checkpoint", 90)
    (instance,) = site.instances()
    site.cloud.interrupt(instance, random.uniform(0, EVERY_S))  # noqa: S311 - any moment will do
    site.wait(lambda: site.job(job).get("Restarts") == "1", 90, "it is requeued")
    start_now(site, job)
    site.wait_job(job, timeout_s=120)
    wait_over(site, job)
    found = numbers(site)
    assert [number for number, _ in found] == list(range(1, LAST + 1)), "whole, and nothing twice"
    first = [number for number, run in found if run == 0]
    assert first
    figure(f"{site.release}: {len(first)} of {LAST} numbers were counted before the machine died")
    assert not site.storage.box.run(["sh", "-c", f"find / -path '*/checkpoint/{job}/*' -type f"]).stdout
    wait_all_gone(site)
