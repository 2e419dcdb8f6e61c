"""The script for machines, run by sh against a metadata service on loopback."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.azure import provider
from tests.lab.azure.imds import Guest, Imds

SCRIPT = Path(provider.__file__).with_name("watch.sh").read_text(encoding="ascii")
DEADLINE = 1_900_000_000


@pytest.fixture
def guest() -> Guest:
    return Guest("lab-gpu1-abc", "127.0.0.1")


@pytest.fixture
def imds(guest: Guest) -> Iterator[Imds]:
    made = Imds(("127.0.0.1", 0))
    made.guests[guest.address] = guest
    yield made
    made.close()


def run(url: str, path: str) -> str:
    words = {"PATH": path, "BURSTD_IMDS": url, "http_proxy": "http://127.0.0.1:9", "TZ": "Asia/Tokyo"}
    done = subprocess.run(["/bin/sh", "-c", SCRIPT], env=words, timeout=60, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def heard(imds: Imds) -> str:
    return run(f"http://127.0.0.1:{imds.port}", "/usr/bin:/bin")


def test_it_says_nothing_until_the_machine_is_taken_back(imds: Imds, guest: Guest) -> None:
    assert heard(imds) == ""
    guest.announce("Freeze", DEADLINE)
    guest.announce("Preempt", DEADLINE, whose="lab-gpu2-xyz")
    guest.announce("Preempt", DEADLINE, status="Completed")
    assert heard(imds) == ""
    guest.announce("Preempt", DEADLINE, whose="LAB-GPU1-ABC")
    assert heard(imds) == f"interruption {DEADLINE}\n"


def test_one_that_has_begun_says_no_time(imds: Imds, guest: Guest) -> None:
    guest.announce("Preempt", None, status="Started")
    word, end = heard(imds).split()
    assert word == "interruption"
    assert 0 <= int(end) - time.time() <= 31


@pytest.mark.parametrize("events", [[{"EventType": "Preempt"}], [7], {"a": 1}, None])
def test_what_it_cannot_read_is_no_notice(imds: Imds, guest: Guest, events: list[dict[str, object]]) -> None:
    guest.events = events
    assert heard(imds) == ""


def test_where_nobody_answers_there_is_no_notice(tmp_path: Path) -> None:
    assert run("http://127.0.0.1:9", "/usr/bin:/bin") == ""
    assert run("http://127.0.0.1:9", str(tmp_path)) == "", "nor without python3"


def test_it_is_plain_sh(tmp_path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    file = tmp_path / "watch.sh"
    file.write_text(f"#!/bin/sh\n{SCRIPT}", encoding="ascii")
    subprocess.run([program, "-s", "sh", str(file)], check=True)
