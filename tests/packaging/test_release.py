"""A release: its files are the same wherever they are built, its requirements are those that burstd is tested with."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lab import programs, release, requirements

_CONFIG = programs.PROJECT / "config"


def _pins(text: str) -> dict[str, str]:
    return {canonicalize_name(n): v for n, v in re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE)}


def test_what_a_release_requires_is_what_is_tested() -> None:
    text = requirements.FILE.read_text(encoding="utf-8")
    required = _pins(text)
    assert required.items() <= _pins((_CONFIG / "constraints.txt").read_text(encoding="utf-8")).items()
    declared = [Requirement(line) for line in programs.declared_requirements()]
    assert {canonicalize_name(r.name) for r in declared} <= required.keys()
    assert all(required[canonicalize_name(r.name)] in r.specifier for r in declared)
    for entry in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry, re.MULTILINE), entry


def test_hashes_are_of_wheels_for_linux_or_of_the_source() -> None:
    lock = """
[[packages]]
name = "fast"
version = "1.0"
sdist = { url = "https://example.org/fast-1.0.tar.gz", hashes = { sha256 = "source" } }
wheels = [
  { url = "https://example.org/fast-1.0-cp312-cp312-manylinux_2_28_aarch64.whl", hashes = { sha256 = "b" } },
  { url = "https://example.org/fast-1.0-cp311-abi3-manylinux2014_x86_64.whl", hashes = { sha256 = "a" } },
  { url = "https://example.org/fast-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", hashes = { sha256 = "too-old" } },
  { url = "https://example.org/fast-1.0-cp312-cp312-macosx_11_0_arm64.whl", hashes = { sha256 = "mac" } },
]
[[packages]]
name = "plain"
version = "2.0"
marker = "python_full_version < '3.13'"
sdist = { url = "https://example.org/plain-2.0.tar.gz", hashes = { sha256 = "c" } }
[[packages]]
name = "other-system"
version = "3.0"
marker = "sys_platform == 'win32'"
sdist = { url = "https://example.org/other-system-3.0.tar.gz", hashes = { sha256 = "d" } }
"""
    lines = requirements.requirements(tomllib.loads(lock)).splitlines()
    assert lines[2:] == [
        "fast==1.0 \\",
        "    --hash=sha256:a \\",
        "    --hash=sha256:b",
        "plain==2.0 ; python_full_version < '3.13' \\",
        "    --hash=sha256:c",
    ]


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """In folders of other names, with other times and modes."""
    made = []
    for place, mode in (("one", 0o644), ("two/three", 0o600)):
        project = tmp_path / place
        for part in (*programs.PARTS, "docs", ".gitignore"):
            top = programs.PROJECT / part
            if top.is_dir():
                shutil.copytree(
                    top, project / part, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copyfile
                )
            else:
                project.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(top, project / part)
        for file in project.rglob("*"):
            if file.is_file():
                file.chmod(mode)
        made.append(release.build(project, project / "dist", 1_700_000_000))
    first, second = ([(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in each] for each in made)
    assert first == second
    assert [name.rpartition(".")[2] for name, _ in first] == ["whl", "gz"]


@pytest.mark.slow
def test_the_list_of_components_has_all_that_others_wrote() -> None:
    bom = release.components(Path(sys.executable), 1_700_000_000)
    assert (bom["bomFormat"], bom["specVersion"], bom["metadata"]["component"]["name"]) == (
        "CycloneDX",
        "1.6",
        "burstd",
    )
    found: dict[str, Any] = {canonicalize_name(c["name"]): c for c in bom["components"]}
    assert {canonicalize_name(Requirement(r).name) for r in programs.declared_requirements()} <= found.keys()
    assert found["uplot"]["purl"].startswith("pkg:npm/uplot@1.")
    assert found["htmx-org"]["licenses"] == [{"license": {"name": "Zero-Clause BSD"}}]
    needed = next(d["dependsOn"] for d in bom["dependencies"] if d["ref"] == "root-component")
    assert {found["uplot"]["bom-ref"], found["paramiko"]["bom-ref"]} <= set(needed)


def test_sums_are_what_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "burstd-1.whl").write_bytes(b"wheel")
    (tmp_path / "other").write_bytes(b"")
    release.write_sums(tmp_path)
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert (tmp_path / "SHA256SUMS").read_text(encoding="utf-8") == f"{digest}  burstd-1.whl\n"
