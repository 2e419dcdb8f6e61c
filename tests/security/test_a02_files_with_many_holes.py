"""A file that is little else than holes has no longer a list of its data than a manifest may hold."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import threading
import time
import zlib
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import ObjectRange
from burstd.transfer.agent.packing import OutgoingBuffers, TreePacker
from burstd.transfer.agent.restore import InputTarget
from burstd.transfer.agent.user_process import AgentFault, PacketChannel, SharedBuffers
from burstd.transfer.content_store import manifest, sparse
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, decode_manifest, encode_manifest
from burstd.transfer.content_store.objects import ObjectFetcher
from burstd.transfer.trees.untrusted_read import extents
from burstd.transfer.trees.writer import TreeWriter
from tests.lab.patience import processor_s

RUNS, BLOCK = 3000, 4096


@pytest.fixture
def sparse_file(tmp_path: Path) -> Path:
    """A block of data, a hole of one block, and so on; every tenth hole has three, and the last lies far out."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        at = 0
        for n in range(RUNS):
            at += BLOCK * (4 if n % 10 == 0 else 2)
            file.seek(at)
            file.write(b"%08d" % n * (BLOCK // 8))
        file.seek(1 << 30)
        file.write(b"end")
        file.truncate(2 << 30)
    return path


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A border that has room for a thousand runs."""
    monkeypatch.setattr(manifest, "MAX_LINE_BYTES", 200_000)
    monkeypatch.setattr(sparse, "MAX_EXTENTS", 1000, raising=False)


def collected(path: Path) -> tuple[ManifestEntry, dict[str, bytes]]:
    """What the node makes of a file, and its objects."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        slots, objects = SharedBuffers(), {}
        other = PacketChannel(theirs)

        def put() -> None:
            while "over" not in (message := other.receive()[0]):
                body = bytes(slots.view(message["object"], message["length"]))
                key = hashlib.sha256(body).hexdigest()
                objects[key] = body
                other.send({"key": key, "slot": message["object"]})

        putting = threading.Thread(target=put)
        putting.start()
        line = PacketChannel(ours)
        gathering = TreePacker(OutgoingBuffers(line, slots))
        told = gathering.pack_tree(iter([gathering.pack_file(b"sparse", os.open(path, os.O_RDONLY))]))
        line.send({"over": True})
        putting.join()
    [entry] = decode_manifest(objects[key][:length] for key, _, length in told["manifest"])
    return entry, objects


@pytest.mark.slow
def test_what_is_collected_passes_the_border(sparse_file: Path, lowered: None) -> None:
    entry, objects = collected(sparse_file)
    assert entry.size == 2 << 30
    kept = [piece for piece in entry.pieces if piece.key]
    assert len(kept) < 1000
    assert sum(piece.length for piece in kept) < 3 * RUNS * BLOCK, "the large holes stay holes"
    with sparse_file.open("rb") as file:
        at = 0
        for piece in entry.pieces:
            if piece.key:
                body = objects[piece.key][piece.offset : piece.offset + piece.length]
                assert body == os.pread(file.fileno(), piece.length, at)
            at += piece.length


@pytest.mark.slow
def test_few_holes_are_kept_as_they_are(sparse_file: Path) -> None:
    entry, _ = collected(sparse_file)
    assert sum(bool(piece.key) for piece in entry.pieces) == RUNS + 1


def test_an_input_has_as_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_EXTENTS", 20, raising=False)
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        for n in range(100):
            file.seek(n * (3 << 20))
            file.write(b"x" * BLOCK)
    with path.open("rb") as file:
        found = list(extents(file.fileno(), path.stat().st_size))
    assert sum(is_data for _, _, is_data in found) <= 20
    ends = [offset + length for offset, length, _ in found]
    assert [offset for offset, _, _ in found] == [0, *ends[:-1]]
    assert ends[-1] == path.stat().st_size


@given(
    st.lists(st.tuples(st.integers(1, 1 << 40), st.integers(1, 1 << 30)), max_size=200),
    st.sampled_from([1, 4096, 1 << 20]),
    st.integers(1, 20),
)
def test_no_data_is_left_out(steps: list[tuple[int, int]], gap: int, most: int) -> None:
    runs, at = [], 0
    for hole, length in steps:
        runs.append((at + hole, at + hole + length))
        at += hole + length
    found = sparse.merge_extents(runs, gap, most)
    assert len(found) <= most
    assert all(before[1] + gap <= after[0] for before, after in pairwise(found))
    assert all(any(start <= run[0] and run[1] <= end for start, end in found) for run in runs)
    assert {start for start, _ in found} <= {start for start, _ in runs}
    assert {end for _, end in found} <= {end for _, end in runs}
    if len(few := sparse.merge_extents(runs, gap, 1000)) <= most:
        assert found == few, "no more is joined than need be"


def test_the_longest_list_passes_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    def length(*pieces: ObjectRange) -> int:
        return len(json.dumps([[p.key, p.offset, p.length] for p in pieces], separators=(",", ":")))

    key = "0" * 64
    run = length(ObjectRange("", 0, manifest.MAX_FILE_BYTES), ObjectRange(key, OBJECT_BYTES - 1, OBJECT_BYTES - 1))
    # A run's last piece may begin anywhere in an object; all others are whole objects.
    most = sparse.MAX_EXTENTS * run + (manifest.MAX_PIECES - 2 * sparse.MAX_EXTENTS) * length(
        ObjectRange(key, 0, OBJECT_BYTES)
    )
    assert most + manifest.MAX_TEXT_BYTES < manifest.MAX_LINE_BYTES
    monkeypatch.setattr(manifest, "MAX_PIECES", 10)
    for count in (10, 11):
        entry = ManifestEntry(b"a", "f", 0o644, 0, count, pieces=(ObjectRange("", 0, 1),) * count)
        if count == 10:
            assert list(decode_manifest(encode_manifest([entry]))) == [entry]
            continue
        with pytest.raises(ManifestDamaged, match="more than 10 pieces"):
            list(decode_manifest(encode_manifest([entry])))


def test_more_data_than_a_manifest_lists_is_said_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "MAX_PIECES", 3)
    path = tmp_path / "data"
    path.write_bytes(b"x" * (4 << 20))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(sparse, "OBJECT_BYTES", 100_000)
    with ours, theirs, path.open("rb") as file:
        with pytest.raises(OSError, match="split it") as caught:
            list(extents(file.fileno(), 4 << 20))
        assert caught.value.errno == errno.EFBIG
        gathering = TreePacker(OutgoingBuffers(PacketChannel(ours), SharedBuffers()))
        with pytest.raises(AgentFault, match=r"more data than one file can .*splits or removes it, then: burstctl"):
            gathering.pack_file(b"/out/data", os.open(path, os.O_RDONLY))


def test_many_pieces_of_one_object_cost_no_more_than_their_number(tmp_path: Path) -> None:
    body = zlib.compress(b"x")
    key = hashlib.sha256(body).hexdigest()
    pieces = (ObjectRange(key, 0, 1), ObjectRange("", 0, 1)) * 30_000
    entry = ManifestEntry(b"f", "f", 0o644, 0, 60_000, pieces=pieces)
    began = time.process_time()
    with ObjectFetcher(lambda _key: body, "out", "the store") as objects, TemporaryDirectory(dir=tmp_path) as root:
        assert TreeWriter(InputTarget(root, resumed=False), root).write([entry], objects) == 60_000
        assert (Path(root) / "f").read_bytes() == (body[:1] + b"\0") * 30_000
    assert time.process_time() - began < processor_s(10)
