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
from burstd.staging.controller.tasks import DeliveredOutput, JobSummary, Meter, StagingTask
from burstd.staging.directives.parser import parse_directives
from burstd.staging.movement.job_folders import JobFolders
from burstd.staging.movement.output_delivery import OutputDelivery
from burstd.staging.movement.user_workers import UserWorkers
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.privsep.client import Account, UserWorker, UserWorkerError, user_worker_for
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.restore import RestoredFile, TreeRestorer
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.transfer.ground import USER, give_to_user, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
NEW_YEAR = 1_700_000_000_123_456_789
LARGE = os.urandom(1 << 20) * 40


@contextmanager
def open_user_workers(place: Path) -> Iterator[UserWorkers]:
    who = Account("someone", USER, USER, (USER,), str(place))
    with UserWorkers(who, user_worker_for(who), partial(object_worker_for, loopback=True)) as user_workers:
        yield user_workers


def restore_tree(stager: MemoryStager, worker: UserWorker, tree: Tree, root: Path) -> dict[str, RestoredFile]:
    files_restored: list[RestoredFile] = []
    TreeRestorer(stager.get, "memory").restore(
        worker, tree, str(root), job="7", on_file=files_restored.append, cancelled=threading.Event()
    )
    return {b.path: b for b in files_restored}


def unfinished(place: Path) -> list[Path]:
    return [*place.rglob(".burst-7-*")]


def test_a_file_is_left_only_where_it_is_the_same(tmp_path: Path) -> None:
    stager = MemoryStager()
    with user_folder() as place, open_user_workers(place) as user_workers:
        (place / "from").mkdir()
        files = {"same": b"s" * 5000, "other": b"x" * 5000, "mode": b"m", "large": LARGE}
        for name, body in files.items():
            (place / "from" / name).write_bytes(body)
            os.utime(place / "from" / name, ns=(NEW_YEAR, NEW_YEAR))
        give_to_user(place)
        tree = TreeUploader(ContentIndex(None), stager).upload(
            user_workers.files, str(place / "from"), owner=StagedFor(USER)
        )
        first = restore_tree(stager, user_workers.files, tree, place / "to")
        assert not any(b.skipped for b in first.values())
        (place / "to/other").write_bytes(b"y" * 5000)
        os.utime(place / "to/other", ns=(NEW_YEAR, NEW_YEAR))
        (place / "to/mode").chmod(0o751)
        again = restore_tree(stager, user_workers.files, tree, place / "to")
        assert not again["other"].skipped
        assert not again["mode"].skipped
        assert stat.S_IMODE((place / "to/mode").stat().st_mode) == stat.S_IMODE((place / "from/mode").stat().st_mode)
        for name, body in files.items():
            assert (place / "to" / name).read_bytes() == body
            assert again[name].digest in ("", hashlib.sha256(body).hexdigest())
            assert again[name].skipped == (name in ("same", "large") and bool(first[name].digest))


def test_nothing_unfinished_stays(tmp_path: Path) -> None:
    stager = MemoryStager()
    with user_folder() as place, open_user_workers(place) as user_workers:
        (place / "from/sub").mkdir(parents=True)
        (place / "from/sub/a").write_bytes(b"a")
        (place / "from/b").write_bytes(LARGE)
        give_to_user(place)
        tree = TreeUploader(ContentIndex(None), stager).upload(
            user_workers.files, str(place / "from"), owner=StagedFor(USER)
        )
        held = dict(stager.stored)

        def away(key: str) -> bytes:
            if len(held[key]) > 1 << 20:
                raise StoreBusy("away")
            return held[key]

        for _ in range(2):
            with pytest.raises(StoreBusy):
                TreeRestorer(away, "memory").restore(
                    user_workers.files, tree, str(place / "to"), job="7", cancelled=threading.Event()
                )
        assert not unfinished(place)
        # A try that was killed: in a directory of the tree, and in the root.
        user_workers.files.make_directories(str(place / "to"), ["sub"])
        for _, fd in user_workers.files.create_files(str(place / "to"), ["sub/a", "b"], job="7"):
            os.close(fd)
        assert len(unfinished(place)) == 2
        restore_tree(stager, user_workers.files, tree, place / "to")
        assert not unfinished(place)


def job(text: str) -> Staging:
    directives, wrong = parse_directives(f"#!/bin/sh\n{text}")
    assert not wrong
    return Staging(
        "7", "someone", USER, USER, directives, StageState.DELIVERING, 0, 0,
        job_state="COMPLETED", exit_code="0:0", work_dir="/",
    )  # fmt: skip


def deliver(place: Path, asked: Staging, stager: MemoryStager, **ended: Any) -> DeliveredOutput:
    with open_user_workers(place) as user_workers:
        delivery = OutputDelivery(stager, BandwidthLimits(), lambda *_: None, JobFolders(str(place), b"key"))
        return delivery.deliver(StagingTask(asked, Meter("7", "home")), user_workers, JobSummary(**ended))


def manifest_of(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "burst-7.json").read_text())
    manifest["names"] = sorted(row["path"] for row in manifest["files"])
    return manifest


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
    with user_folder() as place:
        write(place / "7/out", "a.csv", "b.csv", "sub/c.csv", "sub/d", "x")
        (place / "7/out/l.csv").symlink_to("a.csv")
        give_to_user(place)
        lines = (("*.csv", "A"), ("a.csv", "B/"), ("sub", "C"), ("sub/c.csv", "D/c"), (".", "E"))
        text = "".join(f"#BURST stage_out {what} to {place}/{where}\n" for what, where in lines)
        deliver(place, job(text), MemoryStager(), on_premises=True)
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
    with user_folder() as place:
        write(place / "7/out", "a", "b", "one")
        # Where a file has to go there is a directory that cannot be replaced.
        (place / "home/b/full").mkdir(parents=True)
        give_to_user(place)
        text = f"#BURST stage_out one to {place}/single\n#BURST stage_out ? to {place}/home\n"
        with pytest.raises(UserWorkerError, match="b: Is a directory"):
            deliver(place, job(text), MemoryStager(), on_premises=True)
        assert (place / "home/a").exists()
        (place / "home/b/full").rmdir()
        (place / "home/b").rmdir()
        deliver(place, job(text), MemoryStager(), on_premises=True)
        said = manifest_of(place / "home")
        assert said["names"] == [f"{place}/{name}" for name in ("home/a", "home/b", "single")]
        assert said["warnings"] == []
        assert (place / "single").read_bytes() == b"one"


def test_names_with_wildcards_on_premises() -> None:
    with user_folder() as place:
        write(place / "7/out", "run[1]/a", "run1/b", "what?", "star[1]/x.csv")
        give_to_user(place)
        lines = [("'run[1]'", "A"), ("'what?'", "B/"), ("'star[1]'/*.csv", "C"), ("'none*'", "D"), ("'run?'", "E")]
        text = "".join(f"#BURST stage_out {what} to {place}/{where}\n" for what, where in lines)
        deliver(place, job(text), MemoryStager(), on_premises=True)
        assert files(place / "A") == {"a": b"run[1]/a"}
        assert files(place / "B") == {"what?": b"what?"}
        assert files(place / "C") == {"star[1]/x.csv": b"star[1]/x.csv"}
        assert not files(place / "D")
        assert not files(place / "E")
        assert len(manifest_of(place / "A")["warnings"]) == 2


def test_what_is_missing_is_told() -> None:
    stager = MemoryStager()
    with user_folder() as place, open_user_workers(place) as user_workers:
        write(place / "from", "a")
        with (place / "from/sparse").open("wb") as file:
            file.truncate(64 << 20)
            file.write(b"b" * 4096)
        (place / "lost").mkdir()
        (place / "lost/closed").symlink_to("Permission denied")
        give_to_user(place)
        sender = TreeUploader(ContentIndex(None), stager)
        tree = sender.upload(user_workers.files, str(place / "from"), owner=StagedFor(USER))
        lost = sender.upload(user_workers.files, str(place / "lost/*"), owner=StagedFor(USER))
        asked = job(f"#BURST stage_out . to {place}/home\n")
        write(place / "home", ".burst-7-0123456789ab")
        give_to_user(place)
        first = deliver(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree, "n1/missing": lost}), stager)
        assert (first.size, first.sent) == ((64 << 20) + 1, 4097), "holes are not sent"
        said = manifest_of(place / "home")
        assert said["complete"] is False
        assert said["warnings"][-1:] == ["n1: closed is missing: Permission denied"]
        assert "closed is missing" in (place / "home/burst-7.PARTIAL").read_text()
        assert not unfinished(place)
        again = deliver(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree}), stager)
        assert again.sent == first.sent, "also where an earlier try has brought it"
        assert manifest_of(place / "home")["complete"] is True
        assert not (place / "home/burst-7.PARTIAL").exists()
        deliver(place, replace(asked, nodes=("n1",), outputs={"n1/0": tree, "n1/files": tree}), stager)
        assert manifest_of(place / "home")["complete"] is False
        assert "an older burstd collected them" in (place / "home/burst-7.PARTIAL").read_text()
