"""What hands answer, taken apart. A user who has got hold of his own hand says with it whatever he likes.

All raise ValueError, TypeError or LookupError for what no hand of burstd says.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from burstd.transfer.privsep.errors import Facts, Look, Room, Rows
from burstd.transfer.trees.untrusted_read import readable_facts

ANSWER_BYTES = 8 << 20
"""No answer is longer: 512 entries with their names, or 1,000 results."""
_ROWS = 4096
_LARGEST = (1 << 63) - 1


def number(value: Any, least: int = 0, most: int = _LARGEST) -> int:
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


def below(value: Any) -> str:
    """A path that leads nowhere else than below a directory, or ``""``."""
    if text(value).startswith("/") or "/../" in f"/{value}/":
        raise ValueError("leads elsewhere")
    return str(value)


def code(value: Any) -> int:
    """An errno."""
    return number(value, most=4095)


def _mode(value: Any) -> int:
    return number(value, most=0o7777)


def _time(value: Any) -> int:
    return number(value, least=-_LARGEST)


def _identity(value: Any) -> int:
    return int(text(value)[:30], 16)


_FIELDS: Mapping[str, Sequence[Callable[[Any], object]]] = {
    "d": (below, _mode, _time),
    "f": (below,),
    "h": (below, below),
    "l": (below, text, _mode, _time),
    "e": (below, code),
    "o": (below, number, _time, text, _identity),
    "x": (below, text),
}


def rows(message: Any, fds: list[int]) -> Rows:
    """Entries of a walk (burstd.transfer.trees.walk), each ``f`` with its descriptor."""
    if type(message) is not list or len(message) > _ROWS:
        raise TypeError("no entries")
    files = 0
    for row in message:
        for value, check in zip(row[1:], _FIELDS[row[0]], strict=True):
            check(value)
        files += row[0] == "f"
    to_read(fds, files)
    return Rows(message, fds)


def to_read(fds: Sequence[int], count: int) -> None:
    """So many descriptors of regular files that may be read."""
    if len(fds) != count:
        raise ValueError("other descriptors than were asked for")
    for fd in fds:
        try:
            readable_facts(fd)
        except OSError as error:
            raise ValueError(error.strerror) from None


def to_write(fds: Sequence[int], count: int) -> None:
    """So many descriptors of regular files that may be written."""
    if len(fds) != count:
        raise ValueError("other descriptors than were asked for")
    for fd in fds:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_RDONLY or not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no file to write to")


def look(said: Mapping[str, Any]) -> Look:
    """Of a source."""
    unreadable = said["unreadable"]
    if type(unreadable) is not list or len(unreadable) > 10:
        raise TypeError("no list")
    paths = tuple((text(path), code(errno)) for path, errno in unreadable)
    return Look(number(said["size"]), number(said["entries"]), flag(said["whole"]), flag(said["single"]), paths)


def room(said: Mapping[str, Any]) -> Room:
    """Of a destination."""
    inodes = number(said["inodes"], least=-1)
    return Room(number(said["free"]), inodes, flag(said["writable"]), flag(said["there"]), text(said["nearest"]))


def facts(row: Any) -> Facts | None:
    """Of a path; None: nothing is there."""
    if row is None:
        return None
    mode, size, mtime_ns, nlink, dev, ino, uid = row
    most = (1 << 64) - 1
    return Facts(
        number(mode, most=0o177777), number(size), _time(mtime_ns), number(nlink), number(dev, most=most),
        number(ino, most=most), number(uid),
    )  # fmt: skip


def items(said: Mapping[str, Any], count: int) -> list[Any]:
    """As many as were asked for."""
    found = said["items"]
    if type(found) is not list or len(found) != count:
        raise TypeError("no such list")
    return found
