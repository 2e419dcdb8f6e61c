"""From sbatch to a job on Compute Engine and back to an empty project: the real provider, the lab's API, boxes.

Beside the site's machines the project holds a neighbour's, which nobody may touch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.e2e.sites import COPY, QUICK, claims_of, events, restarts, try_provider
from tests.lab.google.cloud import REGION, SUBNETWORK, ZONES
from tests.lab.google.server import Fault
from tests.lab.google.site import GoogleSite
from tests.lab.google.world import INSERT, PROJECT
from tests.lab.remains import remains

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.thorough]

TYPES = {"main": ("g2-standard-8",), "short": ("n2-standard-2", "n1-standard-4"), "spot": ("n2-standard-8",)}
"""By pool; the first is the cheapest."""


def _pool(name: str) -> Pool:
    gres = (Gres("gpu", "l4", 1),) if name == "main" else ()
    markets = ("spot",) if name == "spot" else ("on-demand",)
    rule = OfferRule("google", TYPES[name], markets=markets)
    return Pool(name, (f"{name}1", f"{name}2"), ("burst",), Shape(2, 1000, gres, frozenset({name})), (rule,))


@pytest.fixture(scope="module")
def site() -> Iterator[GoogleSite]:
    up = GoogleSite(
        pools=[*map(_pool, TYPES)], machine_types=[name for names in TYPES.values() for name in names],
        settings=QUICK, staging="", extra_conf="SlurmdTimeout=6",
    )  # fmt: skip
    with up:
        yield up
        assert up.server.violations == []
    left = remains(up.cluster.lab.network.name, up.cluster.state)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def theirs(site: GoogleSite) -> str:
    """The number of a machine of another burstd's, which is there before."""
    at = f"projects/{PROJECT}/zones/{ZONES[0]}"
    labels = {"burstd-cluster": "lab2", "burstd-claim": "theirs"}
    made = {"sourceImage": f"projects/{PROJECT}/global/images/slurm-node-1", "labels": labels}
    body = {
        "name": "burstd-theirs", "machineType": f"{at}/machineTypes/n2-standard-2", "labels": labels,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": made}], "description": "{}",
        "networkInterfaces": [{"subnetwork": f"projects/{PROJECT}/regions/{REGION}/subnetworks/{SUBNETWORK}"}],
        "scheduling": {}, "metadata": {"items": [{"key": "user-data", "value": ""}]},
    }  # fmt: skip
    return site.project.launch(ZONES[0], body, "").target_id


def submit(site: GoogleSite, name: str, script: str = "true") -> str:
    return site.submit(f"-p burst -C {name} -c1 --mem=100 -t5", script)


def test_from_sbatch_to_an_empty_project(site: GoogleSite) -> None:
    """Data in, a GPU, data home; and an answer that is lost on the way makes no second machine."""
    site.server.faults.append(Fault(INSERT, lost=True))
    site.cluster.sh("mkdir -p data; echo hello > data/a.txt", "ada")
    job = site.submit_script(COPY, "-p burst -C main --gres=gpu:l4:1 -c1 --mem=100 -t5")
    site.wait(lambda: len(site.of_pool("main")) == 1, 60, "the machine is made")
    (machine,) = site.of_pool("main")
    site.wait_job(job)
    assert site.cluster.sh("cat results/copy.txt results/gpus.txt", "ada") == "hello\n0\n"
    (claim,) = claims_of(site, job)
    assert claim["instance"] == f"{machine.zone}/{machine.id}"
    assert machine.name == f"burstd-{claim['claim']}"
    site.wait(lambda: not site.of_pool("main"), 40, "it is ended")


def test_the_next_offer_where_google_refuses_late(site: GoogleSite) -> None:
    site.project.faults.late.append("ZONE_RESOURCE_POOL_EXHAUSTED")
    job = submit(site, "short")
    site.wait_job(job)
    assert [one for one in claims_of(site, job) if one["error"] == "capacity"]
    assert [e for e in events(site, "breaker:") if "/n2-standard-2/" in e["subject"]], "it is left alone for a while"
    assert restarts(site, [job]) == {job: 0}


def test_a_spot_vm_is_drained_when_its_own_metadata_says_that_it_ends(site: GoogleSite) -> None:
    job = submit(site, "spot", "sleep $((SLURM_RESTART_COUNT ? 0 : 100))")
    site.wait_job(job, ["RUNNING"])
    (machine,) = site.of_pool("spot")
    slot = site.job(job)["NodeList"]
    site.preempt(machine, notice_s=30)
    site.wait(lambda: "interruption" in site.cluster.sh(f"sinfo -hN -n {slot} -o %E"), 20, "the node's reason")
    site.wait_job(job)
    assert restarts(site, [job]) == {job: 1}


def test_a_trial_launches_enters_and_ends_one_machine(site: GoogleSite) -> None:
    try_provider(site, "google", "short")
    assert not [machine for machine in site.of_pool("short") if machine.name.startswith("burstd-try")]


def test_in_the_end_only_the_neighbour_s_machine_is_left(site: GoogleSite, theirs: str) -> None:
    site.wait_empty()
    site.wait(lambda: len(site.project.disks) == 1, 60, "nothing of ours is left")
    assert list(site.project.instances) == [theirs]
    assert "forbidden" not in site.daemon_log(), "the role that burstd ships is enough"
