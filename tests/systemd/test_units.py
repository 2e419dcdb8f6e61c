"""The units: as systemd-analyze sees them, and as a real systemd runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burstd.cli.checks.munge import UNIT_COPY
from burstd.domain.health import HealthRules
from burstd.node.own_nodes import own_watch_script
from burstd.share import share_path
from burstd.transfer.privsep.worker import MEMORY_BYTES
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import BoxSpec
from providers.sandbox.boxes.images import rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.systemd.pid1 import SystemdBox, cgroup2, systemd_box

UNITS = (
    "burstd.service", "burstd.socket", "burstd-user-worker.socket", "burstd-user-worker@.service",
    "burstd-object-worker.socket", "burstd-object-worker@.service",
    "burstd-image-worker.socket", "burstd-image-worker@.service",
    "burstd-mount-worker.socket", "burstd-mount-worker@.service", "burstd-node-watch.service",
)  # fmt: skip
_PROJECT = Path(__file__).parents[2]
analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units in a directory, with an ExecStart that is there."""
    for name in UNITS:
        text = share_path("systemd", name).read_text(encoding="utf-8")
        text = re.sub(r"(/opt/burstd/bin|/usr/local/sbin)/\S+", shutil.which("true") or "", text)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@analyze
def test_systemd_analyze_finds_nothing_to_say(units: Path) -> None:
    words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *(str(units / name) for name in UNITS)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@analyze
@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("burstd.service", 2.0),
        ("burstd-user-worker@.service", 2.5),
        ("burstd-object-worker@.service", 2.5),
        ("burstd-image-worker@.service", 2.5),
        ("burstd-mount-worker@.service", 3.5),
    ],
)
def test_a_service_is_little_exposed(units: Path, name: str, most: float, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(units / name)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    found = re.search(r"exposure level for \S+: ([\d.]+) (\w+)", done.stdout)
    assert found is not None
    with capsys.disabled():
        print(f"\n{name}: exposure {found[1]} {found[2]}", end=" ")  # noqa: T201 - the score is to be seen
    assert float(found[1]) <= most


def test_no_service_leaves_a_core_file() -> None:
    for name in (n for n in UNITS if n.endswith(".service")):
        assert "LimitCORE=0" in share_path("systemd", name).read_text(encoding="utf-8").splitlines(), name


@pytest.mark.boxes
def test_each_service_has_a_limit_of_memory(head: SystemdBox) -> None:
    for name in (n for n in UNITS if n.endswith(".service")):
        shown = head.shows(name.replace("@", "@1"), "MemoryMax")
        # A hand limits its address space itself; what it may map it may use.
        assert shown.isdigit(), (name, shown)
        assert int(shown) >= MEMORY_BYTES or "hand" not in name, (name, shown)


# In burstd's place: does what burstd needs, tries what it must not, and tells on its control socket.
PROBE = """#!/usr/bin/python3
import os, signal, socket, subprocess, sys
sys.path.insert(0, "/opt/burstd/src")
from pathlib import Path
from burstd.runtime.sockets import listen, listen_for_admins, peer_credentials, single_instance

def told(what):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.sendto(what, os.environ["NOTIFY_SOCKET"])

def may(act):
    try:
        act()
    except OSError as error:
        return error.strerror
    return "yes"

if "bad" in Path("/etc/burstd/burstd.toml").read_text():
    sys.exit(78)
lock = single_instance(Path("/var/lib/burstd"))
reloads = []
signal.signal(signal.SIGHUP, lambda *_: reloads.append(1))
listener = listen(Path("/nonexistent/control.sock"))
admins = listen_for_admins(Path("/run/burstd/admin.sock"), "mail")
told(b"READY=1")
import ctypes
inotify = ctypes.CDLL(None).inotify_add_watch(ctypes.CDLL(None).inotify_init1(0), b"/var/lib/slurm", 0x100)
answers = {
    "user": f"{os.geteuid()}:{os.getegid()}",
    "arguments": " ".join(sys.argv[1:]),
    "key": Path("/etc/munge/munge.key").read_text(),
    "key, mode": oct(os.stat("/etc/munge/munge.key").st_mode & 0o777),
    "key, writing": may(lambda: Path("/etc/munge/munge.key").write_text("x")),
    "state": may(lambda: Path("/var/lib/burstd/database").write_text("x")),
    "spool": may(lambda: Path("/var/spool/burstd/x").write_text("x")),
    "settings": may(lambda: Path("/etc/burstd/burstd.toml").write_text("x")),
    "policies": may(lambda: Path("/etc/burstd/policies/nights.py").read_text()),
    "policies, writing": may(lambda: Path("/etc/burstd/policies/nights.py").write_text("x")),
    "slurm state": may(lambda: os.listdir("/var/lib/slurm")),
    "slurm state, writing": may(lambda: Path("/var/lib/slurm/x").write_text("x")),
    "inotify": "yes" if inotify > 0 else "no",
    "home": may(lambda: os.listdir("/home/ada")),
    "gpu": may(lambda: open("/dev/nvidia0")),
    "internet": may(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()),
    "packets": may(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()),
    "commands": subprocess.run(["scontrol", "--version"], capture_output=True, text=True).stdout.strip(),
    "chown": may(lambda: os.chown("/var/lib/burstd/database", 0, 0)),
}
while True:
    try:
        connection, _ = listener.accept()
    except InterruptedError:
        continue
    with connection:
        answers["peer"] = str(peer_credentials(connection).uid)
        answers["reloads"] = str(len(reloads))
        connection.sendall("".join(f"{key}={value}\\n" for key, value in answers.items()).encode())
"""
# In burstctl's place, as the unit's ExecReload: what is refused fails, and says where.
RELOADING = """#!/bin/sh
test "$*" = "config reload" || exit 64
grep -q bad /etc/burstd/burstd.toml && { echo "burstd.toml has 1 fault: line 1: bad" >&2; exit 1; }
kill -HUP "$MAINPID"
"""
ASK = """import socket
c = socket.socket(socket.AF_UNIX); c.connect("/run/burstd/control.sock")
while chunk := c.recv(10000): print(chunk.decode(), end="")
"""


@pytest.fixture(scope="module", params=["trixie"])
def head(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdBox]:
    """A head node whose systemd has the units."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if cgroup2() is None:
        pytest.skip("systemd needs cgroup v2, and this machine has none mounted")
    lab = Lab(tmp_path_factory.mktemp("lab"), LabNetwork(f"u{uuid.uuid4().hex[:8]}"))
    lab.up()
    try:
        files = [
            *(BoxFile(f"/etc/systemd/system/{n}", share_path("systemd", n).read_text(encoding="utf-8")) for n in UNITS),
            BoxFile("/etc/burstd/burstd.toml", "cluster = 'lab'\n"),
            BoxFile("/etc/burstd/policies/nights.py", "plugin = None\n"),
            BoxFile("/etc/munge/munge.key", "k" * 64, 0o400, "munge:munge"),
            BoxFile("/opt/burstd/bin/burstd", PROBE, 0o755),
            BoxFile("/opt/burstd/bin/burstctl", RELOADING, 0o755),
            BoxFile("/var/lib/slurm/node_state", "x", 0o600, "slurm"),
            BoxFile("/etc/slurm/slurm.conf", "ClusterName=lab\nSlurmctldHost=head\n"),
        ]
        # The probe's own code, in a place of its own.
        binds = [BindMount(_PROJECT / "burstd", "/opt/burstd/src/burstd")]
        layers = [rootfs.ensure_rootfs(request.param).path]
        spec = BoxSpec("head", "10.77.0.2", layers, files=files, binds=binds, gpus=1, ssh=False)
        with systemd_box(lab, spec) as made:
            made.systemctl("mask", "--now", "slurmd", "slurmctld")
            made.run(["sh", "-c", "useradd -m -u 3001 ada; chown slurm: /var/lib/slurm; systemctl daemon-reload"])
            yield made
    finally:
        lab.down()


@pytest.fixture
def ask(head: SystemdBox) -> Callable[[str], dict[str, str]]:
    """What the probe tells a user."""

    def one(user: str) -> dict[str, str]:
        said = head.run(["runuser", "-u", user, "--", "python3", "-c", ASK]).stdout
        return dict(line.partition("=")[::2] for line in said.splitlines())

    return one


@pytest.mark.boxes
def test_under_a_real_systemd(head: SystemdBox, ask: Callable[[str], dict[str, str]]) -> None:
    head.systemctl("enable", "--now", "burstd.socket")
    assert head.shows("burstd.service", "ActiveState") == "inactive"
    said = ask("ada")  # whoever speaks first has it started, and waits meanwhile
    assert head.shows("burstd.service", "ActiveState") == "active"
    assert head.run(["stat", "-c", "%U %a", "/etc/munge/munge.key"]).stdout == "munge 400\n"
    assert head.run(["cat", str(UNIT_COPY)]).stdout == "k" * 64
    slurm = head.run(["sh", "-c", "echo $(id -u slurm):$(id -g slurm)"]).stdout.strip()
    assert said.pop("commands").startswith("slurm")
    assert said == {
        "user": slurm,
        "arguments": "--config /etc/burstd/burstd.toml",
        "key": "k" * 64,
        "key, mode": "0o440",
        "key, writing": "Read-only file system",
        "state": "yes",
        "spool": "yes",
        "settings": "Read-only file system",
        "policies": "yes",
        "policies, writing": "Read-only file system",
        "slurm state": "yes",
        "slurm state, writing": "Read-only file system",
        "inotify": "yes",
        "home": "Permission denied",
        "gpu": "No such file or directory",
        "internet": "yes",
        "packets": "Address family not supported by protocol",
        "chown": "Operation not permitted",
        "peer": "3001",
        "reloads": "0",
    }
    assert ask("root")["peer"] == "0"
    # What ls shows as group's is the mask of its ACL.
    assert head.run(["stat", "-c", "%A %U", "/run/burstd/admin.sock"]).stdout.split() == ["srw-rw----", "slurm"]
    assert head.run(["stat", "-c", "%a", "/run/burstd/control.sock", "/var/lib/burstd"]).stdout.split() == [
        "666",
        "700",
    ]


@pytest.mark.boxes
def test_reload_crash_and_settings_that_cannot_work(head: SystemdBox, ask: Callable[[str], dict[str, str]]) -> None:
    head.systemctl("start", "burstd.service")
    pid = head.shows("burstd.service", "MainPID")
    head.systemctl("reload", "burstd.service")
    assert ask("ada")["reloads"] == "1"
    head.run(["sh", "-c", "echo bad > /etc/burstd/burstd.toml"])
    refused = head.run(["systemctl", "reload", "burstd.service"], check=False)
    assert refused.returncode != 0
    assert "line 1: bad" in head.journal("burstd.service")
    assert (head.shows("burstd.service", "MainPID"), ask("ada")["reloads"]) == (pid, "1")
    head.run(["sh", "-c", "echo good > /etc/burstd/burstd.toml"])
    head.run(["kill", "-9", pid])
    # The socket is systemd's, and whoever asks waits; only who was let in by the dying process is cut off.
    head.box.wait(lambda _b: ask("ada").get("reloads") == "0", 20, "answering again")
    assert head.shows("burstd.service", "MainPID") != pid

    head.run(["sh", "-c", "echo bad > /etc/burstd/burstd.toml"])
    head.systemctl("stop", "burstd.socket", "burstd.service")
    head.systemctl("start", "burstd.service", check=False)
    box = head.box
    box.wait(lambda _b: head.shows("burstd.service", "ActiveState") == "failed", 20, "giving up")
    assert head.shows("burstd.service", "NRestarts") == "0"
    assert head.shows("burstd.service", "ExecMainStatus") == "78"
    # Whoever asks starts it once more, and is hung up on rather than left waiting.
    assert head.run(["python3", "-c", ASK], timeout=20).stdout == ""
    box.wait(lambda _b: head.shows("burstd.service", "ActiveState") == "failed", 20, "giving up")
    assert head.shows("burstd.socket", "ActiveState") == "active"
    head.run(["sh", "-c", "echo good > /etc/burstd/burstd.toml"])
    assert ask("ada")["peer"] == "3001"


@pytest.mark.boxes
def test_the_watch_over_a_node_of_the_site(head: SystemdBox) -> None:
    script = own_watch_script(HealthRules(interval_s=1))
    path = "/usr/local/sbin/burstd-node-watch"
    # A machine has but one kernel, whose log is not this box's.
    head.run(["sh", "-c", f"mkfifo /run/burstd-node-watch-kernel-log; install -m 0755 /dev/null {path}"])
    head.run(["python3", "-c", "import sys; open(sys.argv[1], 'w').write(sys.argv[2])", path, script])
    head.systemctl("start", "burstd-node-watch.service")
    looked = ["test", "-e", "/run/burstd-node-watch/watch/looked"]
    head.box.wait(lambda _b: head.run(looked, check=False).returncode == 0, 60, "a first look")
    head.systemctl("stop", "burstd-node-watch.service")
    assert head.shows("burstd-node-watch.service", "Result") == "success"
    assert head.run(["test", "-e", "/run/burstd-node-watch"], check=False).returncode == 1
