"""The disk of burstd's record is full: nothing is booted that could not be written down, and it goes on afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.sites import STATE, claims_of, restarts
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

FILL = f"{STATE}/fill"


@pytest.fixture
def small(site: Site) -> Iterator[Site]:
    """burstd with its record on a disk of its own, of a few MiB more than the record has, until the test is over."""
    site.kill_burstd("TERM")
    size = int(site.cluster.sh(f"du -sm {STATE}").split()[0]) + 4
    site.cluster.sh(f"cp -a {STATE} /tmp/kept")
    process = site.cluster.head.process
    assert process is not None
    # From outside: the box's own root may not mount.
    within = ["nsenter", f"--target={process.pid}", "--mount", "--"]
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}M,mode=0755", "state", STATE]
    subprocess.run([*within, *mount], check=True)
    site.cluster.sh(f"cp -a /tmp/kept/. {STATE}; rm -r /tmp/kept")
    try:
        site.start_burstd()
        yield site
    finally:
        site.kill_burstd("TERM")
        site.cluster.sh(f"rm -f {FILL}; cp -a {STATE} /tmp/kept")
        subprocess.run([*within, "umount", STATE], check=True)
        site.cluster.sh(f"find {STATE} -mindepth 1 -delete; cp -a /tmp/kept/. {STATE}; rm -r /tmp/kept")
        site.start_burstd()


def test_a_full_disk(small: Site) -> None:
    site = small
    running = site.submit("-p burst -c2 --mem=200 -t5", "sleep 6")
    site.wait_job(running, ["RUNNING"])
    calls = site.cloud.calls().counts["launch"]
    said = site.cluster.sh(f"cat /dev/zero >{FILL}", check=False)
    assert "No space left" in said
    job = site.submit("-p burst --gres=gpu:v100:1 --mem=100 -t5")
    site.wait(lambda: any("cannot be written" in a for a in site.api("/v1/status")["alarms"]), 30, "an alarm")
    (alarm,) = (a for a in site.burstctl_json("status")["alarms"] if "cannot be written" in a)
    assert "space" in alarm or "full" in alarm, alarm
    assert alarm in site.burstctl("status").stdout.replace("\n", " ") or "cannot be written" in alarm
    site.wait_job(running)
    assert site.cloud.calls().counts["launch"] == calls, "nothing is asked for that is not on record"
    assert site.burstd_runs()
    site.cluster.sh(f"rm {FILL}")
    site.wait_job(job)
    assert restarts(site, [running, job]) == {running: 0, job: 0}
    assert len(claims_of(site, job)) == 1
    site.wait(lambda: "cannot be written" not in str(site.api("/v1/status")["alarms"]), 20, "the alarm is over")
