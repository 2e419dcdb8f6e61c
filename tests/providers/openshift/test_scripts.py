"""The scripts of pods in boxes, with the rights of a pod and no others, against a real slurmctld."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from burstd.planner.lifecycle.spot_notices import parse_reason
from providers.openshift.pods import manifest
from providers.openshift.settings import SLURM_CONF
from providers.sandbox.boxes.boot.description import BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from tests.lab.cluster import Cluster
from tests.lab.kubernetes.images import keeper_library
from tests.lab.slurm_files import USERS

pytestmark = [
    pytest.mark.boxes,
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]

PATIENCE_S = 40.0
ROOT = ["--inh-caps=-all", "--bounding-set=-all," + ",".join(f"+{one.lower()}" for one in manifest.CAPABILITIES)]
HOSTS = "127.0.0.1 localhost\n10.77.0.2 head\n"
# What a kubelet does: volumes, namespaces; the box's own process 1 stays outside.
BEGIN = "mount -t tmpfs -o mode=0777 tmpfs /run; mkdir -p -m 0777 /scratch; exec {} sh /burstd/init.sh"


class Pod:
    """The inside of a pod, as far as it matters: process 1 is init.sh. ``rights`` are words for setpriv."""

    def __init__(self, cluster: Cluster, slot: str, rights: Sequence[str], files: Sequence[BoxFile] = ()) -> None:
        self.cluster = cluster
        self.slot = slot
        self.address = cluster.address_of(slot)
        self._rights = ["setpriv", *rights, "--no-new-privs"]
        key = (cluster.state / "munge.key").read_bytes()
        scripts = [BoxFile(f"/burstd/{name}.sh", manifest.script_text(name)) for name in manifest.SCRIPTS]
        # A projected Secret is root's; its group is the pod's.
        secret = BoxFile("/burstd/key/munge.key", key, 0o640, "root:root")
        hosts = BoxFile("/etc/hosts", HOSTS)
        users = "; ".join(f"useradd -m -u {uid} {name}" for name, uid in USERS.items())
        # GPUs of odd numbers, as a device plug-in hands them over.
        devices = "mv /dev/nvidia0 /dev/nvidia11; mkdir -p /var/log/slurm"
        spec = BoxSpec(
            f"pod-{slot}", self.address, [cluster.rootfs.path], gpus=4, ssh=False,
            services=[["sh", "-c", f"{users}; {devices}"]], files=[hosts, secret, *scripts, *files],
        )  # fmt: skip
        self.box: Box = cluster.lab.start(spec)
        self.box.wait_booted()
        words = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        begin = BEGIN.format(" ".join(self._rights))
        self._log = cluster.state / f"{slot}.log"
        with self._log.open("wb") as log:
            self.init = self.box.popen(
                [*words, *self._environment(), "sh", "-c", begin], stdout=log.fileno(), stderr=log.fileno()
            )
        self.wait(lambda: "burstd: ready" in self.log(), "ready")

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}; {self.log()[-2000:]}"
            time.sleep(0.1)

    def run(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """As the pod's user, as ``pods/exec`` does it."""
        first = self.box.run(["pgrep", "-f", "^sh /burstd/init.sh"]).stdout.split()[0]
        words = ["nsenter", f"--target={first}", "--mount", "--pid", *self._environment(), *self._rights]
        done = self.box.run([*words, "sh", "-c", command], check=False, timeout=70)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def end(self) -> None:
        """As Kubernetes ends a pod; the shell that says so may go with it."""
        self.run("kill -TERM 1", check=False)

    def start(self, command: str = "sh /burstd/start.sh {} --conf-server head") -> None:
        """slurmd, once slurmctld expects the node."""
        update = f"scontrol update nodename={self.slot}"
        self.cluster.sh(
            f"{update} nodeaddr={self.address} && {update} state=power_up && {update} nodeaddr={self.address}"
        )
        self.wait(lambda: "#" in self.state(), "powering up")
        self.run(command.format(self.slot))
        self.wait(lambda: self.state() == "idle", "idle")

    def state(self) -> str:
        return self.cluster.sh(f"sinfo -hn {self.slot} -p burst -o %T").strip()

    def job(self, user: str, script: str) -> str:
        """What a batch job writes."""
        words = f"sbatch -W -p burst -w {self.slot} --gres=gpu:2 -D /tmp -o /tmp/{user}.out --wrap '{script}'"
        self.cluster.sh(f"timeout 60 {words}", user)
        return self.run(f"cat /tmp/{user}.out").stdout

    def _environment(self) -> list[str]:
        said: Mapping[str, str] = {
            "PATH": "/usr/bin:/bin", "BURSTD_CPUS": "2", "BURSTD_MEMORY_MIB": "1000", "BURSTD_GPUS": "4",
            "BURSTD_GRACE_S": "100", "BURSTD_SCRATCH": "/scratch", "BURSTD_SLURM_CONF": "\n".join(SLURM_CONF),
        }  # fmt: skip
        return ["env", "-i", *(f"{key}={value}" for key, value in said.items())]


ALL = pytest.mark.parametrize("cluster", ["bookworm", "trixie", "forky"], indirect=True)
ONE = pytest.mark.parametrize("cluster", ["trixie"], indirect=True)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(request.param, onprem=1) as up:
        yield up


@ALL
def test_root_with_few_rights_runs_everybodys_jobs(cluster: Cluster) -> None:
    pod = Pod(cluster, "cl1", ROOT)
    pod.start()
    slurmd = pod.run("cat /run/burstd/slurmd.pid").stdout
    pod.run("sh /burstd/start.sh cl1 --conf-server head")
    assert pod.run("cat /run/burstd/slurmd.pid").stdout == slurmd
    links = pod.run("cd /run/burstd/gpu; for one in *; do readlink $one; done").stdout.split()
    assert links == [f"/dev/nvidia{number}" for number in (1, 2, 3, 11)]
    for user in USERS:
        assert pod.job(user, "id -un; srun id -un; echo $CUDA_VISIBLE_DEVICES").split() == [user, user, "0,1"]
    assert pod.run("cat /run/burstd/gpu/../conf/slurm.conf").stdout.count("ProctrackType=") == 1

    # Somebody takes the pod away: it says so, waits for what may be brought home, and ends with the node.
    pod.run("sh /burstd/prestop.sh")
    reason = cluster.sh("sinfo -hn cl1 -p burst -o %E").strip()
    told = parse_reason(reason)
    assert told is not None, reason
    assert told.deadline is not None
    pod.end()
    assert pod.run("pgrep -x slurmd").returncode == 0
    cluster.sh("scontrol update nodename=cl1 state=power_down")
    assert pod.init.wait(PATIENCE_S) == 0
    assert "told to end" in pod.log()


@ONE
def test_starts_at_once_are_one_and_only_its_own_machine_drains_a_node(cluster: Cluster) -> None:
    """burstd asks again where an answer is late, and the command goes on."""
    pod = Pod(cluster, "cl1", ROOT)
    again = "sh /burstd/start.sh {0} --conf-server head"
    pod.start(f"{again} & {again} && wait $!")
    assert pod.run("grep -c 'slurmd started on' $(cat /run/burstd/log)").stdout.split() == ["1"]
    # The slot has another machine by now, whose address begins with this one's.
    for address in (pod.address[:-1], f"{pod.address}1"):
        cluster.sh(f"scontrol update nodename=cl1 nodeaddr={address}")
        pod.run("sh /burstd/prestop.sh")
        assert "burstd" not in cluster.sh("sinfo -hn cl1 -p burst -o %E")


@ONE
def test_a_pod_without_a_node_ends_at_once_and_one_without_slurmd_soon(cluster: Cluster) -> None:
    first = Pod(cluster, "cl1", ROOT)
    first.run("sh /burstd/prestop.sh")
    first.end()
    assert first.init.wait(5.0) == 0
    second = Pod(cluster, "cl2", ROOT)
    small = second.run("BURSTD_CPUS=1 sh /burstd/start.sh cl2 --conf-server head", check=False)
    assert "cl2 has 2 CPUs in slurm.conf, and this pod 1" in small.stderr
    second.start()
    second.run("kill -KILL $(cat /run/burstd/slurmd.pid)")
    assert second.init.wait(PATIENCE_S) == 1
    assert "slurmd has ended" in second.log()


@ALL
def test_an_ordinary_user_is_slurms_user_and_keeps_all_jobs_to_itself(cluster: Cluster, tmp_path: Path) -> None:
    """Its batch jobs run for whoever asks only where a library keeps slurmstepd from giving files away."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    uid = cluster.sh("id -u slurm").strip()
    rights = [f"--reuid={uid}", "--regid=0", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    keeper = BoxFile("/usr/lib/burstd/keepowner.so", keeper_library(tmp_path), 0o755)
    pod = Pod(cluster, "cl1", rights, [keeper])
    pod.start()
    user = next(iter(USERS))
    assert pod.job(user, "id -u; echo $USER $CUDA_VISIBLE_DEVICES").split() == [uid, user, "0,1"]
    pod.run("sh /burstd/prestop.sh")
    assert parse_reason(cluster.sh("sinfo -hn cl1 -p burst -o %E").strip()) is not None
