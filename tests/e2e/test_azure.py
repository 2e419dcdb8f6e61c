"""From sbatch to a job on Azure and back to an empty resource group: the real provider, a box for each machine.

The cloud plays Azure, holds what is asked of it against Microsoft's own models where there are any, and enforces the
roles that burstd ships.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.sites import COPY, QUICK, claims_of, restarts, try_provider
from tests.lab.remains import remains

if TYPE_CHECKING:
    from tests.lab.azure.site import AzureSite

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.thorough]


@pytest.fixture(scope="module")
def site() -> Iterator[AzureSite]:
    from tests.lab.azure.site import AzureSite

    with AzureSite(settings=QUICK, staging="", extra_conf="SlurmdTimeout=6") as up:
        yield up
    left = remains(up.cluster.lab.network.name, up.cluster.state)
    assert not left, f"left behind: {left}"


def test_the_check_finds_nothing_wrong(site: AzureSite) -> None:
    site.burstctl("provider", "check", "azure")


def test_from_sbatch_to_an_empty_group(site: AzureSite) -> None:
    """Data in, a GPU, data home; the machine boots with its request's custom data, and takes all with it at its end."""
    site.cluster.sh("mkdir -p data; echo hello > data/a.txt", "ada")
    job = site.submit_script(COPY, "-p burst --gres=gpu:t4:1 -c1 --mem=100 -t5")
    site.wait_job(job)
    assert site.cluster.sh("cat results/copy.txt results/gpus.txt", "ada") == "hello\n0\n"
    (claim,) = claims_of(site, job)
    assert "/Standard_NC4as_T4_v3/spot" in claim["offer"]
    site.wait_empty()
    assert not any(site.cloud.things.values()), "a disk, a network interface or an address is left"


def test_a_late_refusal_moves_on_and_fails_no_job(site: AzureSite) -> None:
    """Azure takes the machine, and finds seconds later that there is none: the next zone has one."""
    site.cloud.late.append(("ZonalAllocationFailed", "Allocation failed. We do not have sufficient capacity."))
    job = site.submit("-p burst -C cloud -c1 --mem=100 -t5", "true")
    site.wait_job(job)
    refused, given = claims_of(site, job)
    assert (refused["error"], given["error"]) == ("capacity", "")
    assert refused["offer"] != given["offer"]
    assert restarts(site, [job]) == {job: 0}


def test_a_lost_answer_and_a_death_make_one_machine(site: AzureSite) -> None:
    site.wait_empty()
    site.cloud.lost = 1
    before = site.cloud.calls["PUT virtualMachines"]
    job = site.submit("-p burst -C cloud -c1 --mem=100 -t5", "true")
    site.wait(lambda: site.cloud.calls["PUT virtualMachines"] > before, 20, "a machine is asked for")
    site.kill_burstd("KILL")
    assert len(site.instances()) == 1, "it was made, and nobody heard of it"
    site.start_burstd()
    site.wait_job(job)
    (claim,) = claims_of(site, job)
    assert claim["instance"] == site.instances()[0]


def test_a_spot_machine_is_drained_when_its_own_metadata_says_that_it_ends(site: AzureSite) -> None:
    job = site.submit("-p burst --gres=gpu:t4:1 -c1 --mem=100 -t5", "sleep $((SLURM_RESTART_COUNT ? 0 : 100))")
    site.wait_job(job, ["RUNNING"])
    (claim,) = claims_of(site, job)
    slot = site.job(job)["NodeList"]
    site.cloud.evict(claim["instance"], notice_s=30.0)
    site.wait(lambda: "interruption" in site.cluster.sh(f"sinfo -hN -n {slot} -o %E"), 20, "the node's reason")
    site.wait_job(job, timeout_s=120)
    assert site.job(job)["Restarts"] == "1"


def test_a_trial_launches_enters_and_ends_one_machine(site: AzureSite) -> None:
    site.wait_empty()
    try_provider(site, "azure", "cpu")
    assert site.instances() == []


def test_in_the_end_nothing_is_left_and_nothing_was_refused(site: AzureSite) -> None:
    site.wait_empty()
    site.wait(lambda: not any(site.cloud.things.values()), 30, "no disk, network interface or address")
    assert site.cloud.violations == []
    assert "AuthorizationFailed" not in site.daemon_log(), "the roles that burstd ships are enough"
