"""Nodes that a budget pays for, on the real Slurm: their own jobs start on them, alone or together, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.sites import claims_of, comments_of, site_up, wait_all_gone
from tests.lab.site import CPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

SETTINGS = """
[policies]
chain = ["idle", "budget"]
[policies.idle]
keep_alive_s = 20
[policies.budget]
limit = 50
[policies.budget.projects.belle]
limit = 0
"""
SMALL = "-p burst -A atlas -c1 --mem=100 -t20"


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with site_up(pools=[CPU], settings=SETTINGS, comments=True) as up:
        yield up


@pytest.fixture
def site(whole: Site) -> Site:
    """The site without jobs and machines."""
    whole.cluster.sh("scancel -u ada; scancel -u bob")
    wait_all_gone(whole)
    return whole


def at_once(site: Site, *words: str, run: str) -> list[str]:
    """Jobs that one decision sees together for the first time."""
    site.burstctl("hold", "they are to come together")
    jobs = [site.submit(w, run) for w in words]
    site.wait(lambda: all(comments_of(site, job) for job in jobs), 15, "burstd has seen both")
    site.burstctl("unhold")
    return jobs


def test_jobs_that_share_a_node_are_bound_to_it_and_nobody_rides_along(site: Site) -> None:
    first, second = at_once(site, SMALL, SMALL, run="sleep 15")
    for job in (first, second):
        site.wait_job(job, ["RUNNING"])
    assert site.job(first)["NodeList"] == site.job(second)["NodeList"]
    assert len({claim["claim"] for job in (first, second) for claim in claims_of(site, job)}) == 1
    rider = site.submit("-p burst -A belle -c1 --mem=100 -t600", "sleep 600", user="bob")
    site.cluster.sh(f"scancel {first}")
    site.wait_job(second)
    site.wait_empty(60)
    assert site.job(rider)["JobState"] == "PENDING", "it had half a node, and then a whole one, before its eyes"
    site.cluster.sh(f"scancel {rider}")


@pytest.mark.parametrize(
    ("words", "tasks"),
    [(f"{SMALL} -a 1-5", 5), (f"{SMALL} -a 1-3%1", 3), ("-p burst -A atlas -N2 -c2 --mem=100 -t20", 1),
     (f"{SMALL} : {SMALL}", 2)],
    ids=["array", "array one at a time", "gang", "het"],
)  # fmt: skip
def test_jobs_of_all_kinds_run(site: Site, words: str, tasks: int) -> None:
    job = site.submit(words, "sleep 2")
    states = f"squeue -h -r -t all -j {job} -o %T"
    site.wait(lambda: site.cluster.sh(states).split() == ["COMPLETED"] * tasks, 120, "every task is done")
    wait_all_gone(site)
    opened = [claim for claim in claims_of(site, job) if claim["opened"]]
    assert opened
    assert all(0 < float(c["cost"]["amount"]) < float(c["reserved"]["amount"]) for c in opened)
