"""Objects from a storage node's program into memory of the caller's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burstd.domain.plugins.stager import NoSuchObject, StoreBusy, StoreRefused
from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import HEADER, MAGIC, ReplyStatus, RequestKind, read_exactly
from burstd.transfer.protocol.server import serve_objects

pytestmark = pytest.mark.slow

SIZE = 3 << 20


class Ends:
    """A client, and the descriptors of the far end."""

    def __init__(self) -> None:
        self.asked, out = os.pipe()
        back, self.says = os.pipe()
        self.client = ObjectServerClient(os.fdopen(back, "rb", 0), os.fdopen(out, "wb", 0), timeout_s=20)

    def close(self) -> None:
        self.client.close()
        os.close(self.asked)
        os.close(self.says)

    def begin_answer(self, content: bytes, length: int) -> None:
        """Greets, takes one request, and answers with a part of ``length`` bytes."""
        os.write(self.says, MAGIC + HEADER.pack(0, ReplyStatus.OK, 0, 0))
        number, _, text, _ = HEADER.unpack(read_exactly(self.asked, HEADER.size))
        read_exactly(self.asked, text)
        os.write(self.says, HEADER.pack(number, ReplyStatus.OK, 0, length) + content)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_a_room_takes_an_object_or_says_why_not(ends: Ends, tmp_path: Path) -> None:
    with os.fdopen(ends.asked, "rb", 0, closefd=False) as read, os.fdopen(ends.says, "wb", 0, closefd=False) as write:
        program = threading.Thread(target=serve_objects, args=(str(tmp_path / "objects"), read, write))
        program.start()
        client, content = ends.client, os.urandom(SIZE)
        client.put("in/a", content)
        client.put("in/none", b"")
        room = memoryview(bytearray(SIZE + 10))
        with ThreadPoolExecutor(4) as pool:
            rooms = [memoryview(bytearray(SIZE)) for _ in range(8)]
            assert list(pool.map(lambda each: client.get_into("in/a", each), rooms)) == [SIZE] * 8
            assert all(each == content for each in rooms)
        assert client.get_into("in/a", room) == SIZE
        assert bytes(room) == content + bytes(10)
        assert client.get_into("in/none", room) == 0
        with pytest.raises(NoSuchObject):
            client.get_into("in/b", room)
        with pytest.raises(StoreRefused):
            client.get_into("in/a", room[: SIZE - 1])
        assert client.get("in/a") == content
        client.close()
        program.join(20)
        assert not program.is_alive()


def test_nothing_comes_into_a_room_that_was_given_up(ends: Ends) -> None:
    room = memoryview(bytearray(SIZE))
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ends.client.get_into, "in/a", room)
        ends.begin_answer(b"x" * 5000, SIZE)
        while room[4999] != ord("x"):
            assert not asked.done()
        ends.client.close()
        with pytest.raises(StoreBusy):
            asked.result(20)
        room[:] = b"y" * SIZE
        with pytest.raises(BrokenPipeError):
            os.write(ends.says, b"x" * 5000)
        assert room == b"y" * SIZE


def test_an_end_amid_an_answer_is_told(ends: Ends) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ends.client.get_into, "in/a", memoryview(bytearray(SIZE)))
        ends.begin_answer(b"x" * 5000, SIZE)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, ends.says)
        os.close(null)
        with pytest.raises(StoreBusy, match="hung up"):
            asked.result(20)
        assert ends.client.broken


@pytest.mark.slow
def test_what_takes_the_disk_long_is_not_taken_for_idle(tmp_path: Path) -> None:
    script = """if True:
        import sys, time, burstd.transfer.protocol.server as serve
        class Slow(serve.ObjectFolder):
            def objects(self, *of):
                time.sleep(1)
                return super().objects(*of)
            def _rename_into_place(self, *of):
                time.sleep(1)
                super()._rename_into_place(*of)
        serve.ObjectFolder = Slow
        serve.main(sys.argv[1:])
    """
    argv = [sys.executable, "-c", script, "--idle", "0.3", str(tmp_path / "objects")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        client = ObjectServerClient(program.stdout, program.stdin)
        client.put("in/a", b"x")
        assert [o.key for o in client.objects("in/")] == ["in/a"]
        assert program.wait(20) == 0
        client.close()


def test_a_program_that_nobody_asks_ends_by_itself(tmp_path: Path) -> None:
    """Also amid a request, of which nothing is left then."""
    argv = [sys.executable, "-m", "burstd.transfer.protocol.server", "--idle", "0.3", str(tmp_path / "objects")]
    for begun in (b"", HEADER.pack(1, RequestKind.PUT, 4, 100) + b"in/a" + b"half"):
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdin is not None
            program.stdin.write(begun)
            program.stdin.flush()
            assert program.wait(20) == 0
    assert [path.name for path in (tmp_path / "objects").rglob("*")] == [".tmp"]


def test_an_object_comes_by_sockets_too(tmp_path: Path) -> None:
    """Nothing can be spliced from one into a file, and an sshd may give them to its programs."""
    ours, theirs = (os.fdopen(end.detach(), "r+b", 0) for end in socket.socketpair())
    with ours, theirs:
        program = threading.Thread(target=serve_objects, args=(str(tmp_path), theirs, theirs))
        program.start()
        client, content = ObjectServerClient(ours, ours, timeout_s=20), os.urandom(SIZE)
        client.put("in/a", content)
        assert (tmp_path / "in/a").read_bytes() == content
        client.close()
        program.join()
