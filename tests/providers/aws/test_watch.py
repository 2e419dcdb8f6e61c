"""The script for machines, run by sh against a metadata service on loopback."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.aws import provider
from tests.lab.aws.imds import Guest, Imds

SCRIPT = Path(provider.__file__).with_name("watch.sh").read_text(encoding="ascii")
DEADLINE = 1_900_000_000
TOOLS = ("cat", "date", "mkdir", "mv", "sed")


class Machine:
    """One that has these programs and no others, with a metadata service of its own."""

    def __init__(self, folder: Path, programs: tuple[str, ...]) -> None:
        self.now = 1000.0
        self.imds = Imds(("127.0.0.1", 0), lambda: self.now)
        self.guest = Guest("i-1", "127.0.0.1", "c5.large", "us-east-1a", b"")
        self.imds.add(self.guest)
        self.token = folder / "run" / "burstd" / "imds-token"
        self.url = f"http://127.0.0.1:{self.imds.port}"
        self._programs = folder / "bin"
        self._programs.mkdir()
        for name in programs:
            found = shutil.which(name, path="/usr/bin:/bin")
            assert found, name
            (self._programs / name).symlink_to(found)

    def run(self) -> str:
        words = {"PATH": str(self._programs), "BURSTD_IMDS": self.url, "BURSTD_IMDS_TOKEN": str(self.token)}
        words |= {"http_proxy": "http://127.0.0.1:9", "TZ": "Asia/Tokyo"}
        done = subprocess.run(
            ["/bin/sh", "-c", SCRIPT], env=words, timeout=60, check=False, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def tokens(self) -> int:
        return len(self.imds._tokens)


@pytest.fixture(params=["curl", "python3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path, (*TOOLS, request.param))
    yield made
    made.imds.close()


def test_it_says_nothing_until_there_is_a_notice(machine: Machine) -> None:
    assert machine.run() == ""
    machine.imds.notice("i-1", "rebalance", None)
    assert machine.run() == "rebalance\n"
    machine.imds.notice("i-1", "interruption", DEADLINE)
    assert machine.run() == f"interruption {DEADLINE}\n"


@pytest.mark.slow
def test_one_token_serves_many_runs_and_is_nobody_elses_business(machine: Machine) -> None:
    for _ in range(3):
        machine.run()
    assert machine.tokens() == 1
    assert machine.token.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in machine.token.parent.iterdir()] == ["imds-token"]


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["expired", "garbage", "empty"])
def test_a_token_that_is_no_good_is_renewed_at_once(machine: Machine, kept: str) -> None:
    machine.run()
    machine.imds.notice("i-1", "rebalance", None)
    if kept == "expired":
        machine.now += 6 * 3600 + 1
    else:
        machine.token.write_text("garbage\n" if kept == "garbage" else "", encoding="ascii")
    assert machine.run() == "rebalance\n"
    assert machine.tokens() == 2


def test_a_token_that_cannot_be_kept_serves_all_the_same(machine: Machine) -> None:
    machine.token.parent.parent.write_text("a file where a folder should be", encoding="ascii")
    machine.imds.notice("i-1", "interruption", DEADLINE)
    assert machine.run() == f"interruption {DEADLINE}\n"


@pytest.mark.parametrize("said", ['{"action": "stop"}', '{"action":"hibernate","time":"soon"}'])
def test_an_end_without_a_time_is_two_minutes_off(machine: Machine, said: str) -> None:
    machine.guest.notices["spot/instance-action"] = said
    before = int(time.time())
    word, end = machine.run().split()
    assert word == "interruption"
    assert before + 120 <= int(end) <= time.time() + 120


def test_no_service_is_no_notice(machine: Machine) -> None:
    machine.imds.notice("i-1", "rebalance", None)
    machine.run()
    machine.imds.close()
    try:
        assert machine.run() == ""
        machine.token.unlink()
        assert machine.run() == ""
    finally:
        machine.imds = Imds(("127.0.0.1", 0))


def test_without_any_program_that_could_ask_it_is_silent(tmp_path: Path) -> None:
    bare = Machine(tmp_path, TOOLS)
    bare.imds.notice("i-1", "rebalance", None)
    assert bare.run() == ""
    bare.imds.close()
