"""Debian's Prometheus scrapes burstd: nodes come and go as targets, alerts fire and clear."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from burstd.runtime.claim_ids import ClaimIds
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from tests.e2e.sites import ask_cloud, claims_of, events, wait_all_gone
from tests.lab.prometheus import PROGRAMS, TARGETS, LabPrometheus, shortened_rules
from tests.lab.site import Site

CONFIG = "/etc/burstd/burstd.toml"
AMPLE = 1000.0
"""A budget, in EUR, of which all tests here together spend a few."""
USED = "burstd_budget_used_ratio"
ALERTS = {rule["alert"] for group in shortened_rules()["groups"] for rule in group["rules"]}

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


@pytest.fixture
def site_budget(site: Site) -> Iterator[Callable[[float], None]]:
    """Gives the whole site a budget of so much, as an administrator does; pool solo takes spot machines meanwhile."""
    before = site.burstd_toml()
    others, solo = before.split("[pools.solo]\n")
    spot = f"{others}[pools.solo]\n" + solo.replace('"on-demand"', '"spot"', 1)

    def set_limit(amount: float) -> None:
        budget = f"[policies.budget]\nlimit = {amount:.6f}\n"
        site.write(CONFIG, spot.replace('"limits"]', '"limits", "budget"]') + budget)
        site.burstctl("config", "reload")

    yield set_limit
    site.write(CONFIG, before)
    site.burstctl("config", "reload")


def file_nodes(site: Site) -> set[str]:
    return {target["labels"]["node"] for target in json.loads(site.cluster.head.path(TARGETS).read_text())}


def entered(site: Site, claim: str, state: str) -> float:
    """When a claim came into a state for the first time, by the head's clock."""
    return next(
        datetime.fromisoformat(e["time"]).timestamp()
        for e in events(site, f"claim:{claim}")
        if e["new"] == state != e["old"]
    )


@pytest.mark.thorough
def test_nodes_are_targets_and_alerts_fire_and_clear(
    site: Site, prometheus: LabPrometheus, site_budget: Callable[[float], None], figure: Callable[[str], None]
) -> None:
    wait_all_gone(site)
    assert file_nodes(site) == set()
    site_budget(AMPLE)
    prometheus.wait(lambda: prometheus.value(USED) is not None, "the budget is scraped")
    # What nobody has a claim for, of which the grace period begins; a cloud that refuses a type once, and then is slow.
    known = ClaimIds(site.cluster.sh("cat /var/lib/burstd/ssh_key").encode()).new_claim_id()
    body = {"token": "stray", "name": "stray", "zone": "south", "type": "c2.plain", "image": "node",
            "tags": {"burstd-cluster": "lab", "burstd-claim": known}}  # fmt: skip
    ask_cloud(site, "POST", "/instances", json=body)
    site.cloud.inject_fault(SandboxFault(FaultKind.CAPACITY, ("launch",), types="c2.plain", count=1))
    site.cloud.inject_fault(SandboxFault(FaultKind.BOOT_SLOW, types="c2.plain", count=1, seconds=2.0))

    # A node comes; a job waits for one that no cloud has.
    never = site.submit("-p burst -C closed -t5")
    job = site.submit("-p burst -C solo --mem=200 -t5", "sleep 300")
    prometheus.wait_fired("BurstdBreakerOpen", "BurstdNodeNotStarting", "BurstdJobsWaitLong")
    remedy = "burstctl status (groups of waiting jobs), then burstctl explain JOB"
    assert prometheus.alerts()["BurstdJobsWaitLong"]["remedy"] == remedy
    site.cluster.sh(f"scancel {never}")
    prometheus.wait(lambda: "solo1" in prometheus.node_targets(), "the node is a target")
    labels = prometheus.node_targets()["solo1"]
    (claim,) = (one for one in claims_of(site, job) if one["instance"] and not one["error"])
    assert {name: labels[name] for name in ("pool", "claim", "provider", "type", "market", "price")} == {
        "pool": "solo", "claim": claim["claim"], "provider": "sandbox", "type": "c2.plain", "market": "spot",
        "price": "0.10",
    }  # fmt: skip
    path = site.cluster.head.path(TARGETS)
    opened = path.stat().st_mtime - entered(site, claim["claim"], "in_service")

    _budget_alerts(prometheus, site_budget)
    _machine_alerts(site, prometheus, job, claim["instance"])
    prometheus.wait(lambda: not prometheus.node_targets(), "the node that was closed is no target")
    assert file_nodes(site) == set()
    closed = path.stat().st_mtime - entered(site, claim["claim"], "terminating")
    figure(f"targets of Prometheus: {opened:.1f} s after the node opened, gone {closed:.1f} s after it closed")
    site.burstctl("provider", "forget", "sandbox")
    prometheus.wait_over("BurstdBreakerOpen", "BurstdNodeNotStarting", "BurstdJobsWaitLong")

    _fault_alerts(site, prometheus)
    site.kill_burstd("KILL")
    prometheus.wait_fired("BurstdDown")
    prometheus.wait(lambda: "BurstdDown" in prometheus.received_alerts(), "Alertmanager has it")
    site.start_burstd()
    site.wait(site.has_looked, 60, "burstd's first loop")
    prometheus.wait(lambda: not prometheus.alerts(), "all alerts are over")
    assert prometheus.fired == ALERTS
    wait_all_gone(site)


def _budget_alerts(prometheus: LabPrometheus, site_budget: Callable[[float], None]) -> None:
    # What the machine may cost was promised all at once: at that pace the budget is soon gone.
    prometheus.wait_fired("BurstdBudgetForecast")
    used = AMPLE * (prometheus.value(USED) or 0.0)
    site_budget(used / 0.87)
    prometheus.wait_fired("BurstdBudgetNearlyUsed")
    site_budget(used / 0.97)
    prometheus.wait_fired("BurstdBudgetUsedUp")
    site_budget(AMPLE)
    prometheus.wait_over("BurstdBudgetNearlyUsed", "BurstdBudgetUsedUp")


def _machine_alerts(site: Site, prometheus: LabPrometheus, job: str, instance: str) -> None:
    # An idle node is kept; then its cloud takes its machine back.
    site.burstctl("hold", "an idle node")
    site.cluster.sh(f"scancel {job}")
    prometheus.wait_fired("BurstdIdleCost")
    site.cloud.interrupt(instance, 30.0)
    site.wait(lambda: "burstd: interruption" in site.cluster.sh("sinfo -h -R -o %E"), 30, "the node is drained")
    site.burstctl("unhold")
    prometheus.wait_fired("BurstdInterruptions")


def _fault_alerts(site: Site, prometheus: LabPrometheus) -> None:
    # The stray machine has been removed by now. slurmctld stands still; then Slurm and the cloud cannot be asked.
    prometheus.wait_fired("BurstdLeak")
    site.cloud.inject_fault(SandboxFault(FaultKind.UNAVAILABLE, ("list",)))
    site.cluster.sh("pkill -STOP slurmctld")
    prometheus.wait_fired("BurstdLoopStale")
    site.cluster.sh("mv /usr/bin/scontrol /usr/bin/scontrol.away; pkill -CONT slurmctld")
    prometheus.wait_fired("BurstdSlurmUnreachable", "BurstdCloudUnreachable")
    site.cluster.sh("mv /usr/bin/scontrol.away /usr/bin/scontrol")
    site.cloud.cancel_fault()
