"""What the sandbox learns of the machine: apt's archive, pip's settings, places, processes, names. No boxes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from providers.sandbox.boxes import machine
from providers.sandbox.boxes.errors import BuildFailed, MissingTool, NetworkFailed, NoMirror, NoSpace, NotRoot
from providers.sandbox.boxes.images import apt, rootfs
from providers.sandbox.boxes.images.pip_settings import config_files, local_paths, machine_pip, merged
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.boxes.processes import Process

DEB822 = """\
# a comment
Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src deb
URIs: http://mirror.example/debian
  http://second.example/debian
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 Comment: no field
"""


def test_the_mirror_is_the_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(apt.MIRROR_VARIABLE, raising=False)
    with pytest.raises(NoMirror, match=apt.MIRROR_VARIABLE):
        apt.mirror(tmp_path)
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(DEB822, encoding="utf-8")
    (parts / "a.list").write_text(
        "deb http://cloud.example/apt cloud-sdk main\n#deb http://x/ sid main\n", encoding="utf-8"
    )
    assert apt.mirror(tmp_path) == "http://mirror.example/debian"
    line = "deb [arch=amd64 signed-by=/k] https://first.example/debian/ trixie main # ours\n"
    (tmp_path / "sources.list").write_text(line, encoding="utf-8")
    assert apt.mirror(tmp_path) == "https://first.example/debian/"
    monkeypatch.setenv(apt.MIRROR_VARIABLE, "http://chosen.example/debian")
    assert apt.mirror(tmp_path) == "http://chosen.example/debian"


def test_pip_settings_of_all_files_and_what_they_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    general, own = tmp_path / "general", tmp_path / "own"
    general.write_text("[global]\nfind-links = nowhere\nindex-url = https://x/simple\n", encoding="utf-8")
    own.write_text(f"[global]\nfind-links = {tmp_path}/wheels /not/there\n", encoding="utf-8")
    found = merged([general, tmp_path / "missing", own])
    assert dict(found["global"]) == {"find-links": f"{tmp_path}/wheels /not/there", "index-url": "https://x/simple"}
    values = [*found["global"].values(), f"file://{tmp_path}/index/simple", f"{tmp_path}/wheels"]
    assert local_paths(values) == [tmp_path / "index", tmp_path / "wheels"]
    assert config_files({"PIP_CONFIG_FILE": "/x"}, tmp_path) == [Path("/x")]
    assert tmp_path / ".config/pip/pip.conf" in config_files({}, tmp_path)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(own))
    monkeypatch.setenv("PIP_CERT", str(general))
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    (tmp_path / "out").mkdir()
    made = machine_pip(tmp_path / "out")
    assert {(b.source, b.target) for b in made.binds} >= {(tmp_path / "wheels", ""), (general, "")}
    assert made.environment["https_proxy"] == "http://proxy:1"
    assert "PIP_CONFIG_FILE" not in made.environment


def test_the_cache_belongs_to_the_user_behind_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert machine.default_cache() == Path("/some/cache/burstd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "daemon")
    assert machine.default_cache() == Path("/usr/sbin/.cache/burstd")
    monkeypatch.setenv("SUDO_USER", "no-such-user")
    monkeypatch.setenv("HOME", "/home/me")
    assert machine.default_cache() == Path("/home/me/.cache/burstd")


def test_each_hindrance_is_a_sentence_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingTool, match=r"the program no-such-tool is not installed \(apt install no-such-tool\)"):
        machine.tool_path("no-such-tool")
    with pytest.raises(NoSpace, match="MiB are needed"):
        machine.need_space(tmp_path, 1 << 40)
    with pytest.raises(BuildFailed, match="choose one of bookworm"):
        rootfs.ensure_rootfs("woody", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot, match="run it with sudo"):
        rootfs.ensure_rootfs("bookworm", tmp_path)


def test_a_cached_root_needs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rootfs" / rootfs.rootfs_key("bookworm")
    path.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert rootfs.ensure_rootfs("bookworm", tmp_path).path == path
    assert rootfs.rootfs_key("bookworm") != rootfs.rootfs_key("bookworm", (*rootfs.PACKAGES, "more"))


def test_names_and_addresses_of_a_network() -> None:
    network = LabNetwork("lab", "10.9.0.0/24")
    assert (network.gateway, network.prefix_length, network.hub) == ("10.9.0.1", 24, "burstd-lab.hub")
    assert len(network.bridge) <= 15
    assert LabNetwork("lab", namespace=None).hub is None
    assert LabNetwork("lab", namespace=None).enter() == []
    for name in ("Lab", "a.b", "", "-a", "a/b"):
        with pytest.raises(NetworkFailed):
            LabNetwork(name)
    for host, address in (("hub", "10.9.0.2"), ("A", "10.9.0.2"), ("a", "10.8.0.2"), ("a", "10.9.0.1")):
        with pytest.raises(NetworkFailed):
            network.attach(host, address)


def test_processes_are_known_by_more_than_their_number(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    assert Process.load(file) is None
    file.write_text("{", encoding="utf-8")
    assert Process.load(file) is None
    Process.current().save(file)
    assert Process.load(file) == Process.current()
    me = Process.current()
    assert me.alive
    for other in (Process(me.pid, me.start + 1, me.boot), Process(me.pid, me.start, "another boot")):
        assert not other.alive
        other.kill()


def test_a_process_is_ended_kindly_or_not() -> None:
    stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", stubborn], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        stat = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        process = Process(child.pid, int(stat[19]), Process.current().boot)
        before = time.monotonic()
        process.kill(grace_s=0.3)
        assert time.monotonic() - before >= 0.3
        assert not process.alive  # a zombie, until we wait
        assert child.wait() == -9
    process.kill()


FAKE = """\
#!/bin/sh
echo "I: running apt-get update..."
for word; do target=$last; last=$word; done
[ ! -e "$target" ] || exit 9
mkdir "$target" || exit 1
echo x >> "$(dirname "$0")/runs"
{extra}
"""


def fake_builder(directory: Path, monkeypatch: pytest.MonkeyPatch, extra: str) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / "mmdebstrap"
    program.write_text(FAKE.format(extra=extra), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv(apt.MIRROR_VARIABLE, "http://mirror.example/debian")
    return directory / "runs"


@pytest.mark.boxes
def test_a_root_is_built_once_by_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = fake_builder(tmp_path / "bin", monkeypatch, "sleep 0.3")
    (tmp_path / "rootfs" / f"{rootfs.rootfs_key('trixie')}.unfinished" / "old").mkdir(parents=True)
    words = "import sys; from pathlib import Path; from providers.sandbox.boxes.images import rootfs"
    script = f"{words}; rootfs.ensure_rootfs('trixie', Path(sys.argv[1]))"
    builders = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(2)]
    steps: list[str] = []
    rootfs.ensure_rootfs("trixie", tmp_path, steps.append)
    assert [b.wait() for b in builders] == [0, 0]
    assert runs.read_text(encoding="utf-8") == "x\n"
    remaining = sorted(p.name for p in (tmp_path / "rootfs").iterdir())
    assert remaining == [rootfs.rootfs_key("trixie"), f"{rootfs.rootfs_key('trixie')}.lock"]


@pytest.mark.boxes
@pytest.mark.parametrize(
    ("said", "error"),
    [("E: Unable to fetch", BuildFailed), ("tar: x: No space left on device", NoSpace)],
)
def test_a_failed_build_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception]
) -> None:
    fake_builder(tmp_path / "bin", monkeypatch, f"echo '{said}' >&2; exit 1")
    with pytest.raises(error, match=r"could not be built: E: Unable|filled up"):
        rootfs.ensure_rootfs("trixie", tmp_path)
    assert [p.suffix for p in (tmp_path / "rootfs").iterdir()] == [".lock"]
