"""A node whose slurmd imitates records of others is found out and named; all others are read as they are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.slurm.node import Node
from burstd.planner.isolation import node_subject as subject
from burstd.reconciler.machines.progress import ProgressTable
from burstd.reconciler.observer import Observer
from burstd.reconciler.quarantine import Quarantine
from burstd.slurm.commands.nodes import NodeReader
from burstd.slurm.commands.parsing import parse_mebibytes
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import expand
from burstd.slurm.scheduler import CommandScheduler
from tests.security.slurm_text import VERSIONS, hostile, real

FAKE = (
    "Linux State=DOWN RealMemory=7\nNodeName={} Arch=x86_64 OS=Linux RealMemory=9000 State=IDLE Partitions=onprem\n x="
)


class Slurm:
    """slurmctld with nodes n00, n01 ... as op1 of a real one; some say this as their OS."""

    def __init__(self, version: str, count: int, said: Mapping[str, str]) -> None:
        self.version = version
        self.texts = {name: self._record(name, said.get(name, "Linux")) for name in (f"n{n:02}" for n in range(count))}
        self.asked: list[Sequence[str]] = []

    def _record(self, name: str, said: str) -> str:
        record = re.split(r"^(?=NodeName=op1)", real(self.version, "nodes", {}), flags=re.MULTILINE)[1]
        return record.replace("NodeName=op1", f"NodeName={name}", 1).replace("@OS@", said)

    def run(self, argv: Sequence[str], env: Mapping[str, str], _limit_s: float) -> subprocess.CompletedProcess[str]:
        self.asked.append(argv)
        if argv[0] == "sinfo":
            assert env["SINFO_FORMAT"] == "%N"
            return subprocess.CompletedProcess(argv, 0, "".join(f"{name}\n" for name in self.texts), "")
        if argv[-1] == "config":
            return subprocess.CompletedProcess(argv, 0, f"SLURM_VERSION = {self.version}.1\n", "")
        if argv[0] == "squeue" or (argv[-1] != "node" and argv[-2] != "node"):
            return subprocess.CompletedProcess(argv, 0, "", "")
        names = list(self.texts) if argv[-1] == "node" else expand(argv[-1])
        if any(name not in self.texts for name in names):
            return subprocess.CompletedProcess(argv, 1, "", "Node ghost not found")
        return subprocess.CompletedProcess(argv, 0, "".join(self.texts[name] for name in names), "")

    def reader(self) -> NodeReader:
        return NodeReader(SlurmCommands(self.run), lambda wall: wall)


def doubted(found: Sequence[Node]) -> list[str]:
    return [node.name for node in found if node.unreliable_because]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("whom", ["n03", "n30", "ghost"])
def test_the_imitator_is_named_whomever_it_imitates(version: str, whom: str) -> None:
    plain = Slurm(version, 40, {}).reader().read_all()
    slurm = Slurm(version, 40, {"n17": FAKE.format(whom), "n20": "Linux 6.1 NodeName=n03 State=DOWN"})
    reader = slurm.reader()
    found = reader.read_all()
    assert doubted(found) == ["n17"]
    assert [node for node in found if node.name not in ("n17", "n20")] == [
        node for node in plain if node.name not in ("n17", "n20")
    ]
    by_name, was = {node.name: node for node in found}, {node.name: node for node in plain}
    assert replace(by_name["n20"], version="") == replace(was["n20"], version="")
    # slurmctld's own words about the imitator are read all the same.
    evil, honest = by_name["n17"], was["n17"]
    for name in ("state", "flags", "partitions", "memory_mib", "boot_time", "last_busy"):
        assert getattr(evil, name) == getattr(honest, name)
    # From then on it is asked for alone, and as soon as it is gone nothing is out of the ordinary.
    slurm.asked.clear()
    assert doubted(reader.read_all()) == ["n17"]
    assert len(slurm.asked) == 4
    slurm.texts["n17"] = slurm.texts["n16"].replace("n16", "n17")
    assert doubted(reader.read_all()) == []
    slurm.asked.clear()
    assert len(reader.read_all()) == 40
    assert len(slurm.asked) == 1


def test_honest_nodes_cost_one_command() -> None:
    slurm = Slurm("24.11", 5, {})
    reader = slurm.reader()
    reader.read_all()
    slurm.asked.clear()
    assert [node.name for node in reader.read_all()] == [f"n{n:02}" for n in range(5)]
    assert len(slurm.asked) == 1


def test_many_imitators_and_one_that_goes_away() -> None:
    said = {f"n{n:02}": FAKE.format(f"n{n + 1:02}") for n in range(0, 20, 4)}
    slurm = Slurm("24.11", 21, said)
    assert doubted(slurm.reader().read_all()) == sorted(said)
    assert doubted(slurm.reader().read_named(["n00", "n01", "gone", "n02"])) == ["n00"]
    assert [node.name for node in slurm.reader().read_named(["n01", "gone", "n02"])] == ["n01", "n02"]


@given(os=hostile, version=st.sampled_from(VERSIONS), tail=hostile)
def test_whatever_a_slurmd_says_other_nodes_are_read_as_they_are(os: str, version: str, tail: str) -> None:
    plain = Slurm(version, 4, {}).reader().read_all()
    for said in (os, FAKE.format("n03") + tail, f"{os}\nNodeName={tail}"):
        found = Slurm(version, 4, {"n02": said}).reader().read_all()
        assert [node for node in found if node.name != "n02"] == [node for node in plain if node.name != "n02"]
        assert [node.name for node in found] == [node.name for node in plain]


def test_one_node_that_cannot_be_read_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def memory(value: str) -> int:
        if value == "1001":
            raise ValueError("no memory")
        return parse_mebibytes(value)

    monkeypatch.setattr("burstd.slurm.commands.nodes.parse_mebibytes", memory)
    slurm = Slurm("24.11", 3, {})
    slurm.texts["n01"] = slurm.texts["n01"].replace("RealMemory=1000", "RealMemory=1001")
    found = slurm.reader().read_all()
    assert [(node.name, node.memory_mib, bool(node.unreliable_because)) for node in found] == [
        ("n00", 1000, False), ("n01", 0, True), ("n02", 1000, False),
    ]  # fmt: skip


class Clock:
    """Stands still."""

    def now(self) -> float:
        return 2e9

    wall = now


def test_bursting_goes_on_and_an_alarm_names_the_node() -> None:
    holds = Quarantine(Clock())
    slurm = Slurm("24.11", 4, {"n02": FAKE.format("n01")})
    scheduler = CommandScheduler(SlurmCommands(slurm.run))
    context = SimpleNamespace(providers={}, scheduler=scheduler, clock=Clock(), quarantine=holds)
    observer = Observer(context, ProgressTable())  # type: ignore[arg-type]
    for _ in range(2):
        seen = observer.read_slurm()
        assert hasattr(seen, "nodes"), seen
        assert set(seen.nodes) == {"n00", "n01", "n02", "n03"}
    assert subject("n02") in holds
    (alarm,) = holds.alarms()
    assert "n02" in alarm
    assert "power that node down" in alarm
