"""burstd's Debian package, built in a box of each Debian release: ``python -m tests.lab.deb --release bookworm``.

Kept in the cache, and built anew when a file that goes into it has changed. The command copies it to dist/.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from burstd.db.migrate import SCHEMA_VERSION
from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import SUITES, ensure_rootfs
from tests.lab import programs

_PARTS = ("debian", "docs", "config", "systemd", "README.md", "CHANGELOG.md")
_BUILT = "/var/lib/burstd-deb"
_AR, _AR_HEADER = b"!<arch>\n", 60
_TOOLS = ("debhelper", "help2man", "zstd")
_BUILD = f"""set -e
mkdir /tmp/burstd {_BUILT}
cd /tmp/burstd
cp -a {" ".join(f"/mnt/{part}" for part in _PARTS)} .
debian/rules binary
mv ../burstd_*.deb {_BUILT}
rm -rf /tmp/*
"""

_MIGRATION = """from alembic import op

revision, down_revision = "{schema}", "{before}"


def upgrade():
    op.execute("CREATE TABLE IF NOT EXISTS upgraded (at TIMESTAMPTZ)")
    op.execute("INSERT INTO upgraded VALUES (now())")
"""


def ensure_deb(release: str, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """The package for a Debian release. Raises SandboxError."""
    rootfs = ensure_rootfs(release, progress=progress)
    layers = [programs.image_packages(rootfs, _TOOLS), *programs.installed(rootfs, progress)]
    digest = hashlib.sha256(_BUILD.encode())
    for part in _PARTS:
        top = programs.PROJECT / part
        for file in [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file()):
            digest.update(f"{file.relative_to(programs.PROJECT)}\0".encode() + file.read_bytes())
    binds = [BindMount(programs.PROJECT / part, f"/mnt/{part}") for part in _PARTS]
    layer = ensure_layer(rootfs, f"deb {digest.hexdigest()}", ["sh", "-c", _BUILD], binds, None, progress, layers)
    return next((layer / _BUILT.lstrip("/")).glob("*.deb"))


def with_version(deb: Path, version: str, made: Path) -> Path:
    """The same package under another version, written to ``made``: an upgrade of which only this file is new."""
    tar = subprocess.run(["dpkg-deb", "--ctrl-tarfile", deb], capture_output=True, check=True).stdout
    control = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(tar)) as old, tarfile.open(fileobj=control, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            content = file.read() if file is not None else b""
            if member.name == "./control":
                content = re.sub(rb"(?m)^Version: .*$", f"Version: {version}".encode(), content)
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    with deb.open("rb") as source, made.open("wb") as out:
        out.write(source.read(len(_AR)))
        while header := source.read(_AR_HEADER):
            content = source.read(int(header[48:58]))
            source.read(len(content) % 2)
            if header.startswith(b"control.tar"):
                content = control.getvalue()
                header = f"{'control.tar':16}".encode() + header[16:48] + f"{len(content):<10}".encode() + header[58:]
            out.write(header + content + b"\n" * (len(content) % 2))
    return made


def with_migration(deb: Path, version: str, schema: str, made: Path) -> Path:
    """The package of a next version, whose one migration counts how often it runs (table ``upgraded``), in ``made``."""
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        folder = Path(name)
        subprocess.run(["dpkg-deb", "--raw-extract", deb, folder], check=True)
        (packages,) = folder.glob("opt/burstd/lib/python3*/site-packages")
        (metadata,) = packages.glob("burstd-*.dist-info/METADATA")
        migrate = packages / "burstd/db/migrate.py"
        for file in (folder / "DEBIAN/control", metadata):
            file.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", file.read_text()), encoding="utf-8")
        migrate.write_text(migrate.read_text().replace(f'"{SCHEMA_VERSION}"', f'"{schema}"'), encoding="utf-8")
        text = _MIGRATION.format(schema=schema, before=SCHEMA_VERSION)
        (migrate.parent / "migrations/versions" / f"r{schema}_next.py").write_text(text, encoding="utf-8")
        subprocess.run(["dpkg-deb", "-Zzstd", "-z1", "--build", folder, made], check=True, capture_output=True)
    return made


def main() -> int:
    """Builds it, and says where it is."""
    parser = argparse.ArgumentParser(prog="make deb")
    parser.add_argument("--release", default="bookworm", choices=SUITES)
    release = parser.parse_args().release
    try:
        built = ensure_deb(release, lambda step: print(f"burstd: {step}", file=sys.stderr, flush=True))
    except SandboxError as error:
        print(f"burstd: {error}", file=sys.stderr)
        return 1
    dist = programs.PROJECT / "dist"
    dist.mkdir(exist_ok=True)
    print(shutil.copy(built, dist))
    return 0


if __name__ == "__main__":
    sys.exit(main())
