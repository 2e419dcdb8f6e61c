"""A manifest costs the head little memory and time, whatever a node has put there."""

from __future__ import annotations

import hashlib
import marshal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import zlib
from collections.abc import Sequence

import pytest

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.manifest import ManifestDamaged, decode_manifest, object_key
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import UserWorker
from burstd.transfer.trees.restore import TreeRestorer
from burstd.transfer.trees.writer import inner_directories_first
from tests.lab.patience import processor_s
from tests.transfer.memory import MemoryStager

pytestmark = pytest.mark.slow


_MEASURED = """
import resource, sys, time
from burstd.transfer.content_store.manifest import ManifestDamaged, decode_manifest
from tests.doubles.hostile_agent import endless
body = endless(1 << 30)
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    list(decode_manifest([body]))
except ManifestDamaged as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - began, error)
"""


def test_a_line_without_an_end_is_given_up() -> None:
    done = subprocess.run([sys.executable, "-c", _MEASURED], capture_output=True, text=True, check=True, timeout=100)
    grown_kib, seconds, why = done.stdout.split(" ", 2)
    assert int(grown_kib) < 200 << 10
    assert float(seconds) < 10
    assert "longer than any" in why


def test_an_object_that_inflates_a_thousandfold_is_read_in_one_pass() -> None:
    """30 MB in one object, of which what is left is not copied for each MB that comes out."""
    line = b'{"p":"","t":"d","m":493,"n":5}\n'
    deflate = zlib.compressobj(0)
    body = deflate.compress(line * 1_000_000) + deflate.flush()
    began = time.process_time()
    for count, _ in enumerate(decode_manifest([body]), 1):
        if count == 100_000:
            break
    assert time.process_time() - began < processor_s(20)


@pytest.mark.parametrize("text", [b"[" * 60_000 + b"\n", b'{"p":' * 10_000 + b"\n", b'{"p":"' + b"\\" * 60_000 + b"\n"])
def test_deep_lines_are_damaged(text: bytes) -> None:
    with pytest.raises(ManifestDamaged):
        list(decode_manifest([zlib.compress(text)]))


def test_who_brings_heeds_that_it_is_told_to_stop() -> None:
    store, stop = MemoryStager(), threading.Event()
    lines = b"".join(b'{"p":"%s","t":"d","m":493,"n":5}\n' % (b"%07d" % n if n else b"") for n in range(1_000_000))
    body = zlib.compress(lines)

    class Counts(UserWorker):
        def __init__(self) -> None:
            self.made = 0

        def make_directories(self, root: str, items: object) -> list[bool]:  # noqa: ARG002
            self.made += 1
            if self.made == 3:
                stop.set()
            return []

    key = hashlib.sha256(body).hexdigest()
    store.put(object_key("out", key), body)
    tree = Tree("out", key, (ObjectRange(key, 0, len(body)),), 1_000_000, 0)
    worker = Counts()
    with pytest.raises(TransferCancelled):
        TreeRestorer(store.get, "memory").restore(worker, tree, "/nowhere", job="7", cancelled=stop)
    assert worker.made == 3


class CountingWorker(UserWorker):
    """Makes nothing, and counts what it is asked to settle."""

    def __init__(self) -> None:
        self.settled = 0

    def make_directories(self, root: str, items: Sequence[str]) -> list[bool]:  # noqa: ARG002
        return []

    def finalize_directories(self, root: str, items: Sequence[tuple[str, int, int]]) -> None:  # noqa: ARG002
        self.settled += len(items)


def test_directories_wait_on_the_disk() -> None:
    count = 50_000
    names = (b"%07d" % n if n else b"" for n in range(count))
    body = zlib.compress(b"".join(b'{"p":"%s","t":"d","m":0,"n":5}\n' % name for name in names))
    key = hashlib.sha256(body).hexdigest()
    tree = Tree("out", key, (ObjectRange(key, 0, len(body)),), count, 0)
    worker, restorer = CountingWorker(), TreeRestorer({object_key("out", key): body}.__getitem__, "memory")
    tracemalloc.start()
    try:
        restorer.restore(worker, tree, "/", job="7", cancelled=threading.Event())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert worker.settled == count - 1
    assert peak < 5 << 20, peak


def test_directories_are_settled_after_what_is_in_them() -> None:
    names = ["a", "a/b", "a/b/c", "a/d", "a.x", "e"]
    with tempfile.TemporaryFile() as rows:
        for name in names:
            marshal.dump((name, 0, 5), rows)
        found = [row[0] for row in inner_directories_first(rows)]
    assert found == ["a/b/c", "a/b", "a/d", "a", "a.x", "e"]
