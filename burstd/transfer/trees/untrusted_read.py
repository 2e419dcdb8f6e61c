"""Reading files through descriptors that somebody else has opened and may lie about."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from burstd.transfer.content_store import sparse
from burstd.transfer.content_store.index import FileIdentity

READ_TRIES = 3
"""A file that changes while it is read is read so often."""
_NO_DEVICE = -1
_HOLE_BYTES = 1 << 20
"""Smaller holes are read as the zeros that they are: each extent is a piece of its own."""


class FileChanged(Exception):
    """The file changed while it was read."""


def file_identity(facts: os.stat_result) -> FileIdentity:
    """What tells a file and its content from others."""
    return FileIdentity(facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def readable_file_facts(fd: int) -> os.stat_result:
    """What the descriptor is, from the kernel. Raises OSError where it does not prove the right to read a file.

    A descriptor can be had of a file that one may not read (O_PATH, O_WRONLY): what the index knows of such a file must
    not be given to who sends it.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    facts = os.fstat(fd)
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY or not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EACCES, "the user worker did not open this file for reading")
    return facts


def is_settled(facts: os.stat_result, now_ns: int) -> bool:
    """Whether a change after ``now_ns`` would show in the times: the clocks of file systems tick coarsely."""
    tick = 2_000_000_000 if facts.st_ctime_ns % 1_000_000_000 == 0 else 50_000_000
    return max(facts.st_ctime_ns, facts.st_mtime_ns) + tick < now_ns


def read_small(fd: int, facts: os.stat_result) -> tuple[bytes, os.stat_result]:
    """The whole of a small file, and its facts. Raises FileChanged after some tries, OSError."""
    for _ in range(READ_TRIES):
        data = os.pread(fd, facts.st_size + 1, 0)
        after = os.fstat(fd)
        if len(data) == facts.st_size and file_identity(after) == file_identity(facts):
            return data, facts
        # Not at once: who writes it shall get on.
        facts = after
        if facts.st_size > 64 << 20:
            break
    raise FileChanged


def object_facts(row: list[Any]) -> os.stat_result:
    """Of an ``o`` row: what is reported of an object, with 120 bits of its identity in place of a file's numbers."""
    _, _, size, mtime_ns, _, identity = row
    # 60 bits are a time before 2007, so that the object counts as settled: its identity changes with its content.
    ino, ctime_ns = int(identity[:15], 16), int(identity[15:30], 16)
    times = {"st_atime_ns": mtime_ns, "st_mtime_ns": mtime_ns, "st_ctime_ns": ctime_ns}
    return os.stat_result((stat.S_IFREG | 0o644, ino, _NO_DEVICE, 1, 0, 0, size, 0, 0, 0), times)


def read_object(fd: int, facts: os.stat_result) -> bytes:
    """The whole of a small object that was fetched. Raises FileChanged where it is no such one."""
    data = os.pread(fd, facts.st_size + 1, 0)
    if len(data) != facts.st_size:
        raise FileChanged
    return data


def extents(fd: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """The file from its beginning to its end: (offset, length, whether it is data; else a hole). Raises OSError."""
    at = 0
    for start, end in sparse.data_extents(fd, size, _HOLE_BYTES):
        if start > at:
            yield at, start - at, False
        yield start, end - start, True
        at = end
    if at < size:
        yield at, size - at, False


def read_into(fd: int, buffer: memoryview, offset: int) -> None:
    """Fills ``buffer`` from ``offset`` of the file. Raises FileChanged where it ends before."""
    while buffer:
        count = os.preadv(fd, [buffer], offset)
        if not count:
            raise FileChanged
        buffer = buffer[count:]
        offset += count


def now_ns() -> int:
    """The time, as file systems tell it."""
    return time.time_ns()
