"""What a release is made of, in dist/: wheel, source, what both need by hash, CycloneDX of all of it, and SHA256SUMS.

``make release``. The same commit gives the same bytes: times are the commit's, and what is installed for the list of
components is of config/requirements.txt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from providers.sandbox.boxes.images.rootfs import file_lock
from providers.sandbox.boxes.machine import default_cache
from tests.lab import programs, requirements

SUMS = "SHA256SUMS"
_VENDORED = re.compile(
    r".*\. (?P<licence>[^.]+) licence, see .*npm\s+package `(?P<name>\S+)` (?P<version>[\d.]+),", re.DOTALL
)


class NotReleasable(Exception):
    """The checkout is not what a commit says; the message names the remedy."""


def build(project: Path, dist: Path, epoch: int) -> list[Path]:
    """Wheel and source of a checkout; ``epoch`` (s) is the time that their files bear."""
    words = [sys.executable, "-m", "hatchling", "build", "--directory", str(dist)]
    subprocess.run(
        words, cwd=project, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, stdout=subprocess.DEVNULL, check=True
    )
    return sorted(dist.glob("burstd-*"))


def components(python: Path, epoch: int) -> dict[str, Any]:
    """CycloneDX 1.6 of burstd: what the interpreter's environment has, and what others wrote that burstd brings."""
    words = ["environment", "--pyproject", "pyproject.toml", "--output-reproducible", "--no-validate"]
    said = subprocess.run(
        [str(Path(sys.executable).with_name("cyclonedx-py")), *words, str(python)], cwd=programs.PROJECT,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    bom: dict[str, Any] = json.loads(said)
    root = next(d for d in bom["dependencies"] if d["ref"] == "root-component")
    for readme in sorted((programs.PROJECT / "burstd" / "vendor").glob("*/README.md")):
        found = _VENDORED.match(readme.read_text(encoding="utf-8"))
        if found is None:
            raise NotReleasable(f"{readme} does not say which npm package it is and what licence that has.")
        purl = f"pkg:npm/{found['name']}@{found['version']}"
        bom["components"].append(
            {
                "bom-ref": purl, "type": "library", "name": found["name"], "version": found["version"], "purl": purl,
                "licenses": [{"license": {"name": found["licence"]}}],
            }
        )  # fmt: skip
        root.setdefault("dependsOn", []).append(purl)
        bom["dependencies"].append({"ref": purl})
    return bom


def _environment() -> Path:
    """The interpreter of an environment with config/requirements.txt and nothing else, kept in the cache."""
    digest = hashlib.sha256(requirements.FILE.read_bytes() + sys.version.encode()).hexdigest()[:16]
    folder = default_cache() / f"requirements-{digest}"
    with file_lock(folder.with_suffix(".lock"), lambda: None):
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=False)
            pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-qq"]
            words = ["--disable-pip-version-check", "--require-hashes", "-r", str(requirements.FILE)]
            subprocess.run([*pip, *words], check=True)
            (folder / ".complete").touch()
    return folder / "bin" / "python"


def write_sums(dist: Path) -> None:
    """SHA256SUMS of all that is in the folder, as sha256sum checks it."""
    files = sorted(p for p in dist.iterdir() if p.name.startswith("burstd") and p.is_file())
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (dist / SUMS).write_text("".join(lines), encoding="utf-8")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=programs.PROJECT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def release(dist: Path) -> None:
    """Makes all of it. Packages that ``make deb`` has put there are in SHA256SUMS too. Raises NotReleasable."""
    if changed := _git("status", "--porcelain"):
        raise NotReleasable(f"The checkout differs from its commit; commit or remove:\n{changed}")
    epoch = int(_git("log", "-1", "--format=%ct"))
    dist.mkdir(exist_ok=True)
    wheel = next(p for p in build(programs.PROJECT, dist, epoch) if p.suffix == ".whl")
    stem = "-".join(wheel.name.split("-")[:2])
    shutil.copy(requirements.FILE, dist / f"{stem}.requirements.txt")
    said = json.dumps(components(_environment(), epoch), indent=1, sort_keys=True) + "\n"
    if fault := JsonStrictValidator(SchemaVersion.V1_6).validate_str(said):
        raise NotReleasable(f"The list of components is no CycloneDX: {fault}")
    (dist / f"{stem}.cdx.json").write_text(said, encoding="utf-8")
    write_sums(dist)


def main() -> int:
    """Makes it, and prints the sums."""
    dist = programs.PROJECT / "dist"
    try:
        release(dist)
    except NotReleasable as error:
        print(f"burstd: {error}", file=sys.stderr)
        return 1
    print((dist / SUMS).read_text(encoding="utf-8"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
