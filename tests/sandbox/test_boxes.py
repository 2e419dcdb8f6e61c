"""Real boxes: what a host can do, what it cannot do to the machine, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.errors import BoxFailed
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.boxes.processes import Process
from tests.lab.patience import patience_s

pytestmark = pytest.mark.boxes


def key_pair(directory: Path) -> tuple[Path, str]:
    key = directory / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return key, key.with_suffix(".pub").read_text(encoding="utf-8").strip()


def ssh(lab: Lab, key: Path, address: str, command: str, user: str = "root") -> str:
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]
    argv = [*lab.network.enter(), "ssh", *options, "-i", str(key), f"{user}@{address}", command]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def test_a_box_answers_by_ssh_within_a_second(lab: Lab, base: Rootfs, tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    keys = BoxFile("/root/.ssh/authorized_keys", public + "\n", 0o600)
    before = time.monotonic()
    box = lab.start(BoxSpec("one", "10.77.0.9", [base.path], files=[keys]))
    box.wait_ssh()
    took = time.monotonic() - before
    assert ssh(lab, key, "10.77.0.9", "hostname") == "one"
    assert took < 3, took  # 0.1 s on an idle machine
    box.wait_booted()
    host_key = box.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.strip()
    assert "-----BEGIN SSH HOST KEY KEYS-----\n" + host_key in box.console()


def test_cloud_init_runs_the_user_data(lab: Lab, base: Rootfs, tmp_path: Path) -> None:
    key, public = key_pair(tmp_path)
    user_data = f"""#cloud-config
hostname: given
disable_root: false
users: [default, {{name: ada, uid: 1234}}]
ssh_authorized_keys: ['{public}']
write_files:
- {{path: /etc/hello, content: hello, permissions: '0640'}}
runcmd:
- [sh, -c, 'hostname > /etc/ran']
"""
    before = time.monotonic()
    box = lab.start(BoxSpec("two", "10.77.0.9", [base.path], user_data=user_data, meta_data={"instance-id": "i-77"}))
    box.wait_ssh()
    box.wait_booted()
    assert time.monotonic() - before < patience_s(8)  # 0.6 s on an idle machine
    assert ssh(lab, key, "10.77.0.9", "cat /etc/hello /etc/ran") == "hellogiven"
    assert ssh(lab, key, "10.77.0.9", "sudo -n id -u", user="debian") == "0"
    assert box.run(["id", "-u", "ada"]).stdout == "1234\n"
    assert box.run(["cat", "/var/lib/cloud/data/instance-id"]).stdout.strip() == "i-77"
    host_key = box.run(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()[1]
    shown = box.console().partition("-----BEGIN SSH HOST KEY KEYS-----")[2]
    assert host_key in shown.partition("-----END SSH HOST KEY KEYS-----")[0]
    assert '"errors": []' in box.run(["cat", "/run/cloud-init/result.json"]).stdout


SLURM_CONF = """\
ClusterName=box
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node CPUs=2 RealMemory=1000 Gres=gpu:v100:4 State=UNKNOWN
PartitionName=all Nodes=node Default=YES State=UP
"""


def test_slurm_with_fake_gpus(lab: Lab, base: Rootfs) -> None:
    files = [
        BoxFile("/etc/munge/munge.key", b"k" * 128, 0o400, "munge:munge"),
        BoxFile("/etc/hosts", "127.0.0.1 localhost\n10.77.0.2 head\n10.77.0.3 node\n"),
        BoxFile("/etc/slurm/slurm.conf", SLURM_CONF),
        BoxFile("/etc/slurm/gres.conf", "Name=gpu Type=v100 File=/dev/nvidia[0-3]\n"),
    ]
    prepare = ["sh", "-c", "mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd; chown munge: /run/munge"]
    munged = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"]
    head = lab.start(BoxSpec("head", "10.77.0.2", [base.path], files=files, services=[prepare, munged, ["slurmctld"]]))
    node = lab.start(
        BoxSpec("node", "10.77.0.3", [base.path], gpus=4, files=files, services=[prepare, munged, ["slurmd", "-b"]])
    )
    node.wait_booted()
    head.wait_booted()

    def idle(_box: Box) -> bool:
        return head.run(["sinfo", "-ho", "%t"], check=False).stdout.strip() == "idle"

    head.wait(idle, 30, "showing its node idle")
    job = ["srun", "--gres=gpu:v100:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; hostname; id -u"]
    done = head.run(job, user="nobody", timeout=30)
    assert done.stdout.split() == ["0,1", "node", "65534"], done


def test_run_as_root_and_as_a_user(lab: Lab, bookworm: Rootfs) -> None:
    box = lab.start(BoxSpec("three", "10.77.0.9", [bookworm.path]))
    box.run(["useradd", "-m", "-u", "3000", "-G", "adm", "ada"])
    done = box.run(["sh", "-c", "id -un; id -Gn; echo $HOME $X; cat"], user="ada", env={"X": "y"}, input="in")
    assert done.stdout == "ada\nada adm\n/home/ada y\nin"
    assert box.run(["pwd"], cwd="/etc").stdout == "/etc\n"
    assert box.run(["false"], check=False).returncode == 1
    with pytest.raises(subprocess.CalledProcessError):
        box.run(["false"])
    with pytest.raises(subprocess.TimeoutExpired):
        box.run(["sleep", "1000"], timeout=0.2)
    with pytest.raises(BoxFailed, match="no user bob"):
        box.run(["id"], user="bob")
    box.wait(lambda b: b.run(["pgrep", "-x", "sleep"], check=False).returncode == 1, 5, "rid of the sleeper")
    sleeper = box.popen(["sleep", "1000"])
    box.stop()
    assert sleeper.wait(5) != 0


def test_a_box_cannot_touch_the_machines_switches(lab: Lab, bookworm: Rootfs) -> None:
    box = lab.start(
        BoxSpec("four", "10.77.0.9", [bookworm.path], gpus=2, binds=[BindMount(Path("/etc/passwd"), "/mnt/p")])
    )
    tries = ["echo 1 > /proc/sys/kernel/panic", "date -s 2001-01-01", "echo x > /mnt/p", "mount -o remount,rw /sys/x"]
    for attempt in tries:
        assert box.run(["sh", "-c", attempt], check=False).returncode != 0, attempt
    assert box.run(["cat", "/mnt/p"]).stdout == Path("/etc/passwd").read_text(encoding="utf-8")
    assert box.run(["sh", "-c", "ls /dev/nvidia*"]).stdout.split() == ["/dev/nvidia0", "/dev/nvidia1"]
    visible = box.run(["ps", "-e", "-o", "comm="]).stdout.split()
    assert "pytest" not in visible
    assert visible[0] == "tini"


def test_boxes_reach_each_other_and_nothing_else(lab: Lab, bookworm: Rootfs) -> None:
    lab.start(BoxSpec("a", "10.77.0.8", [bookworm.path]))
    box = lab.start(BoxSpec("b", "10.77.0.9", [bookworm.path]))
    for address in ("10.77.0.8", "10.77.0.1"):
        box.run(["ping", "-c1", "-W2", address])
    assert box.run(["ping", "-c1", "-W1", "192.0.2.1"], check=False).returncode == 2  # unreachable, at once
    assert box.run(["getent", "hosts", "example.org"], check=False, timeout=2).returncode != 0


def test_an_address_can_be_taken_over_at_once(lab: Lab, bookworm: Rootfs) -> None:
    watcher = lab.start(BoxSpec("a", "10.77.0.8", [bookworm.path]))
    for name in ("b", "c"):
        box = lab.start(BoxSpec(name, "10.77.0.9", [bookworm.path]))
        watcher.run(["ping", "-c1", "-W1", "10.77.0.9"])
        box.stop()


def test_what_is_stopped_is_gone_and_may_come_again(lab: Lab, bookworm: Rootfs) -> None:
    spec = BoxSpec("five", "10.77.0.9", [bookworm.path])
    box = lab.start(spec)
    with pytest.raises(BoxFailed, match="already"):
        lab.start(spec)
    assert box.alive
    box.stop()
    box.stop()
    assert not box.alive
    assert lab.boxes() == []
    assert lab.start(spec).alive


def test_a_box_that_powers_off_is_seen_dead(lab: Lab, bookworm: Rootfs) -> None:
    box = lab.start(BoxSpec("six", "10.77.0.9", [bookworm.path], services=[["sh", "-c", "echo last words"]]))
    box.wait_booted()
    box.run(["kill", "-TERM", "1"], check=False)
    deadline = time.monotonic() + 5
    while box.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not box.alive
    assert "last words" in box.console()
    with pytest.raises(BoxFailed, match="does not run"):
        box.run(["true"])


def test_a_silent_box(lab: Lab, bookworm: Rootfs) -> None:
    box = lab.start(BoxSpec("seven", "10.77.0.9", [bookworm.path], ssh=False))
    box.wait_booted()
    assert not box.listening(22)


def test_a_later_process_takes_a_lab_up_and_down(lab: Lab, bookworm: Rootfs) -> None:
    script = f"""
import os, signal
from pathlib import Path
from providers.sandbox.boxes.box import BoxSpec
from providers.sandbox.boxes.lab import Lab
lab = Lab.open(Path({str(lab.state)!r}))
for n in range(3):
    lab.start(BoxSpec(f"n{{n}}", f"10.77.0.{{n + 9}}", [Path({str(bookworm.path)!r})]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    maker = subprocess.run([sys.executable, "-c", script], check=False)
    assert maker.returncode == -signal.SIGKILL
    again = Lab.open(lab.state)
    assert again is not None
    boxes = again.boxes()
    assert [box.name for box in boxes] == ["n0", "n1", "n2"]
    assert all(box.alive for box in boxes)
    assert boxes[1].run(["hostname"]).stdout == "n1\n"
    processes = [box.process for box in boxes]
    # What a maker may leave that was killed between two steps.
    (lab.boxes_directory / "half").mkdir()
    again.network.attach("half", "10.77.0.77")
    again.down()
    again.down()
    for process in processes:
        assert process is not None
        assert not process.alive
    assert leftovers(lab) == []


def leftovers(lab: Lab) -> list[str]:
    found = [str(p) for p in Path("/run/netns").glob(f"burstd-{lab.network.name}.*")]
    found += [m for m in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines() if str(lab.state) in m]
    found += [str(p) for p in lab.state.rglob("*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(lab.state) in (process / "mountinfo").read_text(encoding="utf-8"):
                found.append(str(process))
        except OSError:
            continue
    return found


def test_nobody_else_is_killed_for_a_pid_used_again(lab: Lab) -> None:
    bystander = subprocess.Popen(["sleep", "1000"])
    try:
        directory = lab.boxes_directory / "old"
        directory.mkdir(parents=True)
        true = Process.current()
        Process(bystander.pid, true.start - 1, true.boot).save(directory / "process.json")
        lab.down()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_two_labs_share_a_subnet(lab: Lab, bookworm: Rootfs, tmp_path: Path) -> None:
    other = Lab(tmp_path / "other", LabNetwork(lab.network.name + "-b"))
    other.up()
    try:
        one = lab.start(BoxSpec("same", "10.77.0.9", [bookworm.path]))
        two = other.start(BoxSpec("same", "10.77.0.9", [bookworm.path]))
        lab.down()
        assert not one.alive
        assert two.alive
        two.run(["ping", "-c1", "-W1", "10.77.0.1"])
    finally:
        other.down()


def test_a_hub_on_the_machine_itself(bookworm: Rootfs, tmp_path: Path) -> None:
    """In a network namespace that plays the machine's own, so that the true one stays untouched."""
    script = f"""
import socket, subprocess
from pathlib import Path
from providers.sandbox.boxes.box import BoxSpec
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
lab = Lab(Path({str(tmp_path / "lab")!r}), LabNetwork("m{os.getpid()}", namespace=None))
lab.up(); lab.up()
links = lambda: subprocess.run(["ip", "-br", "link"], capture_output=True, text=True).stdout.count("\\n")
try:
    box = lab.start(BoxSpec("x", "10.77.0.9", [Path({str(bookworm.path)!r})]))
    box.wait_ssh()
    socket.create_connection(("10.77.0.9", 22), timeout=5).close()
    assert links() == 3, links()
finally:
    lab.down()
assert links() == 1, links()
"""
    subprocess.run(["unshare", "--net", sys.executable, "-c", script], check=True, timeout=60)


def test_a_layer_is_built_once_and_lies_over_the_root(lab: Lab, bookworm: Rootfs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    source = tmp_path / "source"
    source.mkdir()
    (source / "word").write_text("burst\n", encoding="utf-8")
    steps: list[str] = []
    build = ["sh", "-ec", "echo begun; mkdir /opt/it; cp /mnt/src/word /opt/it; rm /usr/bin/less; cat /etc/resolv.conf"]
    binds = [BindMount(source, "/mnt/src")]
    made = ensure_layer(bookworm, "v1", build, binds, cache, steps.append)
    assert "begun" in steps
    assert ensure_layer(bookworm, "v1", ["false"], binds, cache) == made
    remaining = sorted(str(p.relative_to(made)) for p in made.rglob("*") if not p.is_dir())
    assert remaining == ["opt/it/word", "usr/bin/less"], "only what was changed is kept"
    box = lab.start(BoxSpec("eight", "10.77.0.9", [made, bookworm.path]))
    assert box.run(["cat", "/opt/it/word"]).stdout == "burst\n"
    assert box.run(["ls", "/usr/bin/less"], check=False).returncode != 0
    assert (bookworm.path / "usr/bin/less").exists()
    box.stop()
    upper = ensure_layer(bookworm, "v1", ["cp", "/opt/it/word", "/opt/it/again"], cache=cache, over=[made])
    assert [str(p.relative_to(upper)) for p in upper.rglob("*") if not p.is_dir()] == ["opt/it/again"]
