"""A hand that says what its user likes: what no hand of burstd answers is a HandError, and nothing stays open."""

from __future__ import annotations

import gc
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from burstd.transfer.privsep import descriptor_channel, worker_answers
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, start_user_worker
from burstd.transfer.privsep.worker import WorkerServer
from tests.transfer.ground import USER, root_only

HUGE = 10**30
Act = Callable[[UserWorker], object]
ACTS: dict[str, Act] = {
    "begin": lambda hand: hand.handshake({}),
    "walk": lambda hand: list(islice(hand.walk("/x"), 9)),
    "look": lambda hand: hand.measure_source("/x"),
    "free": lambda hand: hand.destination_space("/x"),
    "make": lambda hand: hand.make_directories("/x", ["a"]),
    "facts": lambda hand: hand.file_facts("/x", ["a"]),
    "sweep": lambda hand: hand.remove_unfinished("/x", ["a"], job="7"),
    "move": lambda hand: hand.move("/x", "a", "/y", "b", job="7"),
    "open": lambda hand: hand.open_files("/x", ["a"]),
    "create": lambda hand: hand.create_files("/x", ["a"], job="7"),
    "beside": lambda hand: hand.commit_beside("/x", [("n", "a", 0o600, 1, None)], ".s"),
    "fetch": lambda hand: hand.fetch_objects("/x", [["o", "a", 1, 1, "t", "0" * 64]]),
}
LOOK: dict[str, Any] = {"size": 1, "entries": 1, "whole": True, "single": True, "unreadable": [], "largest": []}
ROOM: dict[str, Any] = {"free": 1, "inodes": 1, "writable": True, "there": True, "nearest": "/x"}
BAD: list[Any] = [None, "x", -1, HUGE, [["a", 1]] * 11, [["a", HUGE]], [5]]
FACTS: list[Any] = [0o100644, 1, 1, 1, 1, 1, 1]
LIES: dict[str, list[Any]] = {
    "begin": [{"ready": -1}, {"ready": HUGE}, {"ready": "1"}, {"ready": None}],
    "walk": [
        [["f", "a"]], [["d", "a", 0o104755, 1]], [["d", "a", 1, HUGE]], [["d", "../a", 1, 1]], [["d", "/a", 1, 1]],
        [["d", "a\0", 1, 1]], [["d", "\ud800", 1, 1]], [["d", 7, 1, 1]], [["l", "a", 5, 1, 1]], [["h", "a"]],
        [["o", "a", -1, 1, "t", "0" * 64]], [["o", "a", 1, 1, "t", "zz"]], [["e", "a", HUGE]], [["x", "a", {}]],
        [["q", "a"]], [[]], [[[], "a"]], ["d"], [None], [["x", "a", "b"]] * 5000, {"end": True, "single": 5},
    ],
    "look": [{**LOOK, key: bad} for key in LOOK for bad in BAD],
    "free": [{**ROOM, key: bad} for key in ROOM for bad in [None, 1.5, -2, HUGE]],
    "make": [{"items": bad} for bad in ([], [1], [True, True], None, {"a": 1}, "a")],
    "facts": [{"items": [bad]} for bad in ([], FACTS[:6], [*FACTS[:6], HUGE], [HUGE, *FACTS[1:]], 5, "abcdef")],
    "sweep": [{"items": [bad]} for bad in ("x", -1, HUGE, None)],
    "move": [{"items": [bad]} for bad in ("x", -1, HUGE, None)] + [{"items": [1, 2]}, {"items": []}],
    "open": [{"items": [None]}, {"items": [None, None]}, {"items": 5}],
    "create": [{"items": ["a"]}, {"items": []}],
    "beside": [{"items": [bad]} for bad in ("../a", "/a", 5, None)] + [{"items": []}],
    "fetch": [{"items": [None]}, {"items": []}],
}  # fmt: skip
ANY: list[Any] = [
    None, 5, "x", [1], {}, {"error": 5}, {"error": "x", "errno": "y"}, {"error": "x", "errno": HUGE},
    {"error": "x", "path": 5}, {"error": "x", "errno": [], "path": "/a"},
]  # fmt: skip
CASES = [(what, lie) for what, lies in LIES.items() for lie in [*lies, *ANY]]


class LyingWorker:
    """The other end: answers each request with the same."""

    def __init__(self, *answers: tuple[object, list[int]] | bytes) -> None:
        ours, self._sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(10)
        self._answers = answers
        self.worker = UserWorker(ours)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        # Until the head hangs up, in whatever way.
        with suppress(descriptor_channel.ConnectionEnded, OSError):
            while True:
                descriptor_channel.receive(self._sock)
                for answer in self._answers:
                    if isinstance(answer, bytes):
                        self._sock.sendall(answer)
                    else:
                        descriptor_channel.send(self._sock, *answer)

    def close(self) -> None:
        self.worker.close()
        self._sock.close()
        self._thread.join(10)
        assert not self._thread.is_alive()


def _fds() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}


@pytest.mark.slow
def test_every_lie_is_a_worker_error() -> None:
    gc.collect()  # descriptors that earlier tests have left
    before = _fds()
    for what, lie in CASES:
        liar = LyingWorker((lie, []))
        try:
            with pytest.raises(UserWorkerError) as caught:
                ACTS[what](liar.worker)
            assert len(str(caught.value)) < 3000, (what, lie)
        finally:
            liar.close()
    assert _fds() <= before


@pytest.mark.parametrize("what", ["open", "create", "fetch", "walk", "free"])
def test_descriptors_that_were_not_asked_for_are_closed(tmp_path: Path, what: str) -> None:
    """More than one, none of a regular file, or one that cannot be read or written."""
    file = tmp_path / "file"
    file.write_text("x")
    os.mkfifo(tmp_path / "fifo")
    unfit = os.O_RDONLY if what == "create" else os.O_WRONLY
    right = os.O_WRONLY if what == "create" else os.O_RDONLY
    kinds = [
        [(file, right), (file, right)], [(file, unfit)], [(file, os.O_PATH)], [(tmp_path / "fifo", os.O_RDWR)],
        [(tmp_path, os.O_RDONLY)], [(file, right)] * 60,
    ]  # fmt: skip
    if what == "free":
        kinds = [[(file, right)] * 60]
    for kind in kinds:
        opened = [os.open(path, flags) for path, flags in kind]
        before = _fds()
        message: object = {"items": ["a"], **ROOM}
        liar = LyingWorker(([["f", "a"]] if what == "walk" else message, opened))
        try:
            if what == "free":
                ACTS[what](liar.worker)
            else:
                with pytest.raises(UserWorkerError):
                    ACTS[what](liar.worker)
        finally:
            liar.close()
        assert _fds() == before, kind
        for fd in opened:
            os.close(fd)


def test_an_answer_has_a_length() -> None:
    liar = LyingWorker(struct.pack("!II", 9 << 20, 0))
    try:
        with pytest.raises(UserWorkerError):
            liar.worker.destination_space("/x")
    finally:
        liar.close()


def test_a_walk_that_does_not_end_when_it_is_told_to() -> None:
    row: tuple[object, list[int]] = ([["x", "a", "b"]], [])
    liar = LyingWorker(row, row)
    try:
        walk = liar.worker.walk("/x")
        next(walk)
        walk.close()
        with pytest.raises(UserWorkerError):
            liar.worker.destination_space("/x")
    finally:
        liar.close()


@root_only
@pytest.mark.boxes
def test_a_user_cannot_take_his_worker_over() -> None:
    """Its memory, its descriptors and its threads are not his, though it has his rights."""
    with start_user_worker(USER, USER) as worker:
        assert worker._child is not None
        folder = f"/proc/{worker._child.pid}"
        assert f"\nUid:\t{USER}\t{USER}\t{USER}\t" in Path(folder, "status").read_text()
        tries = f"cat {folder}/mem; ls {folder}/fd; readlink {folder}/exe; cat {folder}/environ"
        done = subprocess.run(["sh", "-c", tries], user=USER, capture_output=True, timeout=30, check=False)
        assert done.stdout == b""
        assert done.stderr.count(b"Permission denied") >= 3


def test_a_file_system_that_counts_nothing_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """CephFS says 2**64-1 free inodes, some others as many free bytes."""
    sent: list[dict[str, Any]] = []
    counted = [*os.statvfs("/")]
    counted[4], counted[5], counted[7] = 1 << 60, 1, (1 << 64) - 1
    monkeypatch.setattr(os, "statvfs", lambda _path: os.statvfs_result(counted))
    monkeypatch.setattr(descriptor_channel, "send", lambda _sock, said: sent.append(said))
    ours, others = socket.socketpair()
    with ours, others:
        WorkerServer(ours)._destination_space({"path": "/"})
    found = worker_answers.destination_space(sent[0])
    assert (found.free_inodes, found.free_bytes) == (-1, (1 << 63) - 1)
