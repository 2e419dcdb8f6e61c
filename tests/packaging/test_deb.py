"""The Debian package under a real systemd: installed, upgraded beside a burstd that runs, refused to go, purged."""

from __future__ import annotations

import os
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from burstd.db import Store
from burstd.domain.claim import ClaimState
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import BoxSpec
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from tests.db.samples import ManualClock, planned
from tests.lab.deb import ensure_deb, with_version
from tests.lab.programs import PROJECT
from tests.systemd.pid1 import SystemdBox, cgroup2, systemd_in

RELEASE = os.environ.get("BURSTD_DEB_RELEASE", "trixie")
DEB, NEWER = "/mnt/burstd.deb", "/mnt/burstd-newer.deb"
SETTINGS = """cluster = "lab"
[providers.cloud]
kind = "sandbox"
url = "http://127.0.0.1:9"
token_file = "/etc/burstd/token"
[pools.cpu]
nodes = "c[1-4]"
partitions = ["burst"]
cpus = 4
memory = 8000
offers = [{ provider = "cloud", instance_types = ["cpu.*"] }]
"""
_REFUSED = """\
burstd: this version refuses the settings, so burstd is stopped. Jobs and machines go on, but nothing starts or ends
machines. Mend the settings until "burstctl config check" is content, then
  systemctl start burstd.socket burstd.service
Or put version 0.1 back first, which takes the record as it is: apt install --allow-downgrades ./burstd_0.1_*.deb
"""
# What dpkg, the account database and systemd keep for themselves; /run is looked at by name.
_LIST = """cat /etc/passwd /etc/group
find / -xdev ! -path '/var/lib/dpkg/*' ! -path '/var/lib/apt/*' ! -path '/var/log/*' ! -path '/var/cache/*/*' \
  ! -path '/tmp/*' ! -path '/etc/*-' ! -name .pwd.lock
find /run /var/cache /tmp -name '*burstd*'
"""


@pytest.fixture(scope="module")
def deb() -> Path:
    return ensure_deb(RELEASE)


@pytest.fixture(scope="module")
def head(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SystemdBox]:
    """A Debian with Slurm's packages, and nothing of burstd."""
    if cgroup2() is None:
        pytest.skip("systemd needs cgroup v2, and this machine has none mounted")
    lab = Lab(tmp_path_factory.mktemp("lab"), LabNetwork(f"d{uuid.uuid4().hex[:8]}"))
    lab.up()
    try:
        files = [BoxFile("/etc/munge/munge.key", "k" * 64, 0o400, "munge:munge")]
        layers = [ensure_rootfs(RELEASE).path]
        newer = with_version(deb, "9.0", tmp_path_factory.mktemp("newer") / "burstd.deb")
        binds = [BindMount(deb, DEB), BindMount(newer, NEWER)]
        spec = BoxSpec("head", "10.77.0.2", layers, files=files, binds=binds, ssh=False)
        box = lab.start(spec)
        box.wait_booted()
        with systemd_in(box, mask=("slurmctld", "slurmd")) as made:
            yield made
    finally:
        lab.down()


@pytest.mark.boxes
def test_what_is_in_it(deb: Path) -> None:
    with (
        subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        members = {member.name: member for member in archive}
    files = [member for member in members.values() if not member.issym()]
    assert not [file.name for file in files if (file.uid, file.gid) != (0, 0) or file.mode & 0o7022]
    for wanted in (
        "usr/share/man/man1/burstctl.1.gz", "usr/share/man/man5/burstd.toml.5.gz", "usr/share/man/man8/burstd.8.gz",
        "usr/share/doc/burstd/examples/burstd.toml", "usr/lib/sysusers.d/burstd.conf",
        "usr/share/zsh/vendor-completions/_burstctl", "usr/share/fish/vendor_completions.d/burstctl.fish",
    ):  # fmt: skip
        assert f"./{wanted}" in members
    described = {
        Path(name).name for name, member in members.items() if "/discovery_cache/documents/" in name and member.isfile()
    }
    assert described == {f"{name}.v1.json" for name in ("compute", "cloudbilling", "cloudresourcemanager")}
    # Those of a wheel and no others; a node of the site's own has burstd-node-watch, and nothing else of burstd.
    units = {Path(name).name for name in members if name.startswith("./usr/lib/systemd/system/burstd")}
    assert units == {unit.name for unit in (PROJECT / "systemd").iterdir()} - {"burstd-node-watch.service"}
    assert not [name for name in members if name.startswith("./etc/") and members[name].isfile()]


def _sh(head: SystemdBox, script: str) -> str:
    done = head.run(["sh", "-c", script], check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _apt(head: SystemdBox, *words: str) -> subprocess.CompletedProcess[str]:
    options = ["-qy", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io"]
    return head.run(["apt-get", *options, *words], check=False, timeout=300)


def _upgrade(head: SystemdBox, settings: Path, first: str) -> None:
    """It takes the running burstd along, and stops it where it would not start again. ``first``: its process."""
    sh = partial(_sh, head)
    upgraded = _apt(head, "install", NEWER)
    assert upgraded.returncode == 0, upgraded.stdout + upgraded.stderr
    assert sh("dpkg-query -W -f '${Version}' burstd") == "9.0"
    assert head.shows("burstd.service", "MainPID") not in (first, "0")
    assert "cpu" in sh("burstctl status")
    assert settings.read_text(encoding="utf-8") == SETTINGS
    settings.write_text("nonsense = 1\n", encoding="utf-8")
    said = sh("/var/lib/dpkg/info/burstd.postinst configure 0.1 2>&1")
    assert said.endswith(_REFUSED)
    assert "nonsense" in said.removesuffix(_REFUSED)
    assert [head.shows(f"burstd.{kind}", "ActiveState") for kind in ("service", "socket")] == ["inactive"] * 2
    settings.write_text(SETTINGS, encoding="utf-8")
    sh("systemctl start burstd.socket burstd.service; burstctl status")


@pytest.mark.boxes
def test_from_its_installation_to_its_purge(head: SystemdBox, tmp_path: Path) -> None:
    sh, apt = partial(_sh, head), partial(_apt, head)
    before = sh(_LIST)
    # A burstd of pip is not mixed with it.
    sh("mkdir -p /opt/burstd")
    refused = apt("install", DEB)
    assert "/opt/burstd is of a burstd that was installed without this package" in refused.stdout + refused.stderr
    sh("rmdir /opt/burstd")
    installed = apt("install", DEB)
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert "there are no settings, so nothing was started" in installed.stdout
    assert sh("burstctl --version; /opt/burstd/bin/burstd --version").split()[::2] == ["burstctl", "burstd"]
    assert sh("systemctl --plain --no-legend list-units 'burstd*'; getent group burstd").startswith("burstd:")
    completion = ". /usr/share/bash-completion/completions/burstctl; COMP_WORDS=(burstctl node dr) COMP_CWORD=2; "
    completion += '_burstctl_completion burstctl; echo "${COMPREPLY[@]}"'
    assert sh(f"bash -c '{completion}'").split() == ["drain"]

    settings = head.box.path("/etc/burstd/burstd.toml")
    settings.write_text(SETTINGS, encoding="utf-8")
    sh("umask 077; echo 0123456789abcdef0123456789abcdef >/etc/burstd/token; chown slurm: /etc/burstd/token")
    sh("systemctl enable --now burstd.socket burstd.service burstd-user-worker.socket")
    first = head.shows("burstd.service", "MainPID")
    assert "cpu" in sh("burstctl status")
    # Its bytecode is taken as it is: Python as root has written none anew.
    assert sh("find /opt/burstd -type f -newer /var/lib/dpkg/info/burstd.md5sums") == ""

    _upgrade(head, settings, first)

    # Machines that run hold it.
    sh("systemctl stop burstd.socket burstd.service; rm -f /var/lib/burstd/burstd.db*")
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        store.adopt_claim(replace(planned(), state=ClaimState.IN_SERVICE, instance_id="i-17"))
    head.box.path("/var/lib/burstd/burstd.db").write_bytes((tmp_path / "burstd.db").read_bytes())
    kept = apt("purge", "burstd")
    assert kept.returncode != 0
    assert "gpu001: sandbox i-17, in_service\n" in kept.stdout + kept.stderr
    assert '"burstctl uninit" ends the machines' in kept.stdout + kept.stderr
    sh("burstctl --version; rm /var/lib/burstd/burstd.db; systemctl start burstd.socket burstd.service")

    gone = apt("purge", "burstd")
    assert gone.returncode == 0, gone.stdout + gone.stderr
    assert "/etc/burstd stays, with what you put there:\ntoken\n" in gone.stdout
    sh("rm -r /etc/burstd")
    assert (set(sh(_LIST).splitlines()) - set(before.splitlines())) == set()
    assert sh("systemctl --plain --no-legend --all list-units 'burstd*'") == ""
