"""What one engine that writes trees keeps at once, and how it ends."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from burstd.domain.staging import ObjectRange
from burstd.transfer.agent.restore import InputTarget
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.trees.restore import RestoredFile, _DestinationWriter
from burstd.transfer.trees.writer import TreeWriter

MIB = 1 << 20


def file(path: str, *pieces: ObjectRange, hardlink_to: bytes = b"") -> ManifestEntry:
    size = sum(piece.length for piece in pieces)
    return ManifestEntry(os.fsencode(path), "f", 0o644, 1, size, pieces=pieces, hardlink_to=hardlink_to)


class FakeWorker:
    """A user worker at whose destination nothing is yet."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(_root: str, items: Sequence[Any], **_: object) -> list[Any]:
            self.calls.append((name, len(items)))
            return [None for _ in items]

        return note

    def create_files(self, _root: str, items: Sequence[str], *, job: str) -> list[tuple[str, int]]:
        made = []
        for number, _ in enumerate(items):
            with tempfile.TemporaryFile() as opened:
                made.append((f".burst-{job}-{number}", os.dup(opened.fileno())))
        return made


class FakeObjects:
    """Every object is zeros; ``windows``: how many were announced."""

    verified: dict[str, int] = {}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        self.windows: list[int] = []

    def request(self, _number: int, keys: Sequence[str]) -> None:
        self.windows.append(len(keys))

    def arrivals(self, _number: int, keys: Sequence[str]) -> Iterator[tuple[str, memoryview]]:
        for key in keys:
            yield key, memoryview(bytes(16))


def destination(worker: FakeWorker, objects: FakeObjects) -> _DestinationWriter:
    writer = _DestinationWriter(cast("Any", worker), "/d", job="7", name="")
    writer.objects, writer.cancelled = cast("Any", objects), threading.Event()
    writer.unique_path, writer.on_file, writer.on_bytes = lambda path: path, lambda _: None, lambda _: None
    writer.reuse = lambda _found, _contents: None
    return writer


def test_a_window_has_few_bytes_of_names() -> None:
    objects = FakeObjects()
    writer = TreeWriter(cast("Any", FakeWorker()), "/d")
    writer.write((file("x" * 60_000 + str(number)) for number in range(1000)), cast("Any", objects))
    assert len(objects.windows) >= 1000 * 60_000 // (9 * MIB)


def test_large_files_for_a_destination_are_unfinished_one_by_one() -> None:
    pieces = tuple(ObjectRange(f"{number:064x}", 0, 200 * MIB) for number in range(2))
    objects = FakeObjects()
    writer = destination(FakeWorker(), objects)
    planned = list(writer._windows(file(f"f{number}", *pieces) for number in range(4)))
    assert [len(next(iter(window.places.values()))) for window in planned if window.places] == [1, 1, 1, 1]


def test_whoever_is_cancelled_looks_at_no_further_file() -> None:
    worker, objects = FakeWorker(), FakeObjects()
    writer = destination(worker, objects)
    entries = [file("a"), *(file(f"b{number}", hardlink_to=b"a") for number in range(1000))]
    writer.on_file = lambda _: writer.cancelled.set()
    with pytest.raises(TransferCancelled):
        writer.write(entries, cast("Any", objects))
    assert "hardlink" not in [name for name, _ in worker.calls]


def test_two_files_that_get_one_path_are_both_told() -> None:
    objects, told = FakeObjects(), list[RestoredFile]()
    writer = destination(FakeWorker(), objects)
    writer.unique_path, writer.on_file = lambda _: "x.n2", told.append
    writer.write([file("x"), file("x.n2")], cast("Any", objects))
    assert [one.path for one in told] == ["x.n2", "x.n2"]


def open_descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_a_name_that_is_given_twice_is_refused_for_every_kind(tmp_path: Path) -> None:
    target = InputTarget(str(tmp_path), resumed=False)
    [(_, fd)] = target.create_files("", ["a"], job="7")
    os.close(fd)
    before = open_descriptors()
    for again in (
        lambda: target.create_files("", ["b", "a"], job="7"),
        lambda: target.symlink("", [("t", "a", None)], job="7"),
        lambda: target.hardlink("", [("b", "a")], job="7"),
    ):
        with pytest.raises(ManifestDamaged, match="twice"):
            again()
    assert open_descriptors() == before
    target.directory.close()
