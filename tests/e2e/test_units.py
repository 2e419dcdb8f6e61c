"""burstd as slurm under its own units and a real systemd: a job with data, a refused reload, a kill, and the limits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.sites import COPY, QUICK, wait_all_gone, wait_done
from tests.lab.base_site import CONFIG
from tests.lab.remains import remains
from tests.lab.site import CPU
from tests.lab.units_site import UnitsSite
from tests.systemd.pid1 import cgroup2

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(cgroup2() is None, reason="systemd needs cgroup v2, and this machine has none mounted"),
]


@pytest.fixture(scope="module")
def site() -> Iterator[UnitsSite]:
    made = UnitsSite(pools=[CPU], settings=QUICK, cloud="boot_seconds = 0.3", staging="")
    with made as up:
        yield up
    left = remains(made.cluster.lab.network.name, made.cluster.state)
    assert not left, f"left behind: {left}"


def test_a_job_with_data_runs_and_its_output_comes_home(site: UnitsSite) -> None:
    site.cluster.sh("mkdir -p data; echo hello > data/a.txt", "ada")
    job = site.submit_script(COPY, "-p burst -c1 --mem=100 -t5")
    site.wait_job(job, timeout_s=120)
    site.wait(lambda: site.api(f"/v1/stage/{job}")["job"]["state"] == "cleared", 60, "its output home")
    found = site.cluster.sh("stat -c '%U %a' results/copy.txt; cat results/copy.txt", "ada")
    assert found.split() == ["ada", "644", "hello"]
    wait_all_gone(site)


OBJECTS = """
from pathlib import Path
from burstd.transfer.privsep.client import account
from burstd.transfer.privsep.object_workers import object_worker_for
for kind in ("s3", "swift"):
    with object_worker_for(account("ada"), kind, socket_path=Path("/run/burstd/object-worker.sock"), timeout_s=60.0):
        print(kind)
"""


def test_object_workers_become_users_for_slurm_alone(site: UnitsSite) -> None:
    asking = f"/opt/burstd/bin/python3 -c '{OBJECTS}'"
    assert site.cluster.sh(f"runuser -u slurm -- {asking}").split() == ["s3", "swift"]
    assert "Permission denied" in site.cluster.sh(asking, "ada", check=False)


def test_the_sandboxes_are_in_force(site: UnitsSite) -> None:
    pid = site.main_pid()
    status = dict(line.split(":\t", 1) for line in site.systemd.run(["cat", f"/proc/{pid}/status"]).stdout.splitlines())
    slurm = site.cluster.sh("id -u slurm").strip()
    assert status["Uid"].split() == [slurm] * 4
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_reload_that_is_refused_fails_and_says_where(site: UnitsSite) -> None:
    pid, good = site.main_pid(), site.burstd_toml()
    site.write(CONFIG, good.replace("tick_s = 2.0", "tick_s = -2.0"))
    refused = site.systemd.run(["systemctl", "reload", "burstd.service"], check=False)
    assert refused.returncode != 0
    assert "line 3: daemon.tick_s: must be greater than 0" in site.daemon_log()
    site.write(CONFIG, good + "[policies.idle.pools.cpu]\nkeep_alive_s = 3\n")
    site.systemd.systemctl("reload", "burstd.service")
    assert (site.main_pid(), site.api_answers()) == (pid, True)


def test_it_comes_back_by_itself_and_loses_nothing(site: UnitsSite) -> None:
    job = site.submit("-p burst -c1 --mem=100 -t5", "sleep 8")
    site.wait(lambda: site.job(job).get("JobState") == "RUNNING", 60, "the job running")
    pid = site.main_pid()
    site.signal_burstd("KILL")
    assert site.main_pid(other_than=pid) != pid
    wait_done(site, [job])
    account = wait_all_gone(site)
    assert all(len(made) == 1 for made in account.by_claim.values())
