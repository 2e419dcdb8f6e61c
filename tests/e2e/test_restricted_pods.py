"""Pods of the SCC ``restricted-v2``: no root, no capability, no mount, a uid that is not theirs to choose.

That uid is SlurmUser's, and all users' jobs run as it; whose a file is, is decided at home.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Shape
from tests.e2e.sites import QUICK, claims_of
from tests.lab.kubernetes.images import Layer, keeper_library
from tests.lab.kubernetes.site import SLURM_UID, STUDENTS, OpenShiftSite
from tests.lab.remains import remains

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.clouds]

PATIENCE_S = 90.0
POOL = Pool("restricted", ("r1", "r2"), ("burst",), Shape(2, 1000), (OfferRule("restricted", ("two",)),))
SCRIPT = """#!/bin/bash
id -u
cat input.txt data/more.txt
mkdir out
echo "$USER" >out/result.txt
echo changed >data/more.txt
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenShiftSite]:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    keeper = keeper_library(tmp_path_factory.mktemp("keeper"))
    up = OpenShiftSite(
        pools=[POOL],
        builds={"1": [Layer("keeper", files={"usr/lib/burstd/keepowner.so": keeper})]},
        openshift={"grace_s": 25, "settle_s": 5},
        store=STUDENTS,
        settings=QUICK,
        daemon={"cloud_poll_s": 2.0},
        workdir_partitions=("burst",),
    )
    with up:
        yield up
    left = remains(up.cluster.lab.network.name, up.cluster.state) + remains(up.plane.state.name, up.plane.state)
    assert not left, f"left behind: {left}"


@pytest.mark.thorough
def test_plain_scripts_of_two_users_have_their_directories(site: OpenShiftSite) -> None:
    """Nothing shows the site's trees, so each working directory is staged, without a line in the script."""
    jobs = {}
    for user in ("ada", "bob"):
        # Below a directory that the image lacks: burstd makes what leads to it, in a folder open to the pod's user.
        folder = f"/home/team/{user}"
        site.cluster.sh(f"mkdir -p {folder}/data; cd {folder}; echo of {user} >input.txt; echo more >data/more.txt")
        site.cluster.sh(f"chown -R {user}: {folder}; chmod 700 {folder}")
        Path(site.cluster.head.path(f"{folder}/job.sh")).write_text(SCRIPT, encoding="utf-8")
        words = f"cd {folder} && sbatch --parsable -p burst -c1 --mem=100 -t5 job.sh"
        jobs[user] = site.cluster.sh(words, user).strip()
    for user, job in jobs.items():
        site.wait_job(job, timeout_s=PATIENCE_S)
        home = f"cd /home/team/{user}; cat slurm-{job}.out out/result.txt data/more.txt"
        assert site.cluster.sh(home, user).split("\n") == [str(SLURM_UID), f"of {user}", "more", user, "changed", ""]
        owners = f"cd /home/team/{user}; stat -c %U out out/result.txt data/more.txt slurm-{job}.out | sort -u"
        assert site.cluster.sh(owners) == f"{user}\n"
    pods = {pod["metadata"]["name"]: pod for pod in site.ever("restricted")}
    # Two jobs fit into one pod.
    used = {claim["instance"] for job in jobs.values() for claim in claims_of(site, job)}
    assert used
    assert used <= pods.keys()
    for pod in pods.values():
        assert pod["metadata"]["namespace"] == STUDENTS
        assert pod["metadata"]["annotations"]["openshift.io/scc"] == "restricted-v2"
    site.wait_empty(PATIENCE_S)
