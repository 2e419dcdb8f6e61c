"""Jobs that share a licence boot no more machines than can work at a time."""

from __future__ import annotations

import pytest

from tests.e2e.sites import QUICK, cloud_inventory, restarts, site_up, wait_all_gone, wait_done

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.thorough]

JOBS = 40


def test_forty_jobs_that_share_one_licence_boot_one_machine() -> None:
    """Each of them would have a node for itself. The array's tasks and single jobs wait for the same licence."""
    with site_up(settings=QUICK.replace("keep_alive_s = 2", "keep_alive_s = 30")) as site:
        words = "-p burst -c2 --exclusive --mem=100 -t5 -L solver:1"
        array = site.submit(f"{words} --array=1-{JOBS - 2}", "true")
        single = [site.submit(words, "sleep 1") for _ in range(2)]
        wait_done(site, [array, *single], 180)
        assert set(restarts(site, single).values()) == {0}
        assert len(cloud_inventory(site).by_claim) == 1
        wait_all_gone(site, 90)
