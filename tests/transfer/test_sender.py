from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from burstd.domain.plugins.stager import OBJECT_BYTES, StoreBusy, StoreSpaceGone
from burstd.domain.staging import Tree
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.privsep.client import UserWorkerError, start_user_worker
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import StagedFor, TransferCancelled, TreeUploader
from tests.examples import examples
from tests.transfer.ground import OTHER, USER, entries, give_to_user, in_store, on_disk, root_only, user_folder
from tests.transfer.memory import MemoryStager

pytestmark = [pytest.mark.boxes, root_only]
MIB = 1 << 20


@pytest.fixture
def place() -> Iterator[Path]:
    with user_folder() as made:
        yield made


@pytest.fixture
def stager() -> MemoryStager:
    return MemoryStager()


@pytest.fixture
def sender(stager: MemoryStager) -> TreeUploader:
    return TreeUploader(ContentIndex(None), stager)


def send(
    sender: TreeUploader,
    source: Path,
    *,
    uid: int = USER,
    progress: UploadProgress | None = None,
    cancelled: threading.Event | None = None,
) -> Tree:
    with start_user_worker(uid, uid) as worker:
        return sender.upload(worker, str(source), owner=StagedFor(uid, "phys"), progress=progress, cancelled=cancelled)


def data(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(str(seed).encode()).digest(size)


def age(place: Path) -> None:
    """Lets the clock of the file system tick, so that what was written before is told from what is written later."""
    give_to_user(place)
    newest = max(os.lstat(p).st_ctime_ns for p in [place, *place.rglob("*")])
    while True:
        clock = place.parent / f"{place.name}.tick"
        clock.touch()
        now = clock.stat().st_ctime_ns
        clock.unlink()
        if now > newest + 100_000_000:
            return


def objects_of(stager: MemoryStager, trees: list[Tree]) -> int:
    """Bytes in the store, manifests left out."""
    manifests = {object_key(t.prefix, p.key) for t in trees for p in t.manifest}
    return sum(len(body) for name, body in stager.stored.items() if name not in manifests)


names = st.binary(min_size=1, max_size=12).filter(lambda b: b"/" not in b and b"\0" not in b and b not in (b".", b".."))
contents = st.one_of(st.binary(max_size=40), st.integers(0, 3).map(lambda n: data(MIB + n, n)))
times = st.integers(0, 2**32 * 10**9)
modes = st.sampled_from([0o644, 0o600, 0o4755, 0o400, 0o777])
things = st.one_of(
    st.tuples(st.just("f"), contents, modes, times),
    st.tuples(st.just("l"), names, st.none(), times),
    st.tuples(st.just("h"), st.none(), st.none(), st.none()),
)
trees = st.dictionaries(
    names, st.recursive(things, lambda inner: st.dictionaries(names, inner, max_size=4), max_leaves=8), max_size=6
)


def make(place: Path, what: object, made: list[Path]) -> None:
    if isinstance(what, dict):
        place.mkdir()
        for name, inner in what.items():
            make(place / os.fsdecode(name), inner, made)
        return
    assert isinstance(what, tuple)
    kind, value, mode, time = what
    if kind == "h":
        if made:
            place.hardlink_to(made[len(made) // 2])
        return
    if kind == "l":
        place.symlink_to(os.fsdecode(value))
    else:
        place.write_bytes(value)
        made.append(place)
    os.chown(place, USER, USER, follow_symlinks=False)
    if kind == "f":
        place.chmod(mode)
    os.utime(place, ns=(time, time), follow_symlinks=False)


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(trees)
def test_any_tree_arrives_as_it_is(tree: dict[bytes, object]) -> None:
    stager = MemoryStager()
    sender = TreeUploader(ContentIndex(None), stager)
    with user_folder() as place:
        source = place / "tree"
        make(source, tree, [])
        sent = send(sender, source)
        # setuid, setgid and sticky are nobody else's.
        expected = {name: (kind, mode & 0o777, *rest) for name, (kind, mode, *rest) in on_disk(source).items()}
        assert in_store(stager, sent) == expected
        assert sent.entries == len(expected)
        linked = [e for e in entries(stager, sent) if e.hardlink_to]
        files = [(source / os.fsdecode(path)).lstat() for path, what in expected.items() if what[0] == "f"]
        assert len(linked) == len(files) - len({f.st_ino for f in files})
        before = stager.bytes_put
        assert send(sender, source) == sent
        assert stager.bytes_put == before


def test_holes_are_not_sent_and_links_keep_one_content(place: Path, sender: TreeUploader, stager: MemoryStager) -> None:
    source = place / "tree"
    source.mkdir()
    with (source / "sparse").open("wb") as sparse:
        for n in range(8):
            sparse.seek(n * 40 * MIB)
            sparse.write(data(5000, n))
        sparse.truncate(1000 * MIB)
    (source / "void").touch()
    os.truncate(source / "void", 3 << 40)
    (source / "empty").touch()
    (source / "file").write_bytes(data(3 * MIB))
    os.link(source / "file", source / "same")
    os.mkfifo(source / "pipe")
    progress = UploadProgress()
    give_to_user(place)
    tree = send(sender, source, progress=progress)
    found = {e.path: e for e in entries(stager, tree)}
    assert found[b"same"].hardlink_to == b"file"
    assert found[b"empty"].pieces == ()
    assert [(p.key, p.length) for p in found[b"void"].pieces] == [("", 3 << 40)]
    assert sum(p.length for p in found[b"sparse"].pieces) == found[b"sparse"].size == 1000 * MIB
    assert len({p.key for p in found[b"sparse"].pieces if p.key}) == 1
    assert progress.bytes_sent == stager.bytes_put < 4 * MIB
    assert tree.size == progress.bytes_walked == progress.bytes_done == (1000 + 3) * MIB + (3 << 40)
    assert progress.warnings == ["pipe was left out: pipe"]
    one = send(sender, source / "file")
    assert one.single
    assert [e.path for e in entries(stager, one)] == [b"file"]
    assert not tree.single


def test_what_changed_is_what_is_sent(place: Path, sender: TreeUploader, stager: MemoryStager) -> None:
    source = place / "tree"
    source.mkdir()
    for number in range(300):
        (source / f"{number:03}").write_bytes(data(4096, number))
    (source / "big").write_bytes(data(2 * OBJECT_BYTES + 100))
    age(source)
    first = send(sender, source)
    reads = stager.calls["put"]
    (source / "007").write_bytes(data(4096, 1007))
    (source / "big").open("r+b").write(b"x")
    (source / "moved").write_bytes(data(4096, 8))
    (source / "008").unlink()
    age(source)
    progress = UploadProgress()
    second = send(sender, source, progress=progress)
    assert second.digest != first.digest
    assert in_store(stager, second) == on_disk(source)
    assert stager.calls["put"] == reads + 3, "a pack of one, the first part of the big one, the manifest"
    assert OBJECT_BYTES + 4096 < progress.bytes_sent < OBJECT_BYTES + 4096 + 40_000
    assert progress.bytes_hits == progress.bytes_walked - OBJECT_BYTES - 4096
    third = UploadProgress()
    assert send(sender, source, progress=third) == second
    assert (third.bytes_sent, third.bytes_hits, third.bytes_done) == (0, third.bytes_walked, third.bytes_walked)


def test_many_at_once_send_each_content_once(place: Path, stager: MemoryStager) -> None:
    sender = TreeUploader(ContentIndex(None), stager)
    first = place / "0"
    first.mkdir()
    for number in range(500):
        (first / f"{number}").write_bytes(data(3000, number))
    (first / "big").write_bytes(data(2 * OBJECT_BYTES, 9))
    unique = 500 * 3000 + 2 * OBJECT_BYTES
    give_to_user(first)
    for copy in ("1", "2"):
        shutil.copytree(first, place / copy)
    give_to_user(place)
    with ThreadPoolExecutor(8) as pool:
        progress = [UploadProgress() for _ in range(8)]
        sent = list(
            pool.map(
                lambda n: send(sender, place / str(n % 3), uid=(USER, OTHER)[n % 2], progress=progress[n]), range(8)
            )
        )
    assert objects_of(stager, sent) == unique
    assert sum(p.bytes_sent for p in progress) == stager.bytes_put == sum(map(len, stager.stored.values()))
    assert {p.bytes_done for p in progress} == {unique}
    for n, tree in enumerate(sent[:3]):
        files = {path: what for path, what in in_store(stager, tree).items() if what[0] == "f"}
        assert files == {path: what for path, what in on_disk(place / str(n % 3)).items() if what[0] == "f"}
    assert list(sender.index.take_unreferenced(stager.name)) == []
    assert set(sender.index.usage_by_uid()) == {USER, OTHER}


def test_whoever_waits_for_a_transfer_that_fails_takes_over(place: Path) -> None:
    for name in ("a", "b"):
        (place / name).mkdir()
        (place / name / "small").write_bytes(b"s" * 1000)
        (place / name / "big").write_bytes(data(OBJECT_BYTES + 1))
    give_to_user(place)
    begun, others = threading.Event(), threading.Event()
    first = threading.Lock()

    def full(_key: str) -> None:
        if first.acquire(blocking=False):
            begun.set()
            others.wait(20)
            raise StoreSpaceGone("memory is full")

    stager = MemoryStager(before_put=full)
    sender = TreeUploader(ContentIndex(None), stager, BandwidthLimits(parallel_uploads=1))
    with ThreadPoolExecutor(2) as pool:
        a = pool.submit(send, sender, place / "a")
        assert begun.wait(20)
        progress = UploadProgress()
        b = pool.submit(send, sender, place / "b", uid=OTHER, progress=progress)
        wait_until(lambda: progress.files == 2)
        others.set()
        with pytest.raises(StoreSpaceGone):
            a.result()
        tree = b.result()
    assert in_store(stager, tree) == on_disk(place / "b")
    assert objects_of(stager, [tree]) == 1000 + OBJECT_BYTES + 1


def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        threading.Event().wait(0.01)
    pytest.fail("it did not come to that")


def test_a_busy_store_is_asked_again_and_a_cancelled_transfer_goes_on_later(place: Path) -> None:
    source = place / "big"
    source.write_bytes(data(4 * OBJECT_BYTES))
    give_to_user(place)
    cancelled = threading.Event()
    calls: list[str] = []

    def busy(key: str) -> None:
        calls.append(key)
        if len(calls) == 1:
            raise StoreBusy("later")
        if len(calls) >= 4:
            cancelled.set()
            raise StoreBusy("much later", retry_after_s=1000)

    stager = MemoryStager(before_put=busy)
    sender = TreeUploader(ContentIndex(None), stager, BandwidthLimits(parallel_uploads=1))
    with pytest.raises(TransferCancelled):
        send(sender, source, cancelled=cancelled)
    assert (calls[0], stager.calls["put"]) == (calls[1], 2)
    stager.before_put = None
    progress = UploadProgress()
    tree = send(sender, source, progress=progress)
    assert in_store(stager, tree)[b"big"][3] == source.read_bytes()
    assert (stager.calls["put"], progress.bytes_hits) == (5, 2 * OBJECT_BYTES)


def test_a_store_that_stays_away_is_told_and_what_was_sent_stays(place: Path) -> None:
    source = place / "big"
    source.write_bytes(data(3 * OBJECT_BYTES))
    give_to_user(place)

    def away(_key: str) -> None:
        if store.calls["put"]:
            raise StoreBusy("the store does not answer")

    store = MemoryStager(before_put=away)
    sender = TreeUploader(ContentIndex(None), store, BandwidthLimits(parallel_uploads=1), patience_s=0.6)
    with pytest.raises(StoreBusy, match="does not answer"):
        send(sender, source)
    store.before_put = None
    progress = UploadProgress()
    assert in_store(store, send(sender, source, progress=progress))[b"big"][3] == source.read_bytes()
    assert progress.bytes_hits == OBJECT_BYTES


def test_the_index_and_the_store_may_lose_what_they_know(
    place: Path, sender: TreeUploader, stager: MemoryStager
) -> None:
    source = place / "tree"
    source.mkdir()
    for number in range(3):
        (source / f"{number}").write_bytes(data(OBJECT_BYTES, number))
    (source / "small").write_bytes(b"small")
    age(source)
    tree = send(sender, source)
    before = dict(stager.stored)
    for lost in list(stager.stored):
        del stager.stored[lost]
        puts = stager.calls["put"]
        assert send(sender, source) == tree
        assert (stager.stored, stager.calls["put"]) == (before, puts + 1)
    put = stager.bytes_put
    assert send(TreeUploader(ContentIndex(None), stager), source) == tree
    assert stager.bytes_put == put


def test_what_cannot_be_read_is_not_sent(place: Path, sender: TreeUploader, stager: MemoryStager) -> None:
    (place / "tree" / "sub").mkdir(parents=True)
    (place / "tree" / "a").write_text("mine")
    give_to_user(place)
    (place / "tree" / "sub" / "secret\n").write_text("root's")
    (place / "tree" / "sub" / "secret\n").chmod(0o600)
    with pytest.raises(UserWorkerError) as told:
        send(sender, place / "tree")
    assert str(told.value) == f"{place}/tree/sub/secret\\n: Permission denied"
    assert (
        send_root_file(sender, place / "tree" / "sub" / "secret\n") == f"{place}/tree/sub/secret\\n: Permission denied"
    )
    assert sender.index.trees() == []
    assert stager.calls["put"] == 0


def send_root_file(sender: TreeUploader, path: Path) -> str:
    with pytest.raises(UserWorkerError) as told:
        send(sender, path)
    return str(told.value)


@pytest.mark.parametrize("times", [1, 100])
def test_a_file_that_changes_while_it_is_read(place: Path, times: int) -> None:
    source = place / "big"
    source.write_bytes(data(3 * OBJECT_BYTES))
    give_to_user(place)
    left = [times]

    def change(_key: str) -> None:
        if left[0]:
            left[0] -= 1
            with source.open("ab") as file:
                file.write(data(OBJECT_BYTES + left[0]))

    stager = MemoryStager(before_put=change)
    sender = TreeUploader(ContentIndex(None), stager, BandwidthLimits(parallel_uploads=1))
    if times == 1:
        tree = send(sender, source)
        assert in_store(stager, tree)[b"big"][3] == source.read_bytes()
        assert tree.size == source.stat().st_size
    else:
        with pytest.raises(UserWorkerError, match=f"{source}: changes while it is read"):
            send(sender, source)
