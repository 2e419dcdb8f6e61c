"""Volumes, end to end: what one job writes the next one reads on another machine, and nobody loses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from providers.sandbox.cloud import wire
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import QUICK, ask_cloud, claims_of, cloud_inventory, events, site_up, wait_all_gone
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SETTINGS = f"""{QUICK}
[volumes]
prices = {{ sandbox = "730" }}
max_size = "2G"
user_size = "3G"
"""
WORDS = "-p burst -c1 --mem=100"
SCRIPT = """#!/bin/sh
#BURST volume {line}
set -eu
cd "$BURST_VOLUMES/{name}"
{run}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with site_up(pools=[CPU], settings=SETTINGS, staging="", image_packages=["e2fsprogs"]) as up:
        yield up


def submit(site: Site, run: str, line: str = "corpus", words: str = WORDS) -> str:
    return site.submit_script(SCRIPT.format(line=line, name=line.partition(" ")[0], run=run), words)


def volume(site: Site, name: str = "corpus") -> dict[str, Any]:
    found: dict[str, Any] = site.api(f"/v1/volumes/{name}", user="ada")["volume"]
    return found


def disks(site: Site) -> list[wire.DiskView]:
    answer = ask_cloud(site, "GET", "/disks", params={"limit": 100}).json()
    return wire.PageView[wire.DiskView].model_validate(answer).items


def wait_state(site: Site, state: str, name: str = "corpus", limit_s: float = 60) -> None:
    site.wait(lambda: volume(site, name)["state"] == state, limit_s, f"volume {name} is {state}")


def test_what_is_wrong_is_said_at_sbatch_or_before_the_job_starts(site: Site) -> None:
    def refusal(line: str, words: str = WORDS) -> str:
        script = SCRIPT.format(line=line, name=line.partition(" ")[0], run="true")
        return site.cluster.sh(f"sbatch {words} <<'END' 2>&1\n{script}\nEND\n", "ada", check=False)

    assert "3 GiB is more than the 2 GiB that a volume may have" in refusal("corpus 3G")
    for line, words, why in (
        ("corpus", WORDS, "write its size, as in 'volume corpus 100G'"),
        ("corpus 1G", "-N2 -p burst", "asks for 2: add -N 1"),
        ("corpus 1G", "-p onprem", "volumes are in the cloud only"),
        ("corpus 1G", f"{WORDS} --array=1-2", "jobs of arrays and het jobs cannot have volumes"),
    ):
        said = refusal(line, words)
        if "Submitted batch job" not in said:
            assert why in said
            continue
        # Slurm 22.05 says nothing of a job at sbatch.
        job, tasks = said.split()[-1], 2 if "--array" in words else 1

        def held(job: str = job, why: str = why, tasks: int = tasks) -> bool:
            return site.cluster.sh(f"scontrol show job {job}").count(why) >= tasks

        site.wait(held, 60, why)
        site.cluster.sh(f"scancel {job}", "ada")
    assert site.api("/v1/volumes")["volumes"] == []
    assert disks(site) == []


def test_the_next_job_reads_what_the_last_one_wrote(site: Site) -> None:
    """One writer at a time; the volume outlives its machines, is on the bill, and goes only when its owner says so."""
    first = submit(site, "id -un; ls -A; echo one > log; until [ -e go ]; do sleep 0.2; done", "corpus 1G")
    second = submit(site, "stat -c %U . log; cat log; echo two >> log")
    site.wait_job(first, ["RUNNING"])
    site.wait(lambda: f"in use by job {first}" in site.burstctl_in_process("explain", second), 20, "explain says why")
    site.wait(
        lambda: f"in use by job {first}" in site.burstctl_in_process("stage", "status", second), 20, "so does stage"
    )
    assert site.cluster.sh(f"squeue -h -j {second} -o %r").strip() == "BurstBufferStageIn"
    assert claims_of(site, second) == [], "nothing is paid for a job that waits"
    assert (volume(site)["state"], volume(site)["job_id"]) == ("in_use", first)
    assert (
        "can be removed when no job has it"
        in site.burstctl("volume", "remove", "corpus", "--yes", user="ada", check=False).stderr
    )
    assert site.burstctl("volume", "show", "corpus", "--user", "ada", user="bob", check=False).returncode
    site.burstctl(
        "job", "shell", "--via", "node", first, "--", "touch", f"/run/burst-volumes/{first}/corpus/go", user="ada"
    )
    site.wait_job(second, timeout_s=90)
    assert site.cluster.sh(f"cat slurm-{first}.out", "ada") == "ada\nlost+found\n"
    assert site.cluster.sh(f"cat slurm-{second}.out", "ada") == "ada\nada\none\n"
    before, after = (claims_of(site, job)[-1]["claim"] for job in (first, second))
    assert before != after
    wait_state(site, "available")
    wait_all_gone(site)
    (disk,) = disks(site)
    assert (disk.attached_to, disk.size_bytes, disk.tags["burstd-volume-user"]) == ("", 1 << 30, "ada")
    lines = [line for line in site.api("/v1/bill", group="user")["lines"] if line["volumes"]]
    assert [line["key"] for line in lines] == ["ada"]
    assert float(lines[0]["cost"]["amount"]) == pytest.approx(lines[0]["machine_s"] / 3600, rel=0.01)
    assert "ada (volumes)" in site.burstctl("bill").stdout
    assert "corpus" in site.burstctl("volume", "list", user="ada").stdout
    assert "corpus" not in site.burstctl("volume", "list", user="bob").stdout
    site.burstctl("volume", "remove", "corpus", "--yes", user="ada")
    site.wait(lambda: disks(site) == [], 30, "the disk is gone")
    site.wait(lambda: site.api("/v1/volumes")["volumes"] == [], 30, "so is the volume")
    removed = [e for e in events(site, "volume:") if e["new"] == "removing"]
    assert [e["by"] for e in removed] == ["ada"]


def test_burstd_is_killed_while_a_disk_is_made_and_attached(site: Site) -> None:
    """No second disk is made for the answer that was lost, and a repeated attachment is one."""
    site.cloud.inject_fault(SandboxFault(FaultKind.LOSE_ANSWER, calls=("create-disk",), count=1, seconds=30))
    job = submit(site, "echo made > state", "twice 1G")
    site.wait(lambda: len(disks(site)) == 1, 60, "the cloud has made it")
    site.kill_burstd("KILL")
    fault = site.cloud.inject_fault(SandboxFault(FaultKind.UNAVAILABLE, calls=("attach-disk",)))
    site.start_burstd()
    wait_state(site, "attaching", "twice")
    site.kill_burstd("KILL")
    site.cloud.cancel_fault(fault)
    site.start_burstd()
    site.wait_job(job, timeout_s=90)
    assert len(disks(site)) == 1
    wait_state(site, "available", "twice")


def test_a_machine_that_dies_gives_its_volume_back(site: Site) -> None:
    """What was written back is there for the next job; the disk is attached to no machine twice."""
    job = submit(site, "cat state; date > state; sync; touch began; sleep 300", "twice", f"{WORDS} --no-requeue")
    site.wait_job(job, ["RUNNING"])
    seen = site.cluster.sh
    site.wait(
        lambda: (
            "made" in seen(f"cat slurm-{job}.out", "ada", check=False) or volume(site, "twice")["state"] == "in_use"
        ),
        30,
        "it has the volume",
    )
    (instance,) = cloud_inventory(site).alive
    site.wait(lambda: disks(site)[0].attached_to == instance, 10, "attached")
    ask_cloud(site, "DELETE", f"/instances/{instance}")
    wait_state(site, "available", "twice", 120)
    again = submit(site, "ls; cat state", "twice")
    site.wait_job(again, timeout_s=120)
    site.burstctl("volume", "remove", "twice", "--yes", "--user", "ada")
    site.wait(lambda: disks(site) == [], 30, "the disk is gone")
    wait_all_gone(site)
