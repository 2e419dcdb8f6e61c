"""Writes config/requirements.txt: what burstd and its extras need, in the versions of config/constraints.txt, with the
SHA-256 of each file that pip may take on Linux. ``make requirements``, after each change of either.

uv resolves for all Pythons at once. It lists files for other systems too, which would be two thirds of the lines.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from tests.lab import programs

FILE = programs.PROJECT / "config" / "requirements.txt"
_CONSTRAINTS = programs.PROJECT / "config" / "constraints.txt"
_PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
_MACHINES = ("x86_64", "aarch64")
_GLIBC_MINORS = range(5, 42)
"""manylinux_2_41 is Debian 13's C library; pip takes what its own machine can run of them."""
_HEAD = """# What burstd and all its extras need: pip install --require-hashes -r requirements.txt
# Made by `make requirements`: the versions of constraints.txt, and the SHA-256 of their files for Linux.
"""


def _tags() -> Iterator[Tag]:
    """What pip takes on a Linux of burstd's Pythons."""
    for python, machine in product(_PYTHONS, _MACHINES):
        platforms = [f"manylinux_2_{minor}_{machine}" for minor in _GLIBC_MINORS]
        platforms += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
        yield from cpython_tags(python, platforms=platforms)
        yield from compatible_tags(python, platforms=platforms)


def _needed(package: Mapping[str, Any]) -> bool:
    marker = Marker(package.get("marker", "python_version > '3'"))
    return any(
        marker.evaluate({"python_version": f"3.{m}", "python_full_version": f"3.{m}.0", "sys_platform": "linux"})
        for _, m in _PYTHONS
    )


def _hashes(package: Mapping[str, Any], tags: set[Tag]) -> list[str]:
    """Of the wheels that fit, or of the source where none does: pip builds nothing that it need not."""
    wheels = [w for w in package.get("wheels", ()) if parse_wheel_filename(PurePosixPath(w["url"]).name)[3] & tags]
    return sorted(w["hashes"]["sha256"] for w in wheels or [package["sdist"]])


def requirements(lock: Mapping[str, Any]) -> str:
    """The file's text, from a lock as PEP 751 has it."""
    tags, lines = set(_tags()), []
    for package in lock["packages"]:
        if _needed(package):
            marker = f" ; {package['marker']}" if "marker" in package else ""
            lines.append(f"{package['name']}=={package['version']}{marker}")
            lines[-1:] = [" \\\n    ".join([lines[-1], *(f"--hash=sha256:{h}" for h in _hashes(package, tags))])]
    return _HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Writes the file."""
    wanted = "\n".join(programs.declared_requirements())
    words = ["--quiet", "pip", "compile", "-", "-c", str(_CONSTRAINTS), "--universal", "--python-version", "3.11"]
    lock = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), *words, "--format", "pylock.toml"],
        input=wanted, stdout=subprocess.PIPE, text=True, check=True,
    ).stdout  # fmt: skip
    FILE.write_text(requirements(tomllib.loads(lock)), encoding="utf-8")


if __name__ == "__main__":
    main()
