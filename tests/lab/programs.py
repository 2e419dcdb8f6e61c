"""burstd's wheel, and what it needs, for the boxes of tests and the demo. Built when missing, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.boxes.images import apt
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs, file_lock
from providers.sandbox.boxes.machine import default_cache, remove_tree
from tests.lab import slurm_files

PROJECT = Path(__file__).parents[2]
PREFIX = "/opt/burstd"
"""Where the virtual environment is in a head box."""
EXTRAS = ("aws", "azure", "google", "openshift", "openstack", "postgresql", "s3", "swift")
"""All clouds, stores and databases. The others need libraries that pip does not bring."""
_UNUSED_S = 7 * 86400
PARTS = ("burstd", "policies", "providers", "staging", "config", "systemd", "pyproject.toml", "README.md", "LICENSE")


def wheel() -> Path:
    """The wheel of this checkout, built anew when a file that goes into it has changed."""
    digest = hashlib.sha256()
    for part in PARTS:
        top = PROJECT / part
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(PROJECT)}\0".encode() + file.read_bytes())
    folder = default_cache() / "wheels" / digest.hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_suffix(".lock"), lambda: None):
        built = sorted(folder.glob("*.whl"))
        if not built:
            words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            done = subprocess.run(
                [*words, "--wheel-dir", str(folder), str(PROJECT)], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise RuntimeError(f"the wheel could not be built: {done.stderr.strip()[-800:]}")
            built = sorted(folder.glob("*.whl"))
    return built[0]


def declared_requirements() -> list[str]:
    """What pyproject.toml says that burstd and its EXTRAS need."""
    with (PROJECT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]


def needs(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """A layer with a virtual environment for all that burstd and its EXTRAS need, and not burstd itself."""
    wanted = (PROJECT / "config" / "requirements.txt").read_text(encoding="utf-8")
    script = f"""set -e
cat >/tmp/requirements.txt <<'END'
{wanted}
END
python3 -m venv {PREFIX}
cd /tmp
{PREFIX}/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes -r requirements.txt
rm -rf /tmp/* /root/.cache
"""
    return ensure_layer(rootfs, script, ["sh", "-c", script], progress=progress)


def installed(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> tuple[Path, Path]:
    """The layers of a head with this checkout's burstd, the topmost first: docs/admin.md's installation, made once."""
    built, below = wheel(), needs(rootfs, progress)
    inside = f"/tmp/{built.name}"  # noqa: S108 - a path in the box
    pip = [f"{PREFIX}/bin/pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", inside]
    key, binds = f"burstd {built.parent.name}", [BindMount(built, inside)]
    layer = ensure_layer(rootfs, key, pip, binds, progress=progress, over=[below])
    os.utime(layer)
    for other in layer.parent.glob("*"):
        # Each change of burstd makes another one.
        if (other / f".{PREFIX}/bin/burstd").exists() and time.time() - other.stat().st_mtime > _UNUSED_S:
            remove_tree(other)
    return layer, below


def site_image(rootfs: Rootfs, users: Mapping[str, int] = slurm_files.USERS) -> Path:
    """What a site adds to a plain Debian before it calls it a node image: its users, and folders for Slurm."""
    script = slurm_files.prepare(users)
    return ensure_layer(rootfs, " ".join(script), script)


def image_packages(rootfs: Rootfs, packages: Sequence[str]) -> Path:
    """A layer with more Debian packages, for the image of nodes."""
    words = " ".join(packages)
    script = f"""{_apt(rootfs)}
apt-get -q update
apt-get -q install -y --no-install-recommends {words}
apt-get clean
rm -rf /tmp/* /var/lib/apt/lists/*
"""
    return ensure_layer(rootfs, f"packages {words}", ["sh", "-c", script])


def node_image(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """What config/images/node.sh makes of a Debian that virtual machines are to boot from."""
    recipe = (PROJECT / "config" / "images" / "node.sh").read_text(encoding="utf-8")
    script = f"{_apt(rootfs)}\nsh /opt/images/node.sh machine\nrm -rf /tmp/*\n"
    bind = BindMount(PROJECT / "config" / "images", "/opt/images")
    return ensure_layer(rootfs, recipe + script, ["sh", "-c", script], binds=[bind], progress=progress)


def _apt(rootfs: Rootfs) -> str:
    """The beginning of a script that installs packages from this machine's mirror."""
    settings = "\n".join(apt.settings())
    return f"""set -e
cat >/tmp/apt.conf <<'END'
{settings}
Dir::Etc::sourcelist "/tmp/sources.list";
APT::Sandbox::User "root";
END
echo 'deb {apt.mirror()} {rootfs.suite} main' >/tmp/sources.list
export APT_CONFIG=/tmp/apt.conf DEBIAN_FRONTEND=noninteractive"""
