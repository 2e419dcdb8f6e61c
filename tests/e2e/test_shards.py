"""Shards of GPUs from sbatch to the cloud: as many machines as the jobs need, and each GPU given away as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.e2e.sites import QUICK, claims_of, comments_of, site_up, wait_all_gone
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SHARED = Pool(
    "shared",
    tuple(f"shared{i}" for i in range(1, 9)),
    ("burst",),
    Shape(16, 1000, (Gres("gpu", "v100", 2), Gres("shard", "", 8))),
)
TYPES = """
[[cloud.types]]
name = "g4.two"
cpus = 16
memory_mib = 2048
gpu_type = "v100"
gpus = 2
price = "4.00"

[cloud.capacity.north]
"g4.two" = 8
"""
SMALL = "-p burst -c1 --mem=10 -t20"


@pytest.fixture
def site() -> Iterator[Site]:
    # The boxes have the CPUs of this machine, however many Slurm is told.
    settings = QUICK + '[node]\nskip_checks = ["cpus"]\n'
    with site_up("trixie", pools=[SHARED], types=TYPES, settings=settings, comments=True) as up:
        yield up


def test_shards_wake_the_machines_that_they_need(site: Site) -> None:
    site.burstctl("hold", "they are to come together")
    nine = [site.submit(f"{SMALL} --gres=shard:3", "sleep 600") for _ in range(9)]
    never = site.submit(f"{SMALL} --gres=shard:5")
    site.wait(lambda: all(comments_of(site, job) for job in [*nine, never]), 15, "burstd has seen them")
    site.burstctl("unhold")
    assert "cannot start: no node in pool shared has 5 shards of one GPU" in comments_of(site, never)[0]
    changes = site.burstctl_json("explain", never)["changes"]
    assert {change["after"] for change in changes} >= {"--gres=gpu:2"}
    for job in nine:
        site.wait_job(job, ["RUNNING"])
    jobs_of_node = Counter(site.job(job)["NodeList"] for job in nine)
    assert sorted(jobs_of_node.values()) == [1, 2, 2, 2, 2], "one job a GPU"
    assert len({claim["claim"] for job in nine for claim in claims_of(site, job)}) == 5
    (alone,) = (node for node, jobs in jobs_of_node.items() if jobs == 1)

    def free_shards() -> list[str]:
        shown: list[str] = site.burstctl_json("node", "show", alone)["node"]["slurm"]["free_shards"]
        return shown

    site.wait(lambda: free_shards() == ["1/4", "4/4"], 15, "burstd has read what is left of each GPU")

    # Half a GPU each for two users on one GPU; whoever wants two whole ones gets another machine.
    halves = [site.submit(f"{SMALL} --gres=shard:2", "sleep 600", user) for user in ("ada", "bob")]
    for job in halves:
        site.wait_job(job, ["RUNNING"])
        assert site.job(job)["NodeList"] == alone
    site.wait(lambda: free_shards() == ["1/4", "0/4"], 15, "both halves are in use")
    whole = site.submit(f"{SMALL} --gres=gpu:2", "sleep 600")
    site.wait_job(whole, ["RUNNING"])
    assert site.job(whole)["NodeList"] not in jobs_of_node
    site.wait(lambda: "1.00 EUR/h for its shards" in comments_of(site, halves[0])[0], 15, "the price of two shards")
    site.cluster.sh("scancel -u ada; scancel -u bob")
    assert len(wait_all_gone(site).by_claim) == 6
