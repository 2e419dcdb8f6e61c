"""Objects of users, in and out, with a user's rights and own credentials, on real servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import Tree
from burstd.testing.store_world import FaultyProxy
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, account
from burstd.transfer.privsep.object_workers import object_worker_for
from burstd.transfer.trees.restore import RestoredFile, TreeRestorer
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from staging.objects.listing import object_rows
from staging.objects.user_store import UserObject, UserStore
from tests.lab.s3_server import S3Server
from tests.lab.swift_server import SwiftServer
from tests.transfer.memory import MemoryStager
from tests.transfer.object_worlds import UID, ObjectServerWorld, file_worker_of, s3_world, swift_world
from tests.transfer.test_sender import wait_until

BIG = os.urandom(1 << 20) * 70
"""Larger than what is put in one call, to S3 and to Swift."""
TREE = {"a.txt": b"hello", "sub/b c\n.txt": b"x" * 5000, "sub/deep/é": b"", "big": BIG}
boxes = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


@pytest.fixture(scope="module", params=[pytest.param("s3", marks=boxes), pytest.param("swift", marks=boxes)])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServerWorld]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "s3":
        with S3Server(folder, own_keys=["mine"]) as s3:
            yield s3_world(s3)
    else:
        with SwiftServer(folder) as swift:
            yield swift_world(swift)


def _restore(stager: MemoryStager, worker: UserWorker, tree: Tree, root: str) -> list[RestoredFile]:
    told: list[RestoredFile] = []
    TreeRestorer(stager.get, "memory").restore(
        worker, tree, root, job="7", name="", on_file=told.append, cancelled=threading.Event()
    )
    return told


def test_a_tree_comes_in_once(world: ObjectServerWorld) -> None:
    for name, body in TREE.items():
        world.put(f"in/{name}", body)
    world.put("inside", b"beside it")
    stager = MemoryStager()
    sender = TreeUploader(ContentIndex(None), stager)
    source, size = f"{world.root}/in/", sum(map(len, TREE.values()))
    with (
        world.user() as who,
        object_worker_for(who, world.kind, loopback=True) as worker,
        file_worker_of(who) as (files, folder),
    ):
        look = worker.measure_source(source)
        assert (look.size, look.single, look.complete) == (size, False, True)
        first, again, third = UploadProgress(), UploadProgress(), UploadProgress()
        tree = sender.upload(worker, source, owner=StagedFor(UID), progress=first)
        assert (tree.size, worker.bytes_fetched) == (size, size)
        assert sender.upload(worker, source, owner=StagedFor(UID), progress=again).digest == tree.digest
        assert (again.bytes_sent, again.bytes_hits, worker.bytes_fetched) == (0, size, size)
        _restore(stager, files, tree, str(folder))
        assert {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()} == TREE
        world.put("in/a.txt", b"other")
        sender.upload(worker, source, owner=StagedFor(UID), progress=third)
        assert (third.bytes_hits, worker.bytes_fetched) == (size - 5, size + 5)
        single = sender.upload(worker, f"{world.root}/in/a.txt", owner=StagedFor(UID))
        assert (single.single, single.size, single.entries) == (True, 5, 1)


def test_users_do_not_go_by_each_others_workers(world: ObjectServerWorld) -> None:
    """What an object is, its user's worker says: another user who wants it at the same time reads it himself."""
    world.put("large", body := bytes(OBJECT_BYTES) + b"end")
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_key: str) -> None:
        begun.set()
        assert go_on.wait(20)

    sender = TreeUploader(ContentIndex(None), MemoryStager(before_put=slowly))
    with (
        world.user() as who,
        object_worker_for(who, world.kind, loopback=True) as one,
        object_worker_for(who, world.kind, loopback=True) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        first = threads.submit(sender.upload, one, f"{world.root}/large", owner=StagedFor(UID))
        assert begun.wait(20)
        second = threads.submit(sender.upload, other, f"{world.root}/large", owner=StagedFor(UID + 1))
        wait_until(lambda: other.bytes_fetched > 0)
        go_on.set()
        assert first.result().digest == second.result().digest
        assert (one.bytes_fetched, other.bytes_fetched) == (len(body), len(body))


def test_what_cannot_come_in(world: ObjectServerWorld) -> None:
    world.put("there/x", b"x")
    cases = {
        f"{world.root}/none": "there is no such object",
        f"{world.root}/none/": "there is no object under it",
        f"{world.root}/there": "end it in '/' for all objects under it",
        f"{world.kind}://nowhere/x": "there is no bucket|there is no container|do not allow it",
    }
    if world.kind == "s3":
        cases["s3://other/theirs"] = r"the credentials of profile burst in .*/\.aws/credentials do not allow it"
        cases["s3://other/"] = "do not allow it"
    with world.object_worker() as worker:
        for source, said in cases.items():
            with pytest.raises(UserWorkerError, match=said) as caught:
                worker.measure_source(source)
            assert source in str(caught.value)
            assert world.secret not in str(caught.value)
        assert worker.measure_source(f"{world.root}/there/x").size == 1, "a hand outlives refusals"


def test_credentials_that_are_none(world: ObjectServerWorld) -> None:
    name = [*world.files(1)][-1]
    right = dict(world.files(world.address[1]))
    wrong = {**right, name: right[name].replace(world.secret, "made-up")}
    cases = [({}, rf"no credentials in .*/{name}: write"), (wrong, rf"{name}")]
    for files, said in cases:
        with world.object_worker(files) as worker, pytest.raises(UserWorkerError, match=said) as caught:
            worker.measure_source(f"{world.root}/x")
        assert caught.value.errno == 13, caught.value
        assert world.secret not in str(caught.value)
        assert "made-up" not in str(caught.value)
    with world.user(right) as who:
        (Path(who.home) / name).chmod(0)
        with object_worker_for(who, world.kind, loopback=True) as worker, pytest.raises(UserWorkerError, match=name):
            worker.measure_source(f"{world.root}/x")


def test_outputs_go_home_once(world: ObjectServerWorld) -> None:
    stager = MemoryStager()
    sender = TreeUploader(ContentIndex(None), stager)
    with (
        world.user() as who,
        file_worker_of(who) as (files, folder),
        object_worker_for(who, world.kind, loopback=True) as worker,
    ):
        (folder / "d").mkdir()
        (folder / "d/small").write_bytes(b"s" * 3000)
        (folder / "big").write_bytes(BIG)
        (folder / "link").symlink_to("big")
        os.link(folder / "d/small", folder / "second")
        for path in folder.rglob("*"):
            os.lchown(path, UID, UID)
        os.utime(folder / "big", ns=(1_700_000_000_123_456_789,) * 2)
        tree = sender.upload(files, str(folder), owner=StagedFor(UID))
        room = worker.destination_space(f"{world.root}/out/7")
        assert (room.writable, room.exists) == (True, False)
        _restore(stager, worker, tree, f"{world.root}/out/7")
        assert worker.left_out == [f"{world.root}/out/7/link"]
        assert {key for key in world.names() if "out/7" in key} == {f"out/7/{n}" for n in ("big", "d/small", "second")}
        body, beside = world.get("out/7/big")
        assert (body == BIG, beside["mtime"]) == (True, "1700000000.123456789")
        assert world.get("out/7/second")[0] == b"s" * 3000
        assert {b.path: b.skipped for b in _restore(stager, worker, tree, f"{world.root}/out/7")} == {
            "big": False, "d/small": False,
        }  # fmt: skip
        assert worker.destination_space(f"{world.root}/out/7").exists
        worker.remove_files(f"{world.root}/out/7", ["second", "gone"])
        assert "out/7/second" not in world.names()


def test_a_broken_upload_leaves_nothing(world: ObjectServerWorld) -> None:
    stager = MemoryStager()
    sender = TreeUploader(ContentIndex(None), stager)
    with FaultyProxy(world.address) as line, world.user(port=line.port) as who, file_worker_of(who) as (files, folder):
        (folder / "big").write_bytes(BIG)
        os.chown(folder / "big", UID, UID)
        tree = sender.upload(files, str(folder), owner=StagedFor(UID))
        line.cut_after(8 << 20)
        with object_worker_for(who, world.kind, loopback=True) as worker:
            with pytest.raises(UserWorkerError, match="the server does not answer") as caught:
                _restore(stager, worker, tree, f"{world.root}/broken")
            assert caught.value.errno == 11
            assert not {key for key in world.names() if "broken" in key}
            line.stop_cutting()
            _restore(stager, worker, tree, f"{world.root}/broken")
        assert world.get("broken/big")[0] == BIG


class ListedStore:
    """Keys in a place that has nothing else."""

    origin = "test"

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def url(self, key: str) -> str:
        return f"s3://b/{key}"

    def list_sorted(self, prefix: str) -> Iterator[UserObject]:
        return (UserObject(key, 3 * (not key.endswith("/")), 1, "t") for key in self._keys if key.startswith(prefix))


@pytest.mark.parametrize(
    ("keys", "seen"),
    [
        (["p/a", "p/b/c", "p/b/d/e"], ["d:", "o:a", "d:b", "o:b/c", "d:b/d", "o:b/d/e"]),
        (["p/", "p/dir/", "p/x"], ["d:", "d:dir", "o:x"]),
        (["p/a", "p/a-b", "p/a/c"], ["d:", "o:a", "o:a-b", "x:a/c"]),
        (["p/../up", "p//x", "p/a/./b", "p/" + "n" * 256], ["d:", "x:../up", "x:/x", "x:a/./b", "x:" + "n" * 256]),
        (["p/a/b", "p/a/c", "p/b"], ["d:", "d:a", "o:a/b", "o:a/c", "o:b"]),
    ],
)
def test_keys_as_paths(keys: list[str], seen: list[str]) -> None:
    place: UserStore = ListedStore(*keys)  # type: ignore[assignment]
    assert [f"{row[0]}:{row[1]}" for row in object_rows(place, "p/")] == seen


def _serve(listener: socket.socket, program: list[str]) -> subprocess.Popen[bytes]:
    """As systemd does for a socket with Accept=yes."""
    taken, _ = listener.accept()
    with taken:
        words = [sys.executable, "-I", *program, "--fd", str(taken.fileno())]
        return subprocess.Popen(words, pass_fds=[taken.fileno()], env={}, cwd="/")


NO_BOTO = """import sys
sys.modules["botocore"] = None
from staging.objects import user_worker
sys.exit(user_worker.main([*sys.argv[1:], "--accounts"]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (
            ["-m", "staging.objects.user_worker", "--accounts"],
            r"no credentials in /nonexistent/\.aws/credentials: write",
        ),
        (["-c", NO_BOTO], r"s3:// needs boto3 on this machine.*pip install 'burstd\[s3\]'"),
    ],
)
def test_workers_that_systemd_starts(tmp_path: Path, program: list[str], said: str) -> None:
    who = account("nobody")
    at = tmp_path / "object-worker.sock"
    with pytest.raises(UserWorkerError, match=r"start burstd-object-worker\.socket"):
        object_worker_for(who, "s3", socket_path=at)
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as other:
        listener.bind(str(at))
        listener.listen()
        child = other.submit(_serve, listener, program)
        claims = replace(who, home=str(tmp_path), groups=(0,))
        with pytest.raises(UserWorkerError, match=said), object_worker_for(claims, "s3", socket_path=at) as worker:
            worker.measure_source("s3://mine/x")
        assert child.result().wait(10) == 0
