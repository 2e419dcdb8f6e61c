"""slurmctld restarted, away, and started cold: nothing is destroyed, and what it forgot is put right."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from burstd.slurm.hostlist import expand
from tests.e2e.sites import claims_of, events, restarts, site_up, wait_all_gone
from tests.lab import slurm_files
from tests.lab.site import CPU, GPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

AWAY_S = 10.0
SLOTS = frozenset((*GPU.slots, *CPU.slots))


def start_cold(site: Site) -> None:
    """slurmctld as after the loss of its state: jobs, nodes and reservations are forgotten."""
    site.cluster.stop_slurmctld()
    site.cluster.sh(f"rm -f {slurm_files.STATE}/resv_state*")  # 22.05 keeps these even with -c
    site.cluster.start_slurmctld("-c")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with site_up() as up:
        yield up


def gate(site: Site) -> frozenset[str]:
    """What the gate holds; empty: there is none."""
    found = re.search(r"Nodes=(\S+)", site.cluster.sh("scontrol -o show reservation burstd", check=False))
    return frozenset(expand(found[1])) if found else frozenset()


def endings(site: Site) -> list[str]:
    """Claims that were ended or given up, so far."""
    bad = ("failed", "lost", "draining", "terminating")
    return [e["subject"] for e in events(site, "claim:") if e["new"] in bad and e["old"] != e["new"]]


def test_away_while_nodes_boot_and_jobs_run(site: Site) -> None:
    running = site.submit("-p burst -c2 --mem=200 -t5", "sleep 13")
    site.wait_job(running, ["RUNNING"])
    site.cluster.restart_slurmctld()
    assert site.job(running)["JobState"] == "RUNNING"
    gang = site.submit("-p burst -N2 --exclusive --gres=gpu:4 -t5")
    site.wait(lambda: len(claims_of(site, gang)) == 2, 10, "machines for both nodes")
    site.cluster.stop_slurmctld()
    stopped = time.monotonic()
    site.wait(lambda: any("Slurm cannot be read" in a for a in site.api("/v1/status")["alarms"]), 10, "an alarm")
    assert "Slurm cannot be read" in site.burstctl("status").stdout
    site.wait(lambda: time.monotonic() - stopped > AWAY_S, 2 * AWAY_S, "slurmctld was away for a while")
    assert endings(site) == []
    assert len(site.instances()) == 3
    site.cluster.start_slurmctld()
    site.wait_job(gang)
    site.wait_job(running)
    site.wait(lambda: not site.api("/v1/status")["alarms"], 10, "the alarm is over")
    assert restarts(site, [gang, running]) == {gang: 0, running: 0}
    account = wait_all_gone(site)
    assert len(account.by_claim) == 3, "no machine but those that were needed"


def test_a_cold_start_loses_the_gate(site: Site) -> None:
    """A job gets past the gate that is not there, Slurm asks for its node by itself, and burstd serves it."""
    site.kill_burstd("TERM")
    start_cold(site)
    assert gate(site) == frozenset()
    # srun asks whether its nodes are ready; batch jobs are looked at by slurmctld every half minute only.
    words = ["srun", "-p", "burst", "-c2", "--mem=200", "-t5", "true"]
    srun = site.cluster.head.popen(words, user="ada", cwd="/home/ada", stderr=subprocess.DEVNULL)
    site.wait(lambda: bool(site.cluster.sh("squeue -h -t CF,R -o %N").strip()), 20, "the job has a node that is off")
    node = site.cluster.sh("squeue -h -o %N").strip()
    spool = "ls /var/spool/burstd/power"
    site.wait(lambda: bool(site.cluster.sh(spool)), 20, "ResumeProgram leaves word for a burstd that is not there")
    site.start_burstd()
    site.wait(lambda: gate(site) >= SLOTS - {node}, 10, "the gate is made again")
    site.wait(lambda: _causes(site, node) == ["slurm"], 10, "a machine for the node, as Slurm asked")
    assert srun.wait(60) == 0
    wait_all_gone(site)
    site.wait(lambda: gate(site) == SLOTS, 10, "the gate holds every slot")
    assert site.cluster.sh(spool) == "", "the word that was left was read"


def _causes(site: Site, node: str) -> list[str]:
    return [n["cause"] for n in site.api("/v1/nodes")["nodes"] if n["slot"] == node]


def test_a_cold_start_under_open_nodes(site: Site) -> None:
    """Slurm forgets the job, its node and the gate: the gate comes back, the machine goes, and new jobs run."""
    job = site.submit("-p burst -c2 --mem=200 -t5", "sleep 60")
    site.wait_job(job, ["RUNNING"])
    start_cold(site)
    wait_all_gone(site)
    site.wait(lambda: gate(site) == SLOTS, 10, "the gate holds every slot")
    fresh = site.submit("-p burst -c2 --mem=200 -t5")
    site.wait_job(fresh)
    wait_all_gone(site)
