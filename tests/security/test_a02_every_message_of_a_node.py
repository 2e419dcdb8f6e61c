"""Whatever a node or a storage node sends: a value in its range comes of it, or the one error that says so."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burstd.domain.plugins.stager import OBJECT_BYTES, StagerError, StoreBusy
from burstd.domain.staging import ObjectRange, Tree
from burstd.node.agent import AgentError, _parse_line
from burstd.staging.controller.tasks import StageFailed
from burstd.staging.movement.agent_requests import (
    answer_agent_request,
    parse_collected_checkpoint,
    parse_collected_output,
    parse_command_end,
    parse_shared_port,
)
from burstd.staging.movement.output_delivery import FILE_PREFIX, MISSING_KEY, WORKDIR_KEY
from burstd.transfer.content_store.index import ContentIndex, FileIdentity
from burstd.transfer.content_store.manifest import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_TREE_BYTES,
    ManifestDamaged,
    ManifestEntry,
    decode_manifest,
    encode_manifest,
)
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import HEADER, MAGIC, ReplyStatus, RequestKind
from burstd.transfer.protocol.server import serve_objects
from burstd.transfer.trees.admission import admitted_entries
from tests.examples import examples
from tests.security.fuzz import fuzzed
from tests.transfer.memory import MemoryStager

KEY = "ab" * 32
NUMBERS: st.SearchStrategy[Any] = st.sampled_from(
    [0, 1, 4, -1, 1 << 63, (1 << 63) - 1, 1 << 70, 0.5, 1e300, True, None, "4", "", [], {}]
)
NAMES = st.sampled_from(
    ["", "a", "b", "a/b", "a/b/c", "..", ".", "../a", "/a", "a/../b", "a//b", "a/", "a\0", "a\n", "\udcff", "\ud800"]
)
JSON = st.recursive(NUMBERS | NAMES | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["done", "error", "kind", "keys", "progress", "bytes", "of", "sign", "present", "method", "trees"]),
    inner, max_size=3), max_leaves=8)  # fmt: skip
PIECES = st.lists(st.tuples(st.sampled_from(["", KEY, "../x", 7]), NUMBERS, NUMBERS).map(list) | JSON, max_size=3)
ROWS = st.fixed_dictionaries(
    {"p": NAMES | NUMBERS, "t": st.sampled_from(["d", "f", "l", "c", 7]), "m": NUMBERS, "n": NUMBERS},
    optional={"s": NUMBERS, "c": PIECES, "h": NAMES, "l": NAMES, "d": st.sampled_from([KEY, "", 7, "x"])},
)
GOOD = st.one_of(
    st.builds(lambda p, m: {"p": p, "t": "d", "m": m, "n": 5}, NAMES, st.integers(0, 0o7777)),
    st.builds(lambda p: {"p": p, "t": "f", "m": 0o4755, "n": 5, "s": 4, "c": [[KEY, 0, 4]]}, NAMES),
    st.builds(lambda p, target: {"p": p, "t": "l", "m": 0o777, "n": 5, "l": target}, NAMES, NAMES),
    st.builds(lambda p, h: {"p": p, "t": "f", "m": 0o600, "n": 0, "s": 0, "h": h}, NAMES, NAMES),
)  # fmt: skip


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


TEXTS = st.lists(ROWS | GOOD | JSON, max_size=4).map(lines) | st.binary(max_size=50)


def cut(body: bytes, at: list[int]) -> list[bytes]:
    """In parts, as the objects of a manifest are."""
    places = sorted({0, len(body), *(place % (len(body) + 1) for place in at)})
    return [body[first:last] for first, last in pairwise(places)]


def sound(entry: ManifestEntry) -> None:
    assert entry.kind in ("d", "f", "l")
    assert b"\0" not in entry.path + entry.link_target + entry.hardlink_to
    assert 0 <= entry.mode <= 0o777
    assert 0 <= entry.size <= MAX_FILE_BYTES
    assert abs(entry.mtime_ns) <= 1 << 64
    assert entry.hardlink_to or sum(piece.length for piece in entry.pieces) == entry.size
    for piece in entry.pieces:
        assert 0 <= piece.offset <= MAX_FILE_BYTES
        assert 0 <= piece.length <= MAX_FILE_BYTES
        assert not piece.key or piece.offset + piece.length <= OBJECT_BYTES


@fuzzed
@given(
    st.lists(ROWS | GOOD | JSON, max_size=4).map(lines) | st.binary(max_size=50), st.lists(st.integers(0), max_size=3)
)
def test_fuzz_a_manifest_has_sound_entries_or_is_damaged(text: bytes, at: list[int]) -> None:
    found: list[ManifestEntry] = []
    try:
        for entry in decode_manifest(cut(zlib.compress(text), at)):
            sound(entry)
            found.append(entry)
    except ManifestDamaged as error:
        assert len(str(error)) < 1000  # noqa: PT017 - one of two ends
    again = list(decode_manifest([b"".join(encode_manifest(found))]))
    assert again == found


@fuzzed
@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=3), st.integers(0), st.integers(0, 255))
def test_fuzz_an_object_that_is_no_manifest_is_damaged(body: bytes, at: list[int], where: int, byte: int) -> None:
    whole = bytearray(zlib.compress(lines([{"p": "", "t": "d", "m": 1, "n": 5}] * 3)))
    whole[where % len(whole)] = byte
    for each in (body, bytes(whole), bytes(whole) + body, bytes(whole)[: where % len(whole)]):
        try:
            for entry in decode_manifest(cut(each, at)):
                sound(entry)
        except ManifestDamaged:
            continue


def leads_to_itself(link: Path) -> bool:
    """The kernel follows it nowhere; ``realpath`` takes a -> a//b for /b."""
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@fuzzed
@given(st.lists(GOOD, max_size=8), st.booleans(), st.booleans())
def test_fuzz_what_is_admitted_can_be_made_and_leads_nowhere(rows: list[Any], single: bool, named: bool) -> None:
    root = [] if single else [{"p": "", "t": "d", "m": 0o755, "n": 5}]
    tree = Tree("out", KEY, (), 9, 100, single)
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "above" / "top"
        top.mkdir(parents=True)
        try:
            for entry in admitted_entries(
                decode_manifest([zlib.compress(lines([*root, *rows]))]), tree, single_file_name=named
            ):
                place = top / ("named" if named and single else os.fsdecode(entry.path))
                assert not os.path.lexists(place) or place == top
                if entry.kind == "d":
                    place.mkdir(exist_ok=place == top)
                elif entry.kind == "l":
                    assert not named
                    place.symlink_to(os.fsdecode(entry.link_target))
                elif entry.hardlink_to:
                    place.hardlink_to(top / os.fsdecode(entry.hardlink_to))
                else:
                    place.touch()
        except ManifestDamaged:
            pass
        assert [*(Path(folder) / "above").iterdir()] == [top]
        for path in top.rglob("*"):
            if path.is_symlink() and not leads_to_itself(path):
                assert os.path.realpath(path).startswith(str(top))


@fuzzed
@given(JSON.map(lambda said: json.dumps(said).encode()) | st.binary(max_size=50), JSON)
def test_fuzz_a_line_of_an_agent(line: bytes, question: Any) -> None:
    for each in (
        line,
        json.dumps({"progress": question}).encode(),
        json.dumps({"error": "x", "keys": question}).encode(),
    ):
        try:
            said = _parse_line(each)
        except AgentError as error:
            assert len(str(error)) < 2000  # noqa: PT017 - one of two ends
            continue
        assert said.progress is None or 0 <= said.progress.bytes <= MAX_FILE_BYTES
        assert all(isinstance(key, str) for key in said.keys)
    for asked in ({"sign": question}, {"present": question}, question if isinstance(question, dict) else {}):
        try:
            answer_agent_request(MemoryStager(), "n1", ("GET", "PUT"), "out/7/n1", asked)
        except StageFailed as error:
            assert not error.retryable  # noqa: PT017 - one of two ends


TREES = st.fixed_dictionaries(
    {
        "digest": st.sampled_from([KEY, "x", 7]), "entries": NUMBERS, "size": NUMBERS, "single": st.booleans() | JSON,
        "manifest": st.just([[KEY, 0, 5]]) | PIECES,
    }
)  # fmt: skip
GOOD_TREE = {"digest": KEY, "manifest": [[KEY, 0, 5]], "entries": 1, "size": 5, "single": False}


@fuzzed
@given(
    st.fixed_dictionaries({
        "trees": st.lists(TREES | st.just(GOOD_TREE) | JSON, max_size=2) | JSON,
        "files": st.lists(TREES | st.none() | st.just(GOOD_TREE), max_size=2) | JSON,
        "missing": TREES | st.none(), "sent": NUMBERS | st.just(5), "seconds": st.floats() | NUMBERS,
        "warnings": st.lists(st.text(max_size=9) | JSON, max_size=3) | JSON,
        "workdir": TREES | st.none() | st.just(GOOD_TREE) | JSON,
    }),
    st.booleans(),
)  # fmt: skip
def test_fuzz_what_was_collected(said: dict[str, Any], workdir: bool) -> None:
    try:
        found = parse_collected_output("n1", "out/7/n1", [0], ["/home/a/o"], said, workdir=workdir)
    except StageFailed as error:
        assert str(error).isprintable()  # noqa: PT017 - one of two ends
        return
    asked = {"0", f"{FILE_PREFIX}/home/a/o", MISSING_KEY, *([WORKDIR_KEY] if workdir else [])}
    assert set(found.trees) <= asked
    assert 0 <= sum(tree.size for tree in found.trees.values()) <= MAX_TREE_BYTES
    assert 0 <= found.sent <= MAX_TREE_BYTES
    assert 0 <= found.seconds <= 1e9
    for tree in found.trees.values():
        assert 0 <= tree.entries <= MAX_ENTRIES
        assert all(len(piece.key) == 64 and not piece.offset and piece.length > 0 for piece in tree.manifest)


PLACES = ["c/step-1", "c/step-1/x", "c/other", "c/../step-1", "/c/step-1", "c//step-1", "c/step-\n", "c/step-\x7f", ""]


@fuzzed
@given(
    st.fixed_dictionaries({
        "path": st.sampled_from(PLACES) | st.text(max_size=9) | JSON, "fingerprint": st.sampled_from([KEY, "", "x", 7]),
        "tree": TREES | st.none() | st.just(GOOD_TREE), "changing": st.text(max_size=9) | JSON,
        "sent": NUMBERS | st.just(5), "seconds": st.floats() | NUMBERS | st.just(1.0),
    })
)  # fmt: skip
def test_fuzz_what_was_taken_of_a_checkpoint(said: dict[str, Any]) -> None:
    """Its path is one that the line names: it goes into the environment of the job's next run."""
    try:
        found = parse_collected_checkpoint("n1", "checkpoint/7", "c/step-*", 1000, said)
    except StageFailed as error:
        assert str(error).isprintable()  # noqa: PT017 - one of two ends
        return
    assert found.path in {"", "c/step-1"}
    assert found.changing.isprintable()
    if found.tree is not None:
        assert (found.path, found.fingerprint) == ("c/step-1", KEY)
        assert 0 <= found.tree.size <= 1000


@fuzzed
@given(JSON | st.fixed_dictionaries({"port": NUMBERS, "exit_code": NUMBERS | st.none(), "seconds": st.floats()}))
def test_fuzz_what_came_of_a_command_and_of_shared_scratch(said: Any) -> None:
    with contextlib.suppress(StageFailed):
        assert 0 <= parse_shared_port("n1", said) <= 65535
    with contextlib.suppress(StageFailed):
        end = parse_command_end("n1", said)
        assert end.exit_code is None or 0 <= end.exit_code <= 255
        assert 0 <= end.seconds <= 1e9


@pytest.mark.parametrize("path", PLACES[1:-1])
def test_a_checkpoint_that_its_job_does_not_name(path: str) -> None:
    said = {"path": path, "fingerprint": KEY, "tree": GOOD_TREE, "changing": "", "sent": 5, "seconds": 1.0}
    assert parse_collected_checkpoint("n1", "p", "c/step-*", 9, {**said, "path": "c/step-1"}).path == "c/step-1"
    with pytest.raises(StageFailed, match="it was not asked for that"):
        parse_collected_checkpoint("n1", "p", "c/step-*", 9, said)


@fuzzed
@settings(max_examples=examples(30))
@given(st.binary(max_size=60), st.sampled_from([0, 1, 2, 1 << 31]), st.integers(0, 255), JSON)
def test_fuzz_frames_of_a_storage_node(noise: bytes, number: int, say: int, said: Any) -> None:
    body = json.dumps(said).encode()
    greeting = MAGIC + HEADER.pack(0, ReplyStatus.OK, 0, 0)
    for answer_of in (noise, greeting + noise, greeting + HEADER.pack(number, say, 0, len(body)) + body + noise):
        asked, out = os.pipe()
        back, says = os.pipe()
        os.write(says, answer_of)
        os.close(says)
        client = ObjectServerClient(os.fdopen(back, "rb", 0), os.fdopen(out, "wb", 0), timeout_s=5)
        try:
            found = client.present(["in/a"])
            assert set(found) <= {"in/a"}
            assert all(0 <= size <= MAX_FILE_BYTES for size in found.values())
        except StagerError as error:
            assert len(str(error)) < 2000  # noqa: PT017 - one of two ends
        finally:
            client.close()
            os.close(asked)


PATHS = ["in/a", "../x", "/etc/x", "a/../../x", ".programs/x", "", "x" * 300, "in/a\nin/b", "in/a\n../../x", "\0"]
KEYS = st.sampled_from(PATHS)
REQUESTS = st.lists(st.tuples(st.sampled_from([*RequestKind, 0, 77]), KEYS, KEYS | st.text(max_size=9)), max_size=6)


@fuzzed
@settings(max_examples=examples(30))
@given(REQUESTS, st.binary(max_size=20))
def test_fuzz_frames_of_a_client(asked: list[tuple[int, str, str]], noise: bytes) -> None:
    frames = b"".join(
        HEADER.pack(number, what, len(text.encode()), len(body.encode())) + text.encode() + body.encode()
        for number, (what, text, body) in enumerate(asked)
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kept").write_text("kept")
        with tempfile.TemporaryFile() as come, tempfile.TemporaryFile() as go:
            come.write(frames + noise)
            come.seek(0)
            serve_objects(f"{folder}/root", come, go)
        assert {path.name for path in Path(folder).iterdir()} <= {"kept", "root"}
        assert (Path(folder) / "kept").read_text() == "kept"


@fuzzed
@settings(max_examples=examples(30))
@given(st.integers(0), st.binary(min_size=1, max_size=4000), st.booleans())
def test_fuzz_a_damaged_index_is_begun_anew(where: int, noise: bytes, short: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.db"
        index = ContentIndex(path)
        index.record_put("s", "in", {KEY: 5}, {b"c" * 32: [ObjectRange(KEY, 0, 5)]})
        index.add_tree("s", Tree("in", KEY, (ObjectRange(KEY, 0, 5),), 1, 5), [KEY], uid=1)
        index.close()
        whole = bytearray(path.read_bytes())
        at = where % len(whole)
        whole[at : at + len(noise)] = noise
        path.write_bytes(whole[:at] if short else whole)
        for _ in range(2):
            index = ContentIndex(path)
            for ask in _asked(index):
                try:
                    ask()
                except StoreBusy:
                    continue
            index.close()


def _asked(index: ContentIndex) -> Iterator[Any]:
    yield lambda: index.present_objects("s", "in", [KEY])
    yield lambda: index.content_pieces("s", "in", [b"c" * 32])
    yield index.trees
    yield index.usage_by_uid
    yield lambda: index.known_contents(1, [FileIdentity(1, 1, 1, 1, 1)])
    yield lambda: index.record_put("s", "in", {KEY: 5})
