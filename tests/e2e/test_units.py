"""burstd as slurm under its own units and a real systemd: a job with data, a refused reload, a kill, and the limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from burstd.domain.project import Project
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import COPY, QUICK, wait_all_gone, wait_done
from tests.lab import image_registry
from tests.lab.base_site import CONFIG
from tests.lab.containers import CONVERT, IMAGE_ROOT, REGISTRY, apptainer, start_registry
from tests.lab.remains import remains
from tests.lab.site import CPU
from tests.lab.units_site import UnitsSite
from tests.systemd.pid1 import cgroup2

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(cgroup2() is None, reason="systemd needs cgroup v2, and this machine has none mounted"),
]


WAITS = Project("a", "team-a", Fraction(2), partitions=("onprem",), reclaim_after_s=600)
PROJECT = """
[projects.a]
account = "team-a"
quota = 2
partitions = ["onprem"]
reclaim_after_s = 600
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def no_apptainer() -> str:
    """Why there is none; empty: there is."""
    try:
        apptainer(ensure_rootfs("trixie"))
    except SandboxError as error:
        return f"Debian unstable has no Apptainer that runs on trixie now: {error}"
    return ""


@pytest.fixture(scope="module")
def site(shared: Path, no_apptainer: str) -> Iterator[UnitsSite]:
    made = UnitsSite(
        pools=[CPU], settings=QUICK + PROJECT, cloud="boot_seconds = 0.3", staging="", shared=shared,
        containers=not no_apptainer, projects=[WAITS], onprem_gpus=2,
    )  # fmt: skip
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


def test_an_image_is_converted_within_the_limits_of_its_unit(site: UnitsSite, shared: Path, no_apptainer: str) -> None:
    if no_apptainer:
        pytest.skip(no_apptainer)
    site.cluster.sh(IMAGE_ROOT, "ada")
    registry = start_registry(site.cluster.head, shared / "home")
    image_registry.add_image(registry, "lab/tools", shared / "home" / "ada" / "root")
    sockets = [f"/run/burstd/{kind}-worker.sock" for kind in ("user", "image")]
    asked = json.dumps([f"docker://{REGISTRY}/lab/tools:many", {}, *sockets])
    words = ["/opt/burstd/bin/python3", "-c", CONVERT, asked]
    assert site.cluster.head.run(words, user="slurm").stdout.endswith(" bytes\n"), site.daemon_log()[-3000:]
    assert "Permission denied" in site.cluster.head.run(words, user="ada").stdout
    site.wait(lambda: not site.cluster.sh("pgrep -u burstd-image", check=False), 20, "its worker has ended")


MOUNTS = """
import sys
from decimal import Decimal
from pathlib import Path
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.mounts import MountedTree
from burstd.domain.slurm.shape import Shape
from burstd.mounts.streams import MountStreams
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.transfer.privsep.client import account
folder = Path("/var/lib/burstd/mounts-of-a-test")
folder.mkdir(exist_ok=True)
config = ValidatorConfig(folder / "key", folder / "host_keys", folder / "munge.key", "")
validator = SlurmNodeValidator(config, slurm_version=lambda: (25, 5), wall=lambda: 0.0)
streams = MountStreams(
    folder=folder / "streams", config=lambda: config, connect=validator.connect, line_timeout_s=lambda: 60.0,
    socket_path=Path("/run/burstd/mount-worker.sock"),
)
offer = Offer("sandbox", "lab", "a", "small", False, Shape(4, 4000), Decimal(1))
claim = Claim(
    "c-1", "lab", "cpu", "op1", offer, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0, address=sys.argv[2]
)
ada = account("ada")
if sys.argv[1] == "key":
    HostKeyFiles(folder / "host_keys").save_keys("c-1", HostKeys(HostKeyPolicy.CONSOLE, frozenset([sys.argv[3]])))
    print(ensure_ssh_key(folder / "key"))
elif sys.argv[1] == "start":
    streams.start(claim, ada, [MountedTree("/srv/closed/project", False)])
elif sys.argv[1] == "alive":
    print([uid for (_, uid), stream in streams.streams().items() if not stream.ended])
else:
    streams.stop(claim, "c-1", ada.uid)
"""


def test_a_stream_lasts_without_who_started_it_and_is_narrow(site: UnitsSite) -> None:
    node, head = site.cluster.lab.box("op1"), site.cluster.head
    node.run(["sh", "-c", "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key && mkdir -p /run/sshd"])
    node.run(["/usr/sbin/sshd"])
    key = " ".join(node.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])

    def mounts(*words: str) -> str:
        acting = ["runuser", "-u", "slurm", "--", "/opt/burstd/bin/python3", "-c", MOUNTS, *words]
        done = head.run(acting, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    node.run(["sh", "-c", "mkdir -p /root/.ssh; cat >> /root/.ssh/authorized_keys"], input=mounts("key", "", key))
    # A root that may not enter a closed home, as on NFS: the unit has no capability for that.
    site.cluster.sh("install -d -o ada -g ada -m 700 /srv/closed /srv/closed/project")
    mounts("start", node.address)
    uid = node.run(["id", "-u", "ada"]).stdout.strip()
    assert mounts("alive", "") == f"[{uid}]\n"
    node.run(["sh", "-c", "cd /srv/closed/project && echo here > seen && chmod 2770 . && ls"], user="ada")
    assert site.cluster.sh("stat -c %U:%a /srv/closed/project /srv/closed/project/seen", "ada").split() == [
        "ada:2770",
        "ada:644",
    ]
    processes = {
        name: (dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line))
        for name in ("sftp-server", "ssh")
        for status in [site.systemd.run(["sh", "-c", f"cat /proc/$(pgrep -x {name} | tail -1)/status"]).stdout]
    }
    for name, user in (("sftp-server", "ada"), ("ssh", "slurm")):
        status = processes[name]
        assert status["Uid"].split() == [head.run(["id", "-u", user]).stdout.strip()] * 4, name
        assert (status["CapEff"], status["CapPrm"], status["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1"), name
    mounts("stop", node.address)
    assert mounts("alive", "") == "[]\n"
    site.wait(lambda: "burstd-mount-worker@" not in site.systemd.systemctl("list-units"), 30, "without its unit")


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
    words = "has 1 fault:\n  line 3: daemon.tick_s: must be greater than 0 (it is -2.0)\n"
    assert f"burstctl: /etc/burstd/burstd.toml {words}" in site.daemon_log()
    site.write(CONFIG, good + "[policies.idle.pools.cpu]\nkeep_alive_s = 3\n")
    site.systemd.systemctl("reload", "burstd.service")
    assert (site.main_pid(), site.api_answers()) == (pid, True)


def test_it_comes_back_by_itself_and_loses_nothing(site: UnitsSite) -> None:
    job = site.submit("-p burst -c1 --mem=100 -t5", "sleep 8")
    site.wait(lambda: site.job(job).get("JobState") == "RUNNING", 60, "the job running")
    pid = site.main_pid()
    site.wait(lambda: "PriorityTier=1 " in site.cluster.sh("scontrol -o show partition q-a"), 60, "a quota that waits")
    site.signal_burstd("KILL")
    assert site.main_pid(other_than=pid) != pid
    said = "quotas that waited for machines take GPUs back from others now: a"
    site.wait(lambda: said in site.daemon_log(), 30, "burstd-quotas")
    site.wait(lambda: "PriorityTier=1 " in site.cluster.sh("scontrol -o show partition q-a"), 60, "it waits again")
    wait_done(site, [job])
    account = wait_all_gone(site)
    assert all(len(made) == 1 for made in account.by_claim.values())
