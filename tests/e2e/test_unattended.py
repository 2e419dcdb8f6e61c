"""burstd is dead for good: a machine finishes its job, and then powers itself off."""

from __future__ import annotations

import pytest

from burstd.domain.slurm.node import LIFE_SIGN
from providers.sandbox.boxes.box import find_boxes
from tests.e2e.sites import QUICK, record, restarts, site_up, wait_all_gone
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.thorough]

SILENT_S = 24.0
SETTINGS = QUICK.replace("keep_alive_s = 2", "keep_alive_s = 600") + f"[node]\nunattended_h = {SILENT_S / 3600:.6f}\n"


def sign(site: Site, node: str) -> str:
    """What the machine hears of burstd."""
    shown = site.cluster.sh(f"scontrol -o show node {node}")
    return next((word for word in shown.split() if word.startswith(f"Extra={LIFE_SIGN}")), "")


def is_on(site: Site, machine: str) -> bool:
    return any(box.alive for box in find_boxes(site.cluster.lab.boxes_directory) if box.name == machine)


def test_a_machine_that_hears_nothing_ends_after_its_job_and_not_before() -> None:
    with site_up(settings=SETTINGS) as site:
        job = site.submit("-p burst -c1 --mem=100 -t5", "true")
        site.wait_job(job)
        node = site.job(job)["NodeList"]
        signs = {sign(site, node)}

        def has_outlived() -> bool:
            signs.add(sign(site, node))
            return len(signs) > 8

        site.wait(has_outlived, 90, "signs for twice the time that silence may last")
        assert len(site.instances()) == 1
        site.kill_burstd("KILL")
        last = sign(site, node)
        job = site.submit("-p burst -c1 --mem=100 -t5", f"sleep {1.5 * SILENT_S:.0f}")
        site.wait_job(job)
        assert restarts(site, [job]) == {job: 0}
        assert sign(site, node) == last
        (machine,) = site.instances()
        site.wait(lambda: not is_on(site, machine), 60, "the machine is off")
        assert "burstd: silent for 0 h, powers itself off" in site.cluster.sh(f"sinfo -h -n {node} -o %E")
        site.start_burstd()
        account = wait_all_gone(site)
        kept = record(site)
        assert {claim.state.value for claim in kept.claims.values()} == {"gone"}
        assert account.by_claim.keys() == kept.claims.keys()
