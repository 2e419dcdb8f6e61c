"""Shards of GPUs from sbatch to the cloud: as many machines as the jobs need, and each GPU given away as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import Project, gpu_number
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
PROJECTS = {
    name: Project(name, f"team-{name}", quota, partitions=("onprem",))
    for name, quota in {"a": Fraction(1, 2), "b": Fraction(1, 2), "c": Fraction(0)}.items()
}
SMALL = "-p burst -c1 --mem=10 -t20"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One GPU of four shards on premises, whose halves are two projects' own; and a pool of shards in the cloud."""
    # The boxes have the CPUs of this machine, however many Slurm is told.
    settings = (
        QUICK
        + '[node]\nskip_checks = ["cpus"]\n'
        + "".join(
            f'[projects.{p.name}]\naccount = "{p.account}"\nquota = {gpu_number(p.quota)}\npartitions = ["onprem"]\n'
            for p in PROJECTS.values()
        )
    )
    with site_up(
        "trixie", pools=[SHARED], types=TYPES, settings=settings, comments=True, projects=PROJECTS.values(),
        onprem=1, onprem_gpus=1, onprem_shards=4, extra_conf="AccountingStorageTRES=gres/gpu,gres/shard",
    ) as up:  # fmt: skip
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


def test_half_a_gpu_is_always_a_projects_own(site: Site) -> None:
    """Two projects have half of one GPU each; a third runs on what they leave, until they ask."""

    def submit(project: str, shards: int, user: str = "ada") -> str:
        return site.submit(f"-A team-{project} --mem=1 --gres=shard:{shards} -o /dev/null", "sleep 600", user)

    def running() -> Counter[str]:
        return Counter(site.cluster.sh("squeue -h -t R -o %P").split())

    def shares() -> dict[str, tuple[float, float]]:
        """By project, the GPUs that it has and is to have."""
        found = site.burstctl_json("project", "list")["projects"]
        return {p["name"]: (p["share"]["running"], p["share"]["share"]) for p in found}

    assert site.burstctl_json("status")["alarms"] == []
    over = [submit("c", 1) for _ in range(4)]
    site.wait(lambda: running() == {"o-c": 4}, 60, "the whole GPU in use beyond quotas")
    half = submit("a", 2)
    site.wait(lambda: running() == {"q-a": 1, "o-c": 2}, 60, "the half of a")
    site.wait(lambda: shares() == {"a": (0.5, 0.5), "b": (0, 0), "c": (0.5, 0.5)}, 30, "shares of half a GPU")
    assert "0.5 of 0.5 GPUs in quota" in site.burstctl("project", "show", "a").stdout
    said = "project c: 0 of 0 GPUs in quota, 0.5 over; reclaimed when b asks"
    site.wait(lambda: any(said in comments_of(site, job)[0] for job in over), 30, "a comment")

    site.kill_burstd("KILL")
    submit("b", 2, "bob")
    site.wait(lambda: running() == {"q-a": 1, "q-b": 1}, 60, "the half of b, while burstd is dead")
    site.start_burstd()

    site.cluster.sh(f"scancel {half}")
    site.wait(lambda: running() == {"q-b": 1, "o-c": 2}, 60, "the shards that a leaves, in use again")
    site.cluster.sh("scancel -u ada; scancel -u bob")
