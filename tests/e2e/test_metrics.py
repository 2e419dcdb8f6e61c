"""Debian's Prometheus scrapes burstd: nodes come and go as targets, alerts fire and clear."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from burstd.reconciler.machines.claim_ids import ClaimIds
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import ask_cloud, claims_of, events, wait_all_gone
from tests.lab.prometheus import PROGRAMS, TARGETS, LabPrometheus
from tests.lab.site import Site

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)), reason="Prometheus or Alertmanager is not installed (Debian's packages)"
    ),
]


@pytest.fixture
def prometheus(site: Site, tmp_path: Path) -> Iterator[LabPrometheus]:
    with LabPrometheus(site, tmp_path) as up:
        up.wait(lambda: up.value('up{job="burstd"}') == 1, "Prometheus scrapes burstd")
        yield up


def file_nodes(site: Site) -> set[str]:
    return {target["labels"]["node"] for target in json.loads(site.cluster.head.path(TARGETS).read_text())}


def entered(site: Site, claim: str, state: str) -> float:
    """When a claim came into a state for the first time, by the head's clock."""
    return next(
        datetime.fromisoformat(e["time"]).timestamp()
        for e in events(site, f"claim:{claim}")
        if e["new"] == state != e["old"]
    )


def test_nodes_are_targets_and_alerts_fire_and_clear(
    site: Site, prometheus: LabPrometheus, figure: Callable[[str], None]
) -> None:
    def fires(*names: str) -> None:
        seen: set[str] = set()

        def all_have() -> bool:
            seen.update(prometheus.alerts())
            return seen.issuperset(names)

        prometheus.wait(all_have, f"{', '.join(names)} have fired")

    wait_all_gone(site)
    assert file_nodes(site) == set()
    # What nobody has a claim for, of which the grace period begins; a cloud that refuses a type once, and then is slow.
    known = ClaimIds(site.cluster.sh("cat /var/lib/burstd/ssh_key").encode()).new_claim_id()
    body = {"token": "stray", "name": "stray", "zone": "south", "type": "c2.plain", "image": "node",
            "tags": {"burstd-cluster": "lab", "burstd-claim": known}}  # fmt: skip
    ask_cloud(site, "POST", "/instances", json=body)
    site.cloud.inject_fault(SandboxFault(FaultKind.CAPACITY, ("launch",), types="c2.plain", count=1))
    site.cloud.inject_fault(SandboxFault(FaultKind.BOOT_SLOW, types="c2.plain", count=1, seconds=2.0))

    # A node comes; a job waits for one that no cloud has.
    never = site.submit("-p burst -C closed -t5")
    job = site.submit("-p burst -C solo --mem=200 -t5", "sleep 60")
    fires("BurstdBreakerOpen", "BurstdNodeNotStarting", "BurstdJobsWaitLong")
    remedy = "burstctl status (groups of waiting jobs), then burstctl explain JOB"
    assert prometheus.alerts()["BurstdJobsWaitLong"]["remedy"] == remedy
    site.cluster.sh(f"scancel {never}")
    prometheus.wait(lambda: "solo1" in prometheus.node_targets(), "the node is a target")
    labels = prometheus.node_targets()["solo1"]
    (claim,) = (one for one in claims_of(site, job) if one["instance"] and not one["error"])
    assert {name: labels[name] for name in ("pool", "claim", "provider", "type", "market", "price")} == {
        "pool": "solo", "claim": claim["claim"], "provider": "sandbox", "type": "c2.plain", "market": "on-demand",
        "price": "0.40",
    }  # fmt: skip
    path = site.cluster.head.path(TARGETS)
    opened = path.stat().st_mtime - entered(site, claim["claim"], "in_service")
    site.burstctl("scale", "solo", "1", "--floor", "--for", "2s")
    site.cluster.sh(f"scancel {job}")
    fires("BurstdIdleCost")
    prometheus.wait(lambda: not prometheus.node_targets(), "the node that was closed is no target")
    assert file_nodes(site) == set()
    closed = path.stat().st_mtime - entered(site, claim["claim"], "terminating")
    figure(f"targets of Prometheus: {opened:.1f} s after the node opened, gone {closed:.1f} s after it closed")
    site.burstctl("provider", "forget", "sandbox")
    over = ("BurstdBreakerOpen", "BurstdNodeNotStarting", "BurstdJobsWaitLong")
    prometheus.wait(lambda: prometheus.alerts().keys().isdisjoint(over), f"{', '.join(over)} are over")

    # The stray machine has been removed by now. slurmctld stands still; then Slurm and the cloud cannot be asked.
    fires("BurstdLeak")
    site.cloud.inject_fault(SandboxFault(FaultKind.UNAVAILABLE, ("list",)))
    site.cluster.sh("pkill -STOP slurmctld")
    fires("BurstdLoopStale")
    site.cluster.sh("mv /usr/bin/scontrol /usr/bin/scontrol.away; pkill -CONT slurmctld")
    fires("BurstdSlurmUnreachable", "BurstdCloudUnreachable")
    site.cluster.sh("mv /usr/bin/scontrol.away /usr/bin/scontrol")
    site.cloud.cancel_fault()

    site.kill_burstd("KILL")
    fires("BurstdDown")
    prometheus.wait(lambda: "BurstdDown" in prometheus.received_alerts(), "Alertmanager has it")
    site.start_burstd()
    prometheus.wait(lambda: not prometheus.alerts(), "all alerts are over")
    wait_all_gone(site)
