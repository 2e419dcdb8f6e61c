"""The main job: sbatch to the burst partition, nodes come, the jobs run, the nodes go, the bill is right."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import (
    QUICK,
    SET_COMMENT,
    claims_of,
    comments_of,
    events,
    queue,
    record,
    site_up,
    wait_all_gone,
    wait_done,
)
from tests.lab.meter import metered_bill
from tests.lab.releases import releases
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]


SENTINEL = "/etc/debian_version"
OWN_COST = '[site.cost.old]\nnodes = ["op*"]\nnode_hour = 36\n'
"""0.01 EUR a second."""


@pytest.fixture(params=releases("trixie", "bookworm", "forky"))
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    release = request.param
    if release != "bookworm":
        try:
            ensure_rootfs(release)
        except SandboxError as error:
            pytest.skip(f"no root file system of {release}: {error}")
    with site_up(release, settings=f'{QUICK}[node]\nsentinels = ["{SENTINEL}"]\n{OWN_COST}') as up:
        yield up


def test_a_burst_from_sbatch_to_the_bill(site: Site, figure: Callable[[str], None]) -> None:
    whole = site.release == "bookworm"
    site.burstctl("node", "reference", "op1")
    nobodys = site.burstctl("node", "reference", "op99", check=False)
    assert (nobodys.returncode, "op99 not found" in nobodys.stderr) == (1, True), nobodys.stderr
    with pytest.raises(RuntimeError, match="Requested node configuration is not available"):
        site.submit("-p burst --gres=gpu:h100:1 -t5")
    cpu = site.submit("-p burst -c2 --mem=200 -t5", f"{SET_COMMENT % 'echo $SLURMD_NODENAME'}; sleep 1")
    array = site.submit(
        f"-p burst --gres=gpu:v100:2 --mem=100 --array=1-{6 if whole else 2} -t5",
        f"{SET_COMMENT % 'echo $CUDA_VISIBLE_DEVICES'}; sleep 1",
    )
    gang = site.submit(
        "-p burst -N2 --exclusive --gres=gpu:4 -t5", f"{SET_COMMENT % 'srun hostname | sort | xargs'}; sleep 1"
    )
    either = site.submit("-p onprem,burst --exclusive -t5", "sleep 1")
    jobs = [cpu, array, gang, either]
    wait_done(site, jobs)
    ran_on = {job: nodes for job, _, nodes in queue(site)}
    # Which of the open nodes it takes is Slurm's choice.
    assert ran_on[cpu].startswith(("cpu", "gpu"))
    assert ran_on[either].startswith("op"), "it ran where it could start at once"
    assert all(ran_on[f"{array}_{task}"].startswith("gpu") for task in (1, 2))
    _its_node_is_on_the_bill(site, either)
    # Two tasks may share a node of four GPUs, and each sees two of its own.
    assert set(comments_of(site, array)) <= {"0,1", "2,3"}
    assert len(comments_of(site, array)) == (6 if whole else 2)
    hosts = comments_of(site, gang)[0].split()
    assert len(hosts) == len(set(hosts)) == 2
    assert comments_of(site, cpu) == [ran_on[cpu]]

    account = wait_all_gone(site)
    needed = 1 + (3 if whole else 1) + 2
    assert needed <= len(account.by_claim) <= needed + 2, "machines for the nodes that were needed, and hardly more"
    delays = [_to_launch(site, job) for job in (cpu, array, gang)]
    median = statistics.median(delays)
    figure(f"sbatch to launch call, {site.release}: {', '.join(f'{d:.2f} s' for d in delays)} (median {median:.2f} s)")

    if site.release != "forky":
        _the_site_changes(site)
        account = wait_all_gone(site)
    _the_bill_is_the_clouds(site, {job for job, nodes in ran_on.items() if nodes and not nodes.startswith("op")})
    kept = record(site)
    assert set(kept.claims) == set(account.by_claim)
    assert {c.state.value for c in kept.claims.values()} == {"gone"}


def _the_site_changes(site: Site) -> None:
    """The reference has other software: burstctl check says so of a node in service, and the next one is refused."""
    runs = site.submit("-p burst -c2 --mem=200 -t5", "sleep 300")
    site.wait_job(runs, ["RUNNING"])
    node = site.job(runs)["NodeList"]
    assert json.loads(site.burstctl("check", "--json", check=False).stdout)["nodes"] == [
        {"node": node, "differences": [], "error": ""}
    ]
    assert "a munge that trusts ours" in site.burstctl("node", "show", node).stdout
    release = site.cluster.lab.box("op1").path(SENTINEL)
    before = release.read_bytes()
    release.write_bytes(b"another\n")
    expected, found = (hashlib.sha256(text).hexdigest()[:12] for text in (b"another\n", before))
    site.burstctl("node", "reference", "op1")
    assert f"{SENTINEL}  {expected}" in site.burstctl("node", "reference").stdout
    checked = site.burstctl("check", check=False)
    assert checked.returncode == 1
    difference = f"{SENTINEL} with checksum {expected}"
    assert f"{node}: sentinels: wanted {difference}, found checksum {found}" in " ".join(checked.stdout.split())
    waits = site.submit("-p burst -c2 --mem=200 -t5", "true")
    said = f"sentinels: checksum {found} where {difference} is expected."
    refused = f"claims that were refused: {said}"
    site.wait(lambda: any(said in e["reason"] for e in events(site, "claim:") if e["new"] == "failed"), 30, refused)
    site.cluster.sh(f"scancel {runs} {waits}")
    assert [e["new"] for e in events(site, "reference")] == ["op1", "op1"]


def _to_launch(site: Site, job: str) -> float:
    """Seconds from sbatch, which Slurm knows to a second, to the call that launched its first machine."""
    claims = {n["claim"] for n in claims_of(site, job)}
    called = min(launch.time for launch in site.cloud.calls().launches if launch.token in claims)
    log = site.cluster.sh("cat /var/log/slurm/slurmctld.log")
    found = re.search(rf"\[(\S+)\] _slurm_rpc_submit_batch_job: JobId={job} ", log)
    assert found is not None
    return called - datetime.fromisoformat(found[1] + "+00:00").timestamp()


def _its_node_is_on_the_bill(site: Site, job: str) -> None:
    """A job that had a node of the site for itself: its seconds by Slurm's clock, at the site's price."""
    start, end = (datetime.fromisoformat(site.job(job)[key]) for key in ("StartTime", "EndTime"))
    ran = (end - start).total_seconds()

    def cost() -> dict[str, Any]:
        lines = site.api("/v1/bill", group="job")["site_lines"]
        return next((line for line in lines if line["key"] == job), {"node_s": 0.0})

    site.wait(lambda: cost()["node_s"] == pytest.approx(ran, abs=0.05), 30, "what it cost on its node")
    assert Decimal(cost()["cost"]["amount"]) == pytest.approx(Decimal(ran) / 100, abs=Decimal("0.0005"))
    bill = site.burstctl("bill", "--by", "pool").stdout
    assert "EUR on nodes of the site" in bill
    assert re.search(r"^old +\S+ EUR", bill, re.MULTILINE)

    submitted = datetime.fromisoformat(site.job(job)["SubmitTime"])
    site.wait(lambda: site.burstctl("compare", job, check=False).returncode == 0, 30, "its end on record")
    compared = site.api("/v1/compare", job=job)
    here, (group,) = compared["here"], compared["groups"]
    times = [here[name]["seconds"] for name in ("run", "completion")]
    # Slurm has whole seconds; burstd takes no end that is later than its question, and may have asked in that second.
    early_s = ran - times[0]
    assert -0.05 < early_s < 1.0
    assert times[1] == pytest.approx((end - submitted).total_seconds() - early_s, abs=0.05)
    used = float(cost()["cost"]["amount"]) / float(group["utilisation"])
    assert float(here["used"]["costs"][0]["amount"]) == pytest.approx(used, rel=0.001)
    assert here["marginal"]["basis"]["reason"] == "[site.cost.old] does not say what an hour of use adds"


def _the_bill_is_the_clouds(site: Site, jobs: set[str]) -> None:
    """It is what the cloud's meter says, and boot and the time until an end is known, each machine for itself.

    Every job that ran there is charged for work, also those of a second.
    """
    bill = site.api("/v1/bill", group="job")
    worked = {line["key"] for line in bill["lines"] for part in line["parts"] if part["kind"] == "work"}
    assert jobs <= worked, f"on no bill: {sorted(jobs - worked)}"
    assert {g: site.api("/v1/bill", group=g)["total"] for g in ("user", "account", "day")} == dict.fromkeys(
        ("user", "account", "day"), bill["total"]
    )
    beside = metered_bill(site)
    assert beside.metered == site.cloud.bill().total > 0
    _each_machine_is_on_both_bills(site, beside.machines)


def _each_machine_is_on_both_bills(site: Site, machines: int) -> None:
    """Prices are the same; times differ as burstd counts until the cloud confirms the end."""
    head = "ResourceId,BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,PricingQuantity,PricingUnit"
    rows = [
        f"{row.instance},{row.cost},EUR,Usage,{datetime.now(UTC):%FT%TZ},{row.seconds / 3600:.9f},Hours"
        for row in site.cloud.bill().rows
    ]
    site.cluster.sh("cat > /root/focus.csv <<'END'\n" + "\n".join((head, *rows)) + "\nEND")
    words = ("bill", "reconcile", "/root/focus.csv", "--month", f"{datetime.now(UTC):%Y-%m}", "--json")
    answer = json.loads(site.burstctl(*words, check=False).stdout)
    assert {one["kind"] for one in answer["differences"]} <= {"time"}, answer
    agreed = json.loads(site.burstctl(*words, "--tolerance", "100").stdout)["agreed"]
    assert agreed == machines
