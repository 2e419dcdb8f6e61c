from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import StoreBusy
from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.index import ContentIndex, FileIdentity, IndexedObject
from burstd.transfer.trees.rate_limit import BandwidthLimits, TokenBucket
from tests.lab.patience import patience_s, processor_s


def key(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def tree(word: str) -> Tree:
    return Tree("in", key(word), (ObjectRange(key(f"manifest {word}"), 0, 10),), 3, 100)


def unreferenced(index: ContentIndex, unused_s: float = 0.0) -> list[IndexedObject]:
    return [taken for portion in index.take_unreferenced("s", unused_s=unused_s) for taken in portion]


def content(word: str, *pieces: ObjectRange) -> dict[bytes, tuple[ObjectRange, ...]]:
    return {word.encode(): pieces}


@pytest.fixture
def index(tmp_path: Path) -> ContentIndex:
    return ContentIndex(tmp_path / "index.db")


def test_files_are_known_by_user_and_identity(index: ContentIndex) -> None:
    files = [FileIdentity(5, 10**19 + n, 100, n, n) for n in range(1000)]
    index.record_contents(7, [(f, f.ino.to_bytes(16)) for f in files])
    assert index.known_contents(7, files) == {(f.dev, f.ino): f.ino.to_bytes(16) for f in files}
    assert index.known_contents(8, files) == {}
    one = files[3]
    for changed in (one._replace(size=101), one._replace(mtime_ns=9), one._replace(ctime_ns=9), one._replace(dev=6)):
        assert index.known_contents(7, [changed]) == {}
    assert index.forget_unused_files(60) == 0
    assert index.forget_unused_files(-1) == 1000
    assert index.known_contents(7, files) == {}


def test_contents_come_back_whole_and_go_with_any_of_their_objects(index: ContentIndex) -> None:
    index.record_put("s", "in", {key("a"): 5, key("b"): 6})
    pieces = (ObjectRange(key("a"), 1, 4), ObjectRange("", 0, 1 << 40), ObjectRange(key("b"), 0, 6))
    index.add_contents("s", "in", content("large", *pieces) | content("small", ObjectRange(key("b"), 2, 1)))
    known = index.content_pieces("s", "in", [b"large", b"small", b"none"])
    assert known == {b"large": pieces, b"small": (ObjectRange(key("b"), 2, 1),)}
    assert index.content_pieces("other", "in", [b"large"]) == index.content_pieces("s", "out/1/n", [b"large"]) == {}
    index.finish_eviction([IndexedObject("s", "in", key("a"), 5)])
    assert set(index.content_pieces("s", "in", [b"large", b"small"])) == {b"small"}
    assert index.present_objects("s", "in", [key("a"), key("b")]) == {key("b"): 6}
    assert index.used_bytes("s") == 6


def test_trees_tell_who_uses_how_much(index: ContentIndex) -> None:
    index.record_put("s", "in", {key(w): 10 for w in "abcd"})
    index.add_tree("s", tree("1"), [key("a"), key("b")], uid=1, account="phys", source="/x")
    index.add_tree("s", tree("2"), [key("b"), key("c")], uid=1, account="chem", source="/y")
    index.add_tree("s", tree("2"), [key("b"), key("c")], uid=2, account="phys", source="/z")
    made = [(tree("1"), 1, 20), (tree("2"), 1, 20), (tree("2"), 2, 20)]
    assert [(t.tree, t.uid, t.stored_bytes) for t in index.trees("s")] == made
    assert index.usage_by_uid() == {1: 30, 2: 20}
    assert index.usage_by_account("s") == {"phys": 30, "chem": 20}
    assert index.usage_by_uid("other") == {}
    index.touch_trees("s", [tree("1").digest])
    assert [t.uid for t in index.trees()] == [1, 2, 1]
    index.finish_eviction([IndexedObject("s", "in", key("b"), 10)])
    assert index.trees() == []


def test_eviction_takes_what_no_tree_and_no_transfer_has(index: ContentIndex) -> None:
    index.record_put("s", "in", {key(w): 10 for w in "abcd"})
    index.record_put_begun("s", "in", key("broken"), 10)
    index.add_tree("s", tree("1"), [key("a"), key("b")], uid=1)
    index.add_tree("s", tree("2"), [key("b")], uid=1)
    assert index.pin_objects("s", "in", [key("c")])
    assert unreferenced(index, unused_s=60) == []
    taken = unreferenced(index)
    assert {t.key for t in taken} == {key("d"), key("broken")}
    assert unreferenced(index) == []
    assert index.present_objects("s", "in", [key("d")]) == {}
    index.cancel_eviction(taken)
    assert index.present_objects("s", "in", [key("d")])
    (known,) = (t for t in index.trees() if t.tree == tree("1"))
    index.touch_trees("s", [known.tree.digest])
    assert not index.forget_tree(known), "it was used since"
    (known,) = (t for t in index.trees() if t.tree == tree("1"))
    assert index.forget_tree(known)
    index.unpin_objects("s", "in", [key("c")])
    assert {t.key for t in unreferenced(index)} == {key(w) for w in ("a", "c", "d", "broken")}


def test_a_portion_is_taken_when_it_is_asked_for(index: ContentIndex) -> None:
    index.record_put("s", "in", {key(str(n)): 10 for n in range(5)})
    portions = index.take_unreferenced("s", limit=2)
    taken = next(portions)
    left = sorted({key(str(n)) for n in range(5)} - {t.key for t in taken})
    assert len(left) == 3
    index.pin_objects("s", "in", left[:1])
    index.add_tree("s", tree("1"), left[1:2], uid=1)
    assert [t.key for portion in portions for t in portion] == left[2:]


def test_a_sender_waits_for_an_object_that_is_just_going(index: ContentIndex) -> None:
    index.record_put("s", "in", {key("a"): 10})
    taken = unreferenced(index) + index.take_untracked("s", "in", {key("stray"): 1, key("a"): 10})
    assert [t.key for t in taken] == [key("a"), key("stray")]
    held: list[bool] = []
    sender = threading.Thread(target=lambda: held.append(index.pin_objects("s", "in", [key("a"), key("stray")])))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    index.finish_eviction(taken)
    sender.join(5)
    assert held == [False]
    assert index.present_objects("s", "in", [key("a")]) == {}
    assert index.take_untracked("s", "in", {key("stray"): 1}) == [], "a transfer is about to rely on it"


@pytest.mark.parametrize("fault", ["rubbish", "version", "foreign", "inside"])
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str) -> None:
    path = tmp_path / "index.db"
    if fault == "rubbish":
        path.write_bytes(b"no database" * 1000)
    elif fault == "foreign":
        with sqlite3.connect(path) as db:
            db.execute("create table mine (a)")
        db.close()
    else:
        index = ContentIndex(path)
        index.record_contents(1, [(FileIdentity(1, n, 1, 1, 1), b"c" * 32) for n in range(5000)])
        index.close()
        with sqlite3.connect(path) as db:
            db.execute("pragma user_version = 99" if fault == "version" else "pragma wal_checkpoint(truncate)")
        db.close()
        if fault == "inside":
            whole = bytearray(path.read_bytes())
            whole[8192:65536] = b"\xff" * (65536 - 8192)
            path.write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        index = ContentIndex(path)
    assert "is set aside as index.db.aside and begun anew" in caplog.text
    assert (tmp_path / "index.db.aside").exists()
    index.record_put("s", "in", {key("a"): 1})
    index.close()
    caplog.clear()
    assert ContentIndex(path).present_objects("s", "in", [key("a")]) == {key("a"): 1}
    assert not caplog.text


def test_ten_thousand_files_and_their_contents_are_known_again(index: ContentIndex) -> None:
    """More than one statement takes variables for."""
    files = [FileIdentity(5, n, 100, n, n) for n in range(10_000)]
    contents = {hashlib.sha256(str(n).encode()).digest(): (ObjectRange(key("a"), n, 1),) for n in range(10_000)}
    index.record_put("s", "in", {key("a"): 10_000})
    index.add_contents("s", "in", contents)
    index.record_contents(7, zip(files, contents, strict=True))
    assert index.known_contents(7, files) == {(f.dev, f.ino): c for f, c in zip(files, contents, strict=True)}
    assert index.content_pieces("s", "in", list(contents)) == contents


def test_rates_hold_on_the_average_and_users_do_not_wait_for_each_other() -> None:
    now = [100.0]
    bucket = TokenBucket(1000, clock=lambda: now[0])
    assert [bucket.reserve(500) for _ in range(4)] == [0, 0, 0.5, 1.0]
    bucket.refund(500)
    assert bucket.reserve(500) == 1.0
    now[0] = 200
    assert [bucket.reserve(1000), bucket.reserve(1000)] == [0, 1.0]

    never, cancelled = threading.Event(), threading.Event()
    cancelled.set()
    assert BandwidthLimits().wait(1, 1 << 60, never)
    limits = BandwidthLimits(user_bytes_s=1000, site_bytes_s=10_000)
    assert limits.wait(1, 1000, never)
    assert not limits.wait(1, 5000, cancelled)
    assert limits.wait(2, 1000, never)
    began = time.monotonic()
    assert limits.wait(1, 200, never)
    assert 0.1 < time.monotonic() - began < patience_s(1.5)


@pytest.mark.slow
def test_a_large_index_is_swept_and_counted_while_others_use_it(index: ContentIndex) -> None:
    keys = [f"{n:064x}" for n in range(50_000)]
    index.record_put("s", "in", dict.fromkeys(keys, 10))
    index.add_tree("s", tree("1"), keys[::2], uid=1)
    ended = threading.Event()
    longest = [0.0]

    def ask() -> None:
        while not ended.is_set():
            began = time.monotonic()
            index.present_objects("s", "in", keys[:10])
            longest[0] = max(longest[0], time.monotonic() - began)
            ended.wait(0.01)

    other = threading.Thread(target=ask)
    other.start()
    began = time.process_time()
    try:
        assert index.usage_by_uid() == {1: 250_000}
        count = 0
        for taken in index.take_unreferenced("s"):
            index.finish_eviction(taken)
            count += len(taken)
    finally:
        ended.set()
        other.join()
    assert count == 25_000
    assert time.process_time() - began < processor_s(5), "about 1 s"
    assert longest[0] < 0.5, "about 0.05 s"


def test_a_damaged_file_that_cannot_be_begun_anew_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    index = ContentIndex(path)
    index.record_contents(1, [(FileIdentity(1, n, 1, 1, 1), b"c" * 32) for n in range(5000)])
    index.close()
    index = ContentIndex(path)
    with sqlite3.connect(path) as db:
        db.execute("pragma wal_checkpoint(truncate)")
    db.close()
    whole = bytearray(path.read_bytes())
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    aside = tmp_path / "index.db.aside"
    aside.mkdir()
    for _ in range(2):
        with pytest.raises(StoreBusy, match="cannot be begun anew"):
            index.known_contents(1, [FileIdentity(1, 2500, 1, 1, 1)])
    aside.rmdir()
    with pytest.raises(StoreBusy, match="is begun anew"):
        index.known_contents(1, [FileIdentity(1, 2500, 1, 1, 1)])
    assert index.known_contents(1, [FileIdentity(1, 2500, 1, 1, 1)]) == {}
    index.close()
