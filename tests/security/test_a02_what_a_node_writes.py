"""A node's root writes what the job's lines name, and nothing else: every lie of a hostile agent, with a real hand."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.slurm.shape import Shape
from burstd.domain.staging import StageState, Staging
from burstd.node.agent import NodeAgent
from burstd.slurm.commands.run import Commands
from burstd.staging.controller.tasks import Collected, Ended, StageFailed, Task
from burstd.staging.directives.parser import parse
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import Homeward
from burstd.staging.movement.progress import Meter
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.content_store.index import Index
from burstd.transfer.privsep.client import Account, account, hand_of
from burstd.transfer.privsep.object_workers import object_hand
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.upload import Sender
from tests.doubles.hostile_agent import HARMLESS, REFUSED, Forger, HostileNode, Lie, link
from tests.transfer.ground import below, ground, own, root_only
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
NAME = "nobody"
OFFER = Offer("sky", "r", "z", "small", spot=False, shape=Shape(1, 1), price=Decimal(1))


@dataclass
class Home:
    """A user's home, with what is his own in it, and one job of his on hostile nodes."""

    place: Path
    who: Account = field(default_factory=lambda: account(NAME))
    store: MemoryStager = field(default_factory=MemoryStager)
    lines: tuple[tuple[str, str], ...] = ((".", "results"),)

    def __post_init__(self) -> None:
        for name in (".ssh/authorized_keys", ".bashrc", "secret", "results/kept"):
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("own")
            path.chmod(0o600)
        own(self.place, self.who.uid)
        self.before = self.own()

    def own(self) -> dict[str, Any]:
        """All that the user has himself, outside of the destination."""
        return {
            str(path.relative_to(self.place)): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_nlink)
            for path in below(self.place)
            if path.relative_to(self.place).parts[0] not in ("results", "slurm-7.out") and not path.is_dir()
        }

    def brought(self) -> dict[str, os.stat_result]:
        """What is in the destination and was not there before."""
        top = self.place / "results"
        ours = {"kept", "burst-7.json", "burst-7.PARTIAL"}
        return {str(p.relative_to(top)): p.lstat() for p in below(top) if p.name not in ours}

    def job(self) -> Staging:
        text = "".join(f"#BURST stage_out {what} to {self.place}/{where}\n" for what, where in self.lines)
        directives, wrong = parse(f"#!/bin/sh\n{text}")
        assert not wrong
        return Staging(
            "7", NAME, self.who.uid, self.who.gid, directives, StageState.BRINGING, 0, 0, nodes=("n1", "n2"),
            job_state="COMPLETED", exit_code="0:0", work_dir="/",
        )  # fmt: skip

    def collect(self, lie: Lie, node: str = "n1") -> Collected:
        claim = Claim("c", "x", "gpu", node, OFFER, Cause.DEMAND, ClaimState.OPEN, 0.0, 0.0, address="10.0.0.9")
        task = Task(self.job(), Meter("7", "collect"))
        return self.transfers(lie).collect(task, claim, [f"{self.place}/slurm-7.out", "relative"])

    def bring(self, **found: Collected) -> dict[str, Any]:
        outputs = {f"{node}/{name}": tree for node, one in found.items() for name, tree in one.trees.items()}
        job = replace(self.job(), outputs=outputs)
        self.transfers(lambda _: []).bring(Task(job, Meter("7", "home")), Ended())
        said: dict[str, Any] = json.loads((self.place / "results/burst-7.json").read_text())
        return said

    def transfers(self, lie: Lie) -> HeadTransfers:
        index, limits = Index(None), Limits()
        folders = JobFolders(str(self.place), b"key")
        return HeadTransfers(
            commands=Commands(), stager=self.store, sender=Sender(index, self.store, limits),
            agent=NodeAgent(lambda _claim: HostileNode(self.store, lie)),
            homeward=Homeward(self.store, limits, lambda *_: None, folders), hand=hand_of, objects=object_hand,
            folders=folders, cache_dir=str(self.place), datasets=lambda _name: None,
        )  # fmt: skip


@pytest.fixture
def home() -> Iterator[Home]:
    with ground(account(NAME).uid) as place:
        yield Home(place)


@pytest.mark.parametrize("name", REFUSED)
def test_a_lie_fails_the_transfer_and_writes_nothing_else(home: Home, name: str) -> None:
    with pytest.raises(StageFailed, match=r"^(n1: |memory: |out/7/n1/)") as caught:
        home.bring(n1=home.collect(REFUSED[name]))
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()
    assert home.own() == home.before
    assert (home.place / "results/kept").read_text() == "own"
    assert (home.place / "results/kept").stat().st_nlink == 1
    assert set(home.brought()) <= {"a", "b"}
    assert not any(p.is_symlink() for p in below(home.place) if p.name != "a")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_a_lie_stays_away(home: Home, name: str) -> None:
    said = home.bring(n1=home.collect(HARMLESS[name]))
    assert home.own() == home.before
    for facts in home.brought().values():
        assert not stat.S_IMODE(facts.st_mode) & 0o7000
        assert (facts.st_uid, facts.st_gid) == (home.who.uid, home.who.gid)
    links = [p for p in below(home.place) if p.is_symlink()]
    assert all((p.parent / p.readlink()).resolve().is_relative_to(home.place / "results") for p in links)
    if name.startswith("link"):
        assert any("was left out: it is a link that leads to" in warning for warning in said["warnings"])
    else:
        assert home.brought() or (home.place / "slurm-7.out").exists()
    assert len(json.dumps(said)) < 4 << 20
    assert all(warning.isprintable() for warning in said["warnings"])


def test_standard_output_goes_where_slurm_says_and_is_the_first_nodes(home: Home) -> None:
    def says(body: bytes) -> Lie:
        def lie(f: Forger) -> list[Any]:
            trees = [f.tree(f.file(".ssh", body), single=True) for _ in f.request["files"]]
            assert f.request["files"] == [f"{home.place}/slurm-7.out"]
            return [{"done": f.done(files=trees)}]

        return lie

    home.bring(n1=home.collect(says(b"first")), n2=home.collect(says(b"second"), "n2"))
    assert (home.place / "slurm-7.out").read_bytes() == b"first"
    assert home.own() == home.before


def test_no_line_writes_through_a_link_that_another_brought(home: Home) -> None:
    """Nor does another job: the link is not there."""
    home.lines = ((".", "results"), ("sub", "results/sub"), ("one", "results/one/"))

    def lie(f: Forger) -> list[Any]:
        links = f.tree(link("one", "inner"), link("sub", "../.ssh"))
        keys = f.tree(f.file("authorized_keys"))
        return [{"done": f.done(trees=[links, keys, f.tree(f.file("authorized_keys"), single=True)])}]

    (home.place / "results/inner").mkdir()
    own(home.place / "results", home.who.uid)
    home.bring(n1=home.collect(lie))
    assert home.own() == home.before
    assert (home.place / "results/sub/authorized_keys").read_text() == "evil"
    assert (home.place / "results/inner/authorized_keys").read_text() == "evil"


def test_a_link_is_no_file_that_a_line_names(home: Home) -> None:
    home.lines = (("x", "new"),)
    found = home.collect(lambda f: [{"done": f.done(f.tree(link("x", ".ssh"), single=True))}])
    outputs = {f"n1/{name}": tree for name, tree in found.trees.items()}
    job = replace(home.job(), outputs=outputs)
    home.transfers(lambda _: []).bring(Task(job, Meter("7", "home")), Ended())
    assert not (home.place / "new").is_symlink()
    assert "leads to .ssh" in json.loads((home.place / "burst-7.json").read_text())["warnings"][0]


def test_links_within_a_destination_come_home(home: Home) -> None:
    kept = {"latest": "run/3", "run/3": "../run/4", "run/self": ".", "run/up": "..", "to": "nowhere"}

    def lie(f: Forger) -> list[Any]:
        rows = [link("latest", "run/3"), {"p": "run", "t": "d", "m": 0o755, "n": 5}]
        rows += [link(path, target) for path, target in kept.items() if path.startswith("run/")]
        return [{"done": f.done(f.tree(*rows, link("to", "nowhere")))}]

    said = home.bring(n1=home.collect(lie))
    assert said["warnings"] == []
    assert {p: os.fsdecode((home.place / "results" / p).readlink()) for p in kept} == kept
