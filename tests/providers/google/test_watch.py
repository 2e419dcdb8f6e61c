"""The script for Spot VMs, run by sh against a metadata service on loopback."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from providers.google import provider
from tests.lab.google.metadata import Metadata

SCRIPT = Path(provider.__file__).with_name("watch.sh").read_text(encoding="ascii")
TOOLS = ("cat", "date", "mkdir", "mv")


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata(("127.0.0.1", 0))
    yield made
    made.close()


@pytest.fixture(params=["curl", "python3"])
def run(request: pytest.FixtureRequest, metadata: Metadata, tmp_path: Path) -> Callable[[], str]:
    """On a machine that has these programs and no others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (*TOOLS, request.param):
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found, name
        (programs / name).symlink_to(found)
    words = {
        "PATH": str(programs), "BURSTD_METADATA": metadata.url, "http_proxy": "http://127.0.0.1:9",
        "BURSTD_PREEMPTED": str(tmp_path / "run" / "burstd" / "preempted"),
    }  # fmt: skip

    def once() -> str:
        done = subprocess.run(
            ["/bin/sh", "-c", SCRIPT], env=words, timeout=60, check=False, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return once


def test_the_end_is_counted_from_the_first_sight_of_the_notice(metadata: Metadata, run: Callable[[], str]) -> None:
    assert run() == ""
    metadata.preempted.add("127.0.0.1")
    before = time.time()
    first = run()
    word, end = first.split()
    assert word == "interruption"
    assert before + 29 <= int(end) <= time.time() + 30
    assert run() == first
    assert metadata.asked == 3


def test_it_says_nothing_where_nobody_answers(metadata: Metadata, run: Callable[[], str]) -> None:
    metadata.close()
    assert run() == ""


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    said = subprocess.run(["shellcheck", "-s", "sh", "-"], input=SCRIPT, capture_output=True, text=True, check=False)
    assert said.stdout == ""
