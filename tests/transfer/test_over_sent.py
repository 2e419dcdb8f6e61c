"""A working directory comes back: what has changed at home since it was sent stays, and the job's goes beside it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, encode_manifest, object_key
from burstd.transfer.privsep.client import UserWorker, start_user_worker
from burstd.transfer.trees.restore import OverSent, TreeRestorer
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.transfer.ground import USER, DiskEntry, entries, give_to_user, on_disk, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
SUFFIX = ".burst-7"


@pytest.fixture
def home() -> Iterator[Path]:
    with user_folder() as folder:
        yield folder


def write(top: Path, name: str, text: str = "", mtime: int = 0) -> None:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if mtime:
        os.utime(path, (mtime, mtime))


def files_in(top: Path) -> dict[bytes, DiskEntry]:
    return {path: entry for path, entry in on_disk(top).items() if entry[0] != "d"}


class WayHome:
    """A project at home, its copy on a node, and the way back."""

    def __init__(self, home: Path) -> None:
        self.home, self.node = home / "project", home / "node"
        for name in ("same", "changed", "deleted", "d/inner"):
            write(self.home, name, "sent", 1_700_000_000)
        (self.home / "link").symlink_to("same")
        self.store, self.conflicts = MemoryStager(), list[tuple[str, str]]()
        give_to_user(home)
        self.sent = {e.path: e for e in entries(self.store, self.upload(self.home, "in"))}
        shutil.copytree(self.home, self.node, symlinks=True)

    def worker(self) -> UserWorker:
        return start_user_worker(USER, USER)

    def upload(self, source: Path, prefix: str) -> Tree:
        with self.worker() as worker:
            uploader = TreeUploader(ContentIndex(None), self.store)
            return uploader.upload(worker, str(source), owner=StagedFor(USER), prefix=prefix)

    def bring(self, tree: Tree | None = None) -> None:
        """Everything that is in the copy, as if the node had told all of it as changed."""
        give_to_user(self.home.parent)
        tree = tree or self.upload(self.node, "out/7/n1")
        over = OverSent(self.sent, SUFFIX, lambda path, beside: self.conflicts.append((path, beside)))
        with self.worker() as worker:
            TreeRestorer(self.store.get, "store").restore(
                worker, tree, str(self.home), job="7", over=over, cancelled=threading.Event()
            )

    def text(self, name: str) -> str:
        return (self.home / name).read_text()


CASES: dict[str, tuple[str, str, dict[str, str]]] = {
    "changed there": ("printf job >changed", "", {"changed": "job"}),
    "changed in both": (
        "printf job >changed", "printf user >changed", {"changed": "user", f"changed{SUFFIX}": "job"}
    ),
    "touched at home": (
        "printf job >changed", "touch -d @5 changed", {"changed": "sent", f"changed{SUFFIX}": "job"}
    ),
    "replaced at home by one of the same size and time": (
        "printf job >changed", "printf user >changed; touch -d @1700000000 changed",
        {"changed": "user", f"changed{SUFFIX}": "job"},
    ),
    "removed at home": ("printf job >changed", "rm changed", {"changed": "job"}),
    "new there": ("mkdir new; printf job >new/file", "", {"new/file": "job"}),
    "new in both": ("printf job >new", "printf user >new", {"new": "user", f"new{SUFFIX}": "job"}),
    "new in both, and beside it too": (
        "printf job >new", f"for f in new new{SUFFIX} new{SUFFIX}.2; do printf user >$f; done",
        {"new": "user", f"new{SUFFIX}": "user", f"new{SUFFIX}.2": "user", f"new{SUFFIX}.3": "job"},
    ),
    "a directory in place of a file": (
        "rm changed; mkdir -p changed/a; printf job >changed/a/b", "",
        {"changed": "sent", f"changed{SUFFIX}/a/b": "job"},
    ),
    "a file in place of a directory": (
        "rm -r d; printf job >d", "", {"d/inner": "sent", f"d{SUFFIX}": "job"}
    ),
    "a file in place of a link": ("rm link; printf job >link", "", {"link": "job", "same": "sent"}),
    "a link at home to what is not the job's": (
        "printf job >changed", "rm changed; printf user >theirs; ln -s theirs changed",
        {"changed": "user", "theirs": "user", f"changed{SUFFIX}": "job"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_home_wins(home: Path, case: str) -> None:
    there, at_home, expected = CASES[case]
    way = WayHome(home)
    for top, script in ((way.node, there), (way.home, at_home)):
        subprocess.run(["sh", "-ec", script], cwd=top, check=True)
    way.bring()
    assert {name: way.text(name) for name in expected} == expected
    after = files_in(way.home)
    way.bring()
    assert files_in(way.home) == after, "once more it finds all of it"
    assert not [path for path in way.home.iterdir() if path.name.startswith(".burst-")]
    beside = {name for name in expected if SUFFIX in name and expected[name] == "job"}
    assert {b for _, b in way.conflicts} == {name.partition("/")[0] for name in beside}


def test_links_of_both(home: Path) -> None:
    way = WayHome(home)
    for top, target in ((way.node, "changed"), (way.home, "deleted")):
        (top / "new").symlink_to(target)
    (way.node / "link").unlink()
    (way.node / "link").symlink_to("changed")
    way.bring()
    targets = {name: str((way.home / name).readlink()) for name in ("new", f"new{SUFFIX}", "link")}
    assert targets == {"new": "deleted", f"new{SUFFIX}": "changed", "link": "changed"}
    after = files_in(way.home)
    way.bring()
    assert files_in(way.home) == after


def test_modes_of_directories_at_home_stay(home: Path) -> None:
    way = WayHome(home)
    (way.home / "d").chmod(0o750)
    (way.node / "d").chmod(0o700)
    write(way.node, "d/new", "job")
    write(way.node, "e/new", "job")
    (way.node / "e").chmod(0o705)
    way.bring()
    assert [oct((way.home / name).stat().st_mode) for name in ("d", "e")] == ["0o40750", "0o40705"]


def test_a_node_that_sends_a_hard_link(home: Path) -> None:
    """burstd's agent sends each name as a file: a link would take the place of what is there."""
    way = WayHome(home)
    lie = [
        ManifestEntry(b"", "d", 0o755, 1),
        ManifestEntry(b"a", "f", 0o600, 1),
        ManifestEntry(b"changed", "f", 0o600, 1, hardlink_to=b"a"),
    ]
    write(way.node, "x")
    tree = way.upload(way.node, "out/7/n1")
    ranges = []
    for body in encode_manifest(lie):
        key = hashlib.sha256(body).hexdigest()
        way.store.put(object_key(tree.prefix, key), body)
        ranges.append(ObjectRange(key, 0, len(body)))
    forged = replace(tree, manifest=tuple(ranges), entries=3, size=0)
    with pytest.raises(ManifestDamaged, match="second name of a file"):
        way.bring(forged)
    assert way.text("changed") == "sent"
