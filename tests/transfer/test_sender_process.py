"""A sender in a process of its own: killed, and with its memory measured."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.content_store.upload_pool import UploadProgress
from burstd.transfer.trees.upload import TreeUploader
from tests.transfer.ground import USER, give_to_user, in_store, on_disk, root_only, user_folder
from tests.transfer.memory import MemoryStager
from tests.transfer.test_sender import data, send, wait_until

pytestmark = [pytest.mark.boxes, root_only]

KILLED = """
import sys, threading
from pathlib import Path
from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.trees.rate_limit import BandwidthLimits
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.transfer.test_sender_process import FolderStager

def wait(key, left=[int(sys.argv[3])]):
    left[0] -= 1
    if left[0] < 0:
        print("now", flush=True)
        threading.Event().wait()

folder, source = Path(sys.argv[1]), sys.argv[2]
limits = BandwidthLimits(parallel_uploads=1)
uploader = TreeUploader(ContentIndex(folder / "index.db"), FolderStager(folder / "store", wait), limits)
with start_user_worker(int(sys.argv[4]), int(sys.argv[4])) as worker:
    uploader.upload(worker, source, owner=StagedFor(int(sys.argv[4])))
"""


class FolderStager(MemoryStager):
    """Keeps what it is given over the end of its process."""

    def __init__(self, folder: Path, before_put: Callable[[str], None] | None = None) -> None:
        super().__init__("folder", before_put)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.stored = {p.name.replace("_", "/"): p.read_bytes() for p in folder.iterdir()}

    def put(self, key: str, body: bytes | memoryview) -> None:
        super().put(key, body)
        (self.folder / key.replace("/", "_")).write_bytes(body)


@pytest.fixture
def place() -> Iterator[Path]:
    with user_folder() as made:
        yield made


def test_a_killed_transfer_goes_on_where_it_was(place: Path, tmp_path: Path) -> None:
    source = place / "tree"
    source.mkdir()
    for number in range(5):
        (source / f"big{number}").write_bytes(data(OBJECT_BYTES, number))
    for number in range(50):
        (source / f"small{number}").write_bytes(data(1000, number))
    give_to_user(place)
    words = [sys.executable, "-c", KILLED, str(tmp_path), str(source), "3", str(USER)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        before = list((tmp_path / "store").iterdir())
        user_workers = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        child.send_signal(signal.SIGKILL)
    assert len(before) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}/fd/0").exists() for pid in user_workers))
    stager = FolderStager(tmp_path / "store")
    sender = TreeUploader(ContentIndex(tmp_path / "index.db"), stager)
    progress = UploadProgress()
    tree = send(sender, source, progress=progress)
    assert in_store(stager, tree) == on_disk(source)
    assert stager.bytes_put == sum(map(len, stager.stored.values())) - 3 * OBJECT_BYTES
    assert progress.bytes_sent == stager.bytes_put


SIZED = """
import resource, sys
from burstd.transfer.privsep.client import start_user_worker
from burstd.transfer.content_store.index import ContentIndex
from burstd.transfer.trees.upload import StagedFor, TreeUploader
from tests.transfer.memory import MemoryStager

def peak(who):
    return next(int(line.split()[1]) for line in open(f"/proc/{who}/status") if line.startswith("VmHWM"))

uid = int(sys.argv[2])
uploader = TreeUploader(ContentIndex(None), MemoryStager())
with start_user_worker(uid, uid) as worker:
    before, workers = peak("self"), peak(worker._child.pid)
    tree = uploader.upload(worker, sys.argv[1], owner=StagedFor(uid))
    print(tree.entries, peak("self") - before, peak(worker._child.pid) - workers)
"""


def test_memory_does_not_grow_with_the_tree() -> None:
    with user_folder(where="/dev/shm") as shm:  # noqa: S108 - 60,000 files are made quickly there
        for folder in range(20):
            (shm / f"{folder}").mkdir()
            for number in range(3000):
                os.close(os.open(shm / f"{folder}" / f"{number}", os.O_CREAT | os.O_WRONLY, 0o644))
        give_to_user(shm)
        words = [sys.executable, "-c", SIZED, str(shm), str(USER)]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2])
    found, ours, user_workers = map(int, done.stdout.split())
    assert found == 60_021
    assert ours < 80_000, "KiB; 40,000 entries may wait"
    assert user_workers < 8_000
