"""A machine as clouds have them: systemd starts cloud-init, sshd, munge and slurmd from the packages' own units."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.node.errors import SlurmdNotStarted
from burstd.node.reference import Reference
from burstd.node.ssh.host_keys import parse_console_host_keys
from burstd.node.user_data import UserDataValues, render_user_data
from burstd.node.validation import Unattended
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from providers.sandbox.boxes.boot.boot_script import cloud_init_files
from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.box import BoxSpec
from tests.lab.patience import patience_s
from tests.lab.releases import releases
from tests.lab.slurm_files import VERSIONS
from tests.node.conftest import Machines
from tests.systemd.pid1 import SystemdBox, cgroup2, systemd_box

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(cgroup2() is None, reason="systemd needs cgroup v2, and this machine has none mounted"),
    pytest.mark.parametrize("cluster", releases("trixie", "forky"), indirect=True),
    pytest.mark.usefixtures("head_network"),
]
ADDRESS = "10.77.1.1"


@pytest.fixture
def machine(machines: Machines) -> Iterator[SystemdBox]:
    """One that has booted from our user data."""
    values = UserDataValues("lab", "gpu", "sandbox", machines.public, power_off_after_s=7200)
    files = [
        *cloud_init_files("cl1", render_user_data(values), {}),
        BoxFile("/etc/hosts", "127.0.0.1 localhost\n10.77.0.2 head\n"),
        # As in the lab's other boxes, which have no cgroups of their own.
        BoxFile("/etc/slurm/cgroup.conf", "CgroupPlugin=disabled\n"),
    ]
    layers = [machines.cluster.rootfs.path]
    with systemd_box(machines.cluster.lab, BoxSpec("cl1", ADDRESS, layers, gpus=4, files=files, ssh=False)) as made:
        yield made


def test_units_start_what_is_started_by_hand_elsewhere(machines: Machines, machine: SystemdBox, tmp_path: Path) -> None:
    cluster = machines.cluster
    pool = cluster.pools[0]
    offer = Offer("sandbox", "here", "a", "gpu4", spot=False, shape=pool.shape, price=Decimal(1))
    claim = Claim(
        "claim-1", "lab", "gpu", "cl1", offer, Cause.DEMAND, ClaimState.BOOTING, 0.0, 0.0, address=ADDRESS
    )  # fmt: skip
    site = ValidatorConfig(
        users=("root",),  # whom this machine has, which stands for the head, and the boxes
        ssh_key=machines.key,
        host_keys_dir=tmp_path / "pins",
        munge_key=cluster.state / "munge.key",
        conf_server="head",
        skip_checks=frozenset({"cpus", "memory"}),
    )

    def prover(site: ValidatorConfig = site) -> SlurmNodeValidator:
        version = VERSIONS[cluster.release][:2]
        return SlurmNodeValidator(site, slurm_version=lambda: version, wall=time.time, credential=machines.credential)

    # slurmd, which the packages enable, must not hold up the boot until it has a configuration.
    assert machine.shows("slurmd", "ActiveState") == "inactive"
    assert parse_console_host_keys(machine.box.console())
    for _ in range(2):
        prover().validate(claim, pool, machine.box.console, lambda: None)
    assert machine.shows("munge", "ActiveState") == "active"
    assert machine.systemctl("is-enabled", "munge") == "enabled"

    def limits() -> Mapping[str, int]:
        said = machine.run(["sh", "-c", prover().reference_script()]).stdout
        return Reference.from_answer("", 0.0, said).facts.limits

    # What the unit promises before slurmd runs is what slurmd has, and so what jobs of the reference have.
    promised = limits()
    assert promised.keys() == {"memlock", "nofile", "stack", "nproc"}

    cluster.sh(f"scontrol update nodename=cl1 state=power_up && scontrol update nodename=cl1 nodeaddr={ADDRESS}")
    with pytest.raises(SlurmdNotStarted, match=r"slurmd does not start: .*no-such-option"):
        prover(replace(site, slurmd_options=("--no-such-option",))).start_slurmd(claim, pool)
    prover().start_slurmd(claim, pool)
    assert machine.shows("slurmd", "ActiveState") == "active"
    assert limits() == promised
    pid = machine.shows("slurmd", "MainPID")
    prover().start_slurmd(claim, pool)
    assert machine.shows("slurmd", "MainPID") == pid
    cluster.wait(lambda: cluster.sh("sinfo -hn cl1 -o %t").split() == ["idle"], 30, "cl1 idle")

    # It watches for its own end, in one unit however often it is told to.
    for _ in range(2):
        prover().start_slurmd(claim, pool, "cat /run/notice 2>/dev/null")
    assert machine.shows("burstd-watch", "ActiveState") == "active"
    machine.run(["sh", "-c", "echo rebalance >/run/notice"])
    cluster.wait(lambda: "rebalance hint" in cluster.sh("sinfo -hn cl1 -o %E"), 20, "cl1 drained by itself")
    machine.run(["sh", "-c", "echo interruption 1795262520 >/run/notice"])
    ends = "burstd: interruption, ends 2026-11-21T12:02:00Z"
    cluster.wait(lambda: cluster.sh("sinfo -hn cl1 -o %E").strip() == ends, 20, "cl1 drained for good")
    # A Slurm that has lost the drain hears of it again.
    cluster.sh("scontrol update nodename=cl1 state=resume")
    cluster.wait(lambda: cluster.sh("sinfo -hn cl1 -o %T").split() == ["drained"], 60, "cl1 drained anew")
    machine.systemctl("stop", "burstd-watch")
    cluster.sh("scontrol update nodename=cl1 state=resume")

    def words() -> list[str]:
        pid = machine.shows("slurmd", "MainPID")
        return machine.run(["cat", f"/proc/{pid}/cmdline"]).stdout.split("\0")

    # It says that the node has booted once; a job outlives that slurmd is started again.
    assert "-b" in words()
    job = cluster.sh("cd /tmp; chmod 1777 /tmp; sbatch --parsable -p burst -w cl1 --wrap 'sleep 8'", "ada").strip()
    cluster.wait(lambda: cluster.sh(f"squeue -hj {job} -o %T").strip() == "RUNNING", 30, "the job running")
    machine.systemctl("restart", "slurmd")
    assert "-b" not in words()
    assert words()[words().index("-N") + 1] == "cl1"
    cluster.wait(lambda: "COMPLETED" in cluster.sh(f"scontrol show job {job}"), 60, "the job done")
    _is_left_alone(machine, lambda: prover(replace(site, unattended=Unattended(12))).start_slurmd(claim, pool))
    assert "burstd: silent for 0 h, powers itself off" in cluster.sh("sinfo -hn cl1 -o %E")


def test_a_machine_that_never_becomes_a_node_powers_itself_off(machine: SystemdBox) -> None:
    """The command of its boot waits; what is left of its time passes at once."""
    assert machine.runs
    machine.run(["sh", "-c", "kill $(pidof sleep)"])
    _wait_until_off(machine)


def _is_left_alone(machine: SystemdBox, start_slurmd: Callable[[], object]) -> None:
    """Nobody gives it a sign of life: it powers itself off."""
    start_slurmd()
    _wait_until_off(machine)


def _wait_until_off(machine: SystemdBox) -> None:
    until = time.monotonic() + patience_s(60)
    while machine.runs:
        assert time.monotonic() < until
        time.sleep(0.5)
