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
from burstd.slurm.commands.run import SlurmCommands
from burstd.staging.controller.tasks import CollectedOutput, JobSummary, Meter, StageFailed, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.transfers import HeadTransfers
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import Account, account, user_worker_for
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import TreeUploader
from tests.doubles.hostile_agent import HARMLESS, REFUSED, Forger, HostileNode, Lie, link
from tests.transfer.ground import give_to_user, paths_below, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
NAME = "nobody"
OFFER = Offer("sky", "r", "z", "small", spot=False, shape=Shape(1, 1), price=Decimal(1))


@dataclass
class UserHome:
    """A user's home, with what is his own in it, and one job of his on hostile nodes."""

    folder: Path
    who: Account = field(default_factory=lambda: account(NAME))
    store: MemoryStager = field(default_factory=MemoryStager)
    lines: tuple[tuple[str, str], ...] = ((".", "results"),)

    def __post_init__(self) -> None:
        for name in (".ssh/authorized_keys", ".bashrc", "secret", "results/kept"):
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("own")
            path.chmod(0o600)
        give_to_user(self.folder, self.who.uid)
        self.before = self.own_files()

    def own_files(self) -> dict[str, Any]:
        """All that the user has himself, outside of the destination."""
        return {
            str(path.relative_to(self.folder)): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_nlink)
            for path in paths_below(self.folder)
            if path.relative_to(self.folder).parts[0] not in ("results", "slurm-7.out") and not path.is_dir()
        }

    def written_files(self) -> dict[str, os.stat_result]:
        """What is in the destination and was not there before."""
        top = self.folder / "results"
        ours = {"kept", "burst-7.json", "burst-7.PARTIAL"}
        return {str(p.relative_to(top)): p.lstat() for p in paths_below(top) if p.name not in ours}

    def job(self) -> Staging:
        text = "".join(f"#BURST stage_out {what} to {self.folder}/{where}\n" for what, where in self.lines)
        directives, wrong = parse_directives(f"#!/bin/sh\n{text}")
        assert not wrong
        return Staging(
            "7", NAME, self.who.uid, self.who.gid, directives, StageState.DELIVERING, 0, 0, nodes=("n1", "n2"),
            job_state="COMPLETED", exit_code="0:0", work_dir="/",
        )  # fmt: skip

    def collect(self, lie: Lie, node: str = "n1") -> CollectedOutput:
        claim = Claim("c", "x", "gpu", node, OFFER, Cause.DEMAND, ClaimState.IN_SERVICE, 0.0, 0.0, address="10.0.0.9")
        task = StagingTask(self.job(), Meter("7", "collect"))
        return self.transfers(lie).collect_output(task, claim, [f"{self.folder}/slurm-7.out", "relative"])

    def deliver(self, **found: CollectedOutput) -> dict[str, Any]:
        outputs = {f"{node}/{name}": tree for node, one in found.items() for name, tree in one.trees.items()}
        job = replace(self.job(), outputs=outputs)
        self.transfers(lambda _: []).deliver_output(StagingTask(job, Meter("7", "home")), JobSummary())
        said: dict[str, Any] = json.loads((self.folder / "results/burst-7.json").read_text())
        return said

    def transfers(self, lie: Lie) -> HeadTransfers:
        index, limits = ContentIndex(None), BandwidthLimits()
        folders = JobFolders(str(self.folder), b"key")
        return HeadTransfers(
            commands=SlurmCommands(),
            stager=self.store,
            uploader=TreeUploader(index, self.store, limits),
            agent=NodeAgent(lambda _claim: HostileNode(self.store, lie)),
            output_delivery=OutputDelivery(self.store, limits, lambda *_: None, folders),
            open_worker=user_worker_for,
            open_object_worker=object_worker_for,
            folders=folders,
            cache_dir=str(self.folder),
            datasets=lambda _name: None,
        )


@pytest.fixture
def home() -> Iterator[UserHome]:
    with user_folder(account(NAME).uid) as place:
        yield UserHome(place)


@pytest.mark.parametrize("name", REFUSED)
def test_a_lie_fails_the_transfer_and_writes_nothing_else(home: UserHome, name: str) -> None:
    with pytest.raises(StageFailed, match=r"^(n1: |memory: |out/7/n1/)") as caught:
        home.deliver(n1=home.collect(REFUSED[name]))
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()
    assert home.own_files() == home.before
    assert (home.folder / "results/kept").read_text() == "own"
    assert (home.folder / "results/kept").stat().st_nlink == 1
    assert set(home.written_files()) <= {"a", "b"}
    assert not any(p.is_symlink() for p in paths_below(home.folder) if p.name != "a")


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_a_lie_stays_away(home: UserHome, name: str) -> None:
    said = home.deliver(n1=home.collect(HARMLESS[name]))
    assert home.own_files() == home.before
    for facts in home.written_files().values():
        assert not stat.S_IMODE(facts.st_mode) & 0o7000
        assert (facts.st_uid, facts.st_gid) == (home.who.uid, home.who.gid)
    links = [p for p in paths_below(home.folder) if p.is_symlink()]
    assert all((p.parent / p.readlink()).resolve().is_relative_to(home.folder / "results") for p in links)
    if name.startswith("link"):
        assert any("was left out: it is a link that leads to" in warning for warning in said["warnings"])
    else:
        assert home.written_files() or (home.folder / "slurm-7.out").exists()
    assert len(json.dumps(said)) < 4 << 20
    assert all(warning.isprintable() for warning in said["warnings"])


def test_standard_output_goes_where_slurm_says_and_is_the_first_nodes(home: UserHome) -> None:
    def says(body: bytes) -> Lie:
        def lie(f: Forger) -> list[Any]:
            trees = [f.tree(f.file(".ssh", body), single=True) for _ in f.request["files"]]
            assert f.request["files"] == [f"{home.folder}/slurm-7.out"]
            return [{"done": f.done(files=trees)}]

        return lie

    home.deliver(n1=home.collect(says(b"first")), n2=home.collect(says(b"second"), "n2"))
    assert (home.folder / "slurm-7.out").read_bytes() == b"first"
    assert home.own_files() == home.before


def test_no_line_writes_through_a_link_that_another_brought(home: UserHome) -> None:
    """Nor does another job: the link is not there."""
    home.lines = ((".", "results"), ("sub", "results/sub"), ("one", "results/one/"))

    def lie(f: Forger) -> list[Any]:
        links = f.tree(link("one", "inner"), link("sub", "../.ssh"))
        keys = f.tree(f.file("authorized_keys"))
        return [{"done": f.done(trees=[links, keys, f.tree(f.file("authorized_keys"), single=True)])}]

    (home.folder / "results/inner").mkdir()
    give_to_user(home.folder / "results", home.who.uid)
    home.deliver(n1=home.collect(lie))
    assert home.own_files() == home.before
    assert (home.folder / "results/sub/authorized_keys").read_text() == "evil"
    assert (home.folder / "results/inner/authorized_keys").read_text() == "evil"


def test_a_link_is_no_file_that_a_line_names(home: UserHome) -> None:
    home.lines = (("x", "new"),)
    found = home.collect(lambda f: [{"done": f.done(f.tree(link("x", ".ssh"), single=True))}])
    outputs = {f"n1/{name}": tree for name, tree in found.trees.items()}
    job = replace(home.job(), outputs=outputs)
    home.transfers(lambda _: []).deliver_output(StagingTask(job, Meter("7", "home")), JobSummary())
    assert not (home.folder / "new").is_symlink()
    assert "leads to .ssh" in json.loads((home.folder / "burst-7.json").read_text())["warnings"][0]


def test_links_within_a_destination_come_home(home: UserHome) -> None:
    kept = {"latest": "run/3", "run/3": "../run/4", "run/self": ".", "run/up": "..", "to": "nowhere"}

    def lie(f: Forger) -> list[Any]:
        rows = [link("latest", "run/3"), {"p": "run", "t": "d", "m": 0o755, "n": 5}]
        rows += [link(path, target) for path, target in kept.items() if path.startswith("run/")]
        return [{"done": f.done(f.tree(*rows, link("to", "nowhere")))}]

    said = home.deliver(n1=home.collect(lie))
    assert said["warnings"] == []
    assert {p: os.fsdecode((home.folder / "results" / p).readlink()) for p in kept} == kept
