"""From the opening of the gate to the start of the job: alone, behind thousands that do not fit, and as a gang."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime

import pytest

from tests.e2e.sites import claims_of, events
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

DEPTH = 5000


def to_start(site: Site, job: str) -> float:
    """Seconds from the opening of the job's last node to the moment when slurmctld allocated it."""
    log = site.cluster.sh("cat /var/log/slurm/slurmctld.log")
    claims = {claim["claim"] for claim in claims_of(site, job)}
    opened = [
        datetime.fromisoformat(e["time"]).timestamp()
        for claim in claims
        for e in events(site, f"claim:{claim}")
        if e["new"] == "in_service" and e["old"] == "ready"
    ]
    # By the main scheduler or by backfill, each with its own word.
    found = re.search(rf"\[(\S+)\] .*(?:Allocate|Started) JobId={job} ", log)
    assert found is not None, log[-3000:]
    assert len(opened) == len(claims)
    return datetime.fromisoformat(found[1] + "+00:00").timestamp() - max(opened)


def test_alone(site: Site, figure: Callable[[str], None]) -> None:
    job = site.submit("-p burst --gres=gpu:v100:1 --mem=100 -t5")
    site.wait_job(job)
    took = to_start(site, job)
    figure(f"gate to start, alone: {took:.2f} s")


def test_a_gang_among_small_jobs_starts_as_a_whole(site: Site, figure: Callable[[str], None]) -> None:
    """Small jobs keep coming, each would fit the gang's nodes: none of them gets one."""
    gang = site.submit("-p burst -N2 --exclusive --gres=gpu:4 -t5", "srun hostname; sleep 1")
    small: list[str] = []

    def gang_has_started() -> bool:
        small.append(site.submit("-p burst --gres=gpu:v100:1 --mem=100 -t5", "sleep 2"))
        return site.job(gang)["JobState"] in ("RUNNING", "COMPLETED")

    site.wait(gang_has_started, 60, "the gang has started while small jobs come")
    site.wait_job(gang)
    nodes = {claim["slot"] for claim in claims_of(site, gang)}
    assert len(nodes) == 2
    took = to_start(site, gang)
    figure(f"gate to start, a gang of two among {len(small)} small jobs: {took:.2f} s")


def test_behind_thousands_that_do_not_fit(site: Site, figure: Callable[[str], None]) -> None:
    """The job for which the node was booted gets it, though slurmctld looks at every other job before it."""
    for _ in range(DEPTH // 1000):
        array = site.submit("-p burst -C closed -c64 --mem=50000 -t5 --array=0-1000")
        # Tasks that are changed become jobs of their own in slurmctld's queue: a thousand with two commands.
        site.cluster.sh(f"scontrol update jobid={array}_[1-1000] name=apart")
    waiting = int(site.cluster.sh("squeue -h -t PD -n apart | wc -l"))
    assert waiting >= DEPTH
    begun = time.monotonic()
    job = site.submit("-p burst --gres=gpu:v100:4 --mem=100 -t5")
    site.wait_job(job, timeout_s=90)
    took = to_start(site, job)
    figure(
        f"gate to start, behind {waiting} that do not fit: {took:.2f} s"
        f" ({time.monotonic() - begun:.1f} s from sbatch to its end)"
    )
    bound = [e for c in claims_of(site, job) for e in events(site, f"claim:{c['claim']}") if "alone" in e["reason"]]
    assert bound, "the node was bound to the job"
