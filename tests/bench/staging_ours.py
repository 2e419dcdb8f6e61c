"""burstd's own ways: a Sender as the daemon has it, an agent as a node runs it."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from burstd.domain.plugins.stager import Stager
from burstd.domain.staging import Tree
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.protocol.bundle import agent_zipapp
from burstd.transfer.trees.upload import StagedFor, TreeUploader

USER = 61001
_UNVERIFIED = """
import sys
from types import SimpleNamespace
from unittest import mock
sys.path.insert(0, sys.argv[1])
from burstd.transfer.agent import fetch, main
fetch.hashlib = SimpleNamespace(sha256=lambda body: SimpleNamespace(hexdigest=lambda: mock.ANY))
sys.exit(main.main())
"""
"""The agent, which believes that an object is what its name says."""


@contextmanager
def no_digests() -> Iterator[None]:
    """Objects that are put have numbers for names: nothing is made of their content."""
    numbers = itertools.count()

    def number(body: bytes | memoryview) -> Any:
        return hashlib.sha256(str(next(numbers)).encode())

    with mock.patch("burstd.transfer.content_store.upload_pool.hashlib", SimpleNamespace(sha256=number)):
        yield


class CountingStager:
    """A stager that counts the bytes of what is put."""

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._lock = threading.Lock()
        self.bytes_put = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stager, name)

    def put(self, key: str, body: bytes | memoryview) -> None:
        """See Stager."""
        self._stager.put(key, body)
        with self._lock:
            self.bytes_put += len(body)


def send(sender: TreeUploader, source: Path, uid: int = USER, progress: UploadProgress | None = None) -> Tree:
    """The whole way: a hand is started, the source walked, read, hashed, and put."""
    with start_user_worker(uid, uid) as hand:
        return sender.upload(hand, str(source), owner=StagedFor(uid), progress=progress)


def send_concurrently(sender: TreeUploader, source: Path, uids: Sequence[int]) -> int:
    """By a thread for each; returns the bytes that they say they have sent, together. Raises what one raises."""
    counters = [UploadProgress() for _ in uids]
    faults: list[BaseException] = []

    def one(uid: int, progress: UploadProgress) -> None:
        try:
            send(sender, source, uid, progress)
        except BaseException as error:  # noqa: BLE001 - raised below
            faults.append(error)

    threads = [threading.Thread(target=one, args=pair) for pair in zip(uids, counters, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return sum(counter.bytes_sent for counter in counters)


class BenchNode:
    """A folder as a node's disk, in which the agent places trees."""

    def __init__(self, top: Path, *, digests: bool = True) -> None:
        self.top = top
        self.program = top / "agent.pyz"
        self.program.write_bytes(agent_zipapp())
        self._words = [str(self.program)] if digests else ["-c", _UNVERIFIED, str(self.program)]
        self._jobs = 0

    def deliver(self, stager: Stager, tree: Tree) -> Callable[[], dict[str, Any]]:
        """What places it for a job of its own, nothing being there."""
        self._jobs += 1
        spool = self.top / f"spool-{self._jobs}"
        spool.mkdir(mode=0o755)
        reach = stager.node_access()
        row = {
            "name": "data", "access": "read_only", "prefix": tree.prefix, "digest": tree.digest, "single": tree.single,
            "manifest": [[p.key, p.offset, p.length] for p in tree.manifest], "size": tree.size,
        }  # fmt: skip
        request = {
            "do": "place", "job": "1", "user": "ada", "uid": USER, "gid": USER, "groups": [USER],
            "dir": str(spool / "1"), "reach": {"kind": reach.kind, "facts": dict(reach.facts)}, "trees": [row],
            "scratch": 0, "cache": {"dir": str(spool / "cache"), "keep_free": 0},
        }  # fmt: skip
        return lambda: self._run_agent(request, stager)

    def clear(self) -> None:
        """Removes what was placed."""
        for spool in self.top.glob("spool-*"):
            shutil.rmtree(spool)

    def _run_agent(self, request: Mapping[str, Any], stager: Stager) -> dict[str, Any]:
        words = [sys.executable, "-I", "-S", *self._words]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def say(message: Mapping[str, Any]) -> None:
                assert process.stdin is not None
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()

            say(request)
            for line in process.stdout:
                row = json.loads(line)
                if "sign" in row:
                    say({"urls": dict(stager.sign(row["sign"]["method"], row["sign"]["keys"]))})
                elif "done" in row:
                    return dict(row["done"])
                elif "error" in row:
                    raise RuntimeError(row["error"])
        raise RuntimeError("the agent ended without an answer")


def new_sender(stager: Stager, index: Path) -> TreeUploader:
    """One whose index knows nothing."""
    index.unlink(missing_ok=True)
    return TreeUploader(ContentIndex(index), stager)
