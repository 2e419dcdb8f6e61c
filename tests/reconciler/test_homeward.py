"""Output at its destination, with a real hand: from a store, and of a job on premises."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.plugins.stager import StoreBusy
from burstd.domain.staging import StageState, Staging, Tree
from burstd.staging.controller.tasks import Ended, Task
from burstd.staging.directives.parser import parse
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import Homeward
from burstd.staging.movement.progress import Meter
from burstd.staging.movement.user_workers import UserHands
from burstd.transfer.content_store.index import Index
from burstd.transfer.privsep.client import Account, Hand, HandError, hand_of
from burstd.transfer.privsep.object_workers import object_hand
from burstd.transfer.trees.rate_limit import Limits
from burstd.transfer.trees.restore import Bringer, Brought
from burstd.transfer.trees.upload import Owner, Sender
from tests.transfer.ground import USER, ground, own, root_only
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
NEW_YEAR = 1_700_000_000_123_456_789
LARGE = os.urandom(1 << 20) * 40


@contextmanager
def user(place: Path) -> Iterator[UserHands]:
    who = Account("someone", USER, USER, (USER,), str(place))
    with UserHands(who, hand_of(who), partial(object_hand, loopback=True)) as hands:
        yield hands


def bring(stager: MemoryStager, hand: Hand, tree: Tree, root: Path) -> dict[str, Brought]:
    told: list[Brought] = []
    Bringer(stager.get, "memory").bring(
        hand, tree, str(root), job="7", brought=told.append, cancelled=threading.Event()
    )
    return {b.path: b for b in told}


def unfinished(place: Path) -> list[Path]:
    return [*place.rglob(".burst-7-*")]


def test_a_file_is_left_only_where_it_is_the_same(tmp_path: Path) -> None:
    stager = MemoryStager()
    with ground() as place, user(place) as hands:
        (place / "from").mkdir()
        files = {"same": b"s" * 5000, "other": b"x" * 5000, "mode": b"m", "large": LARGE}
        for name, body in files.items():
            (place / "from" / name).write_bytes(body)
            os.utime(place / "from" / name, ns=(NEW_YEAR, NEW_YEAR))
        own(place)
        tree = Sender(Index(None), stager).send(hands.files, str(place / "from"), owner=Owner(USER))
        first = bring(stager, hands.files, tree, place / "to")
        assert not any(b.skipped for b in first.values())
        (place / "to/other").write_bytes(b"y" * 5000)
        os.utime(place / "to/other", ns=(NEW_YEAR, NEW_YEAR))
        (place / "to/mode").chmod(0o751)
        again = bring(stager, hands.files, tree, place / "to")
        assert not again["other"].skipped
        assert not again["mode"].skipped
        assert stat.S_IMODE((place / "to/mode").stat().st_mode) == stat.S_IMODE((place / "from/mode").stat().st_mode)
        for name, body in files.items():
            assert (place / "to" / name).read_bytes() == body
            assert again[name].digest in ("", hashlib.sha256(body).hexdigest())
            assert again[name].skipped == (name in ("same", "large") and bool(first[name].digest))


def test_nothing_unfinished_stays(tmp_path: Path) -> None:
    stager = MemoryStager()
    with ground() as place, user(place) as hands:
        (place / "from/sub").mkdir(parents=True)
        (place / "from/sub/a").write_bytes(b"a")
        (place / "from/b").write_bytes(LARGE)
        own(place)
        tree = Sender(Index(None), stager).send(hands.files, str(place / "from"), owner=Owner(USER))
        held = dict(stager.held)

        def away(key: str) -> bytes:
            if len(held[key]) > 1 << 20:
                raise StoreBusy("away")
            return held[key]

        for _ in range(2):
            with pytest.raises(StoreBusy):
                Bringer(away, "memory").bring(
                    hands.files, tree, str(place / "to"), job="7", cancelled=threading.Event()
                )
        assert not unfinished(place)
        # A try that was killed: in a directory of the tree, and in the root.
        hands.files.make(str(place / "to"), ["sub"])
        for _, fd in hands.files.create(str(place / "to"), ["sub/a", "b"], job="7"):
            os.close(fd)
        assert len(unfinished(place)) == 2
        bring(stager, hands.files, tree, place / "to")
        assert not unfinished(place)


def job(text: str) -> Staging:
    directives, wrong = parse(f"#!/bin/sh\n{text}")
    assert not wrong
    return Staging(
        "7", "someone", USER, USER, directives, StageState.BRINGING, 0, 0,
        job_state="COMPLETED", exit_code="0:0", work_dir="/",
    )  # fmt: skip


def home(place: Path, asked: Staging, stager: MemoryStager, **ended: Any) -> None:
    with user(place) as hands:
        homeward = Homeward(stager, Limits(), lambda *_: None, JobFolders(str(place), b"key"))
        homeward.bring(Task(asked, Meter("7", "home")), hands, Ended(**ended))


def told(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "burst-7.json").read_text())
    said["names"] = sorted(row["path"] for row in said["files"])
    return said


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("burst-7.")
    }


def write(out: Path, *names: str) -> None:
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(name.encode())


def test_lines_on_premises_that_name_the_same() -> None:
    with ground() as place:
        write(place / "7/out", "a.csv", "b.csv", "sub/c.csv", "sub/d", "x")
        (place / "7/out/l.csv").symlink_to("a.csv")
        own(place)
        lines = (("*.csv", "A"), ("a.csv", "B/"), ("sub", "C"), ("sub/c.csv", "D/c"), (".", "E"))
        text = "".join(f"#BURST stage_out {what} to {place}/{where}\n" for what, where in lines)
        home(place, job(text), MemoryStager(), on_premises=True)
        a, b, c, d = b"a.csv", b"b.csv", b"sub/c.csv", b"sub/d"
        assert {k: v for k, v in files(place / "A").items() if k != "l.csv"} == {"a.csv": a, "b.csv": b}
        assert str((place / "A/l.csv").readlink()) == "a.csv"
        assert files(place / "B") == {"a.csv": a}
        assert files(place / "C") == {"c.csv": c, "d": d}
        assert files(place / "D") == {"c": c}
        everything = {"a.csv": a, "b.csv": b, "l.csv": a, "sub/c.csv": c, "sub/d": d, "x": b"x"}
        assert files(place / "E") == everything
        assert not [*(place / "7/out").iterdir()]


def test_a_second_way_home_on_premises_has_a_whole_manifest() -> None:
    with ground() as place:
        write(place / "7/out", "a", "b", "one")
        # Where a file has to go there is a directory that cannot be replaced.
        (place / "home/b/full").mkdir(parents=True)
        own(place)
        text = f"#BURST stage_out one to {place}/single\n#BURST stage_out ? to {place}/home\n"
        with pytest.raises(HandError, match="b: Is a directory"):
            home(place, job(text), MemoryStager(), on_premises=True)
        assert (place / "home/a").exists()
        (place / "home/b/full").rmdir()
        (place / "home/b").rmdir()
        home(place, job(text), MemoryStager(), on_premises=True)
        said = told(place / "home")
        assert said["names"] == [f"{place}/{name}" for name in ("home/a", "home/b", "single")]
        assert said["warnings"] == []
        assert (place / "single").read_bytes() == b"one"


def test_names_with_wildcards_on_premises() -> None:
    with ground() as place:
        write(place / "7/out", "run[1]/a", "run1/b", "what?", "star[1]/x.csv")
        own(place)
        lines = [("'run[1]'", "A"), ("'what?'", "B/"), ("'star[1]'/*.csv", "C"), ("'none*'", "D"), ("'run?'", "E")]
        text = "".join(f"#BURST stage_out {what} to {place}/{where}\n" for what, where in lines)
        home(place, job(text), MemoryStager(), on_premises=True)
        assert files(place / "A") == {"a": b"run[1]/a"}
        assert files(place / "B") == {"what?": b"what?"}
        assert files(place / "C") == {"star[1]/x.csv": b"star[1]/x.csv"}
        assert not files(place / "D")
        assert not files(place / "E")
        assert len(told(place / "A")["warnings"]) == 2


def test_what_is_missing_is_told() -> None:
    stager = MemoryStager()
    with ground() as place, user(place) as hands:
        write(place / "from", "a")
        (place / "lost").mkdir()
        (place / "lost/closed").symlink_to("Permission denied")
        own(place)
        sender = Sender(Index(None), stager)
        tree = sender.send(hands.files, str(place / "from"), owner=Owner(USER))
        lost = sender.send(hands.files, str(place / "lost/*"), owner=Owner(USER))
        asked = job(f"#BURST stage_out . to {place}/home\n")
        write(place / "home", ".burst-7-0123456789ab")
        own(place)
        home(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree, "n1/missing": lost}), stager)
        said = told(place / "home")
        assert said["complete"] is False
        assert said["warnings"][-1:] == ["n1: closed is missing: Permission denied"]
        assert "closed is missing" in (place / "home/burst-7.PARTIAL").read_text()
        assert not unfinished(place)
        home(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree}), stager)
        assert told(place / "home")["complete"] is True
        assert not (place / "home/burst-7.PARTIAL").exists()
        home(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree, "n1/files": tree}), stager)
        assert told(place / "home")["complete"] is False
        assert "an older burstd collected them" in (place / "home/burst-7.PARTIAL").read_text()
