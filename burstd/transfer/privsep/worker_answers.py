"""Parses answers of user workers. A user in control of his own worker answers whatever he likes.

All raise ValueError, TypeError or LookupError for an answer that no worker of burstd gives.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burstd.transfer.privsep.errors import DestinationSpace, FileFacts, SourceSize, WalkBatch
from burstd.transfer.trees.untrusted_read import readable_file_facts

MAX_ANSWER_BYTES = 8 << 20
"""No answer is longer: 512 entries with their names, or 1,000 results."""
_MAX_ROWS = 4096
_MAX_NUMBER = (1 << 63) - 1


def number(value: Any, least: int = 0, most: int = _MAX_NUMBER) -> int:
    """A whole number within these bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError("no such number")
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return value


def text(value: Any) -> str:
    """A name as os.fsdecode makes it."""
    if type(value) is not str or "\0" in value:
        raise ValueError("no such name")
    os.fsencode(value)
    return value


def relative_path(value: Any) -> str:
    """A path that leads nowhere else than into a directory, or ``""``."""
    if text(value).startswith("/") or "/../" in f"/{value}/":
        raise ValueError("leads elsewhere")
    return str(value)


def code(value: Any) -> int:
    """An errno."""
    return number(value, most=4095)


def _mode(value: Any) -> int:
    return number(value, most=0o7777)


def _time(value: Any) -> int:
    return number(value, least=-_MAX_NUMBER)


def _identity(value: Any) -> int:
    return int(text(value)[:30], 16)


_FIELDS: Mapping[str, Sequence[Callable[[Any], object]]] = {
    "d": (relative_path, _mode, _time),
    "f": (relative_path,),
    "h": (relative_path, relative_path),
    "l": (relative_path, text, _mode, _time),
    "e": (relative_path, code),
    "o": (relative_path, number, _time, text, _identity),
    "x": (relative_path, text),
}


def rows(message: Any, fds: list[int]) -> WalkBatch:
    """Entries of a walk (burstd.transfer.trees.walk), each ``f`` with its descriptor."""
    if type(message) is not list or len(message) > _MAX_ROWS:
        raise TypeError("no entries")
    files = 0
    for row in message:
        for value, check in zip(row[1:], _FIELDS[row[0]], strict=True):
            check(value)
        files += row[0] == "f"
    check_readable(fds, files)
    return WalkBatch(message, fds)


def check_readable(fds: Sequence[int], count: int) -> None:
    """So many descriptors of regular files that may be read."""
    if len(fds) != count:
        raise ValueError("other descriptors than were asked for")
    for fd in fds:
        try:
            readable_file_facts(fd)
        except OSError as error:
            raise ValueError(error.strerror) from None


def check_writable(fds: Sequence[int], count: int) -> None:
    """So many descriptors of regular files that may be written."""
    if len(fds) != count:
        raise ValueError("other descriptors than were asked for")
    for fd in fds:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_RDONLY or not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no file to write to")


def source_size(answer: Mapping[str, Any]) -> SourceSize:
    """Of a source."""
    unreadable = answer["unreadable"]
    if type(unreadable) is not list or len(unreadable) > 10:
        raise TypeError("no list")
    paths = tuple((text(path), code(errno)) for path, errno in unreadable)
    largest = answer.get("largest", [])
    if type(largest) is not list or len(largest) > 10:
        raise TypeError("no list")
    parts = tuple((text(name), number(size), number(entries)) for name, size, entries in largest)
    return SourceSize(
        number(answer["size"]), number(answer["entries"]), flag(answer["whole"]), flag(answer["single"]), paths, parts
    )


def destination_space(answer: Mapping[str, Any]) -> DestinationSpace:
    """Of a destination."""
    inodes = number(answer["inodes"], least=-1)
    return DestinationSpace(
        number(answer["free"]), inodes, flag(answer["writable"]), flag(answer["there"]), text(answer["nearest"])
    )


def file_facts(row: Any) -> FileFacts | None:
    """Of a path; None: nothing is there."""
    if row is None:
        return None
    mode, size, mtime_ns, nlink, dev, ino, uid = row
    most = (1 << 64) - 1
    return FileFacts(
        number(mode, most=0o177777), number(size), _time(mtime_ns), number(nlink), number(dev, most=most),
        number(ino, most=most), number(uid),
    )  # fmt: skip


def items(answer: Mapping[str, Any], count: int) -> list[Any]:
    """As many as were asked for."""
    found = answer["items"]
    if type(found) is not list or len(found) != count:
        raise TypeError("no such list")
    return found
