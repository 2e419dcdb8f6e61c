"""The interface of buckets of S3 and containers of Swift for the object worker, with the user's own credentials."""

from __future__ import annotations

import errno
import io
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Protocol

PART_BYTES = 32 << 20
"""Larger objects are read and written in parts of this size, side by side."""
MAX_USER_OBJECT_BYTES = 1 << 53
"""No object is larger: S3 ends at 48.8 TiB, and what JSON says is exact up to here."""
MAX_SORTED = 100_000
"""So many objects are sorted of a server that lists them in no order."""
_AHEAD = 5000
_EMPTY_PAGES = 100
TRANSIENT_ERRNO = errno.EAGAIN
"""Of a failure that may be over in a while."""
_STAMP = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class UserObject:
    """An object. ``tag`` changes with its content; ``mtime_ns``: when it was put."""

    key: str
    size: int
    mtime_ns: int
    tag: str

    def __post_init__(self) -> None:
        """Raises OSError where a server says what no object has."""
        if not (0 <= self.size <= MAX_USER_OBJECT_BYTES and isinstance(self.tag, str)):
            raise OSError(errno.EINVAL, f"the server says that it has {self.size} bytes, which no object has", self.key)


def checked_listing(prefix: str, pages: Iterable[Iterable[UserObject]]) -> Iterator[UserObject]:
    """The objects of a list, page by page. Raises OSError where it is none of this prefix, or has no end."""
    last, empty = "", 0
    for page in pages:
        empty += 1
        for found in page:
            empty = 0
            if not found.key.startswith(prefix):
                raise OSError(errno.EINVAL, "the server lists what was not asked for", found.key)
            if found.key == last:
                raise OSError(errno.EINVAL, "the server lists an object twice", found.key)
            last = found.key
            yield found
        if empty > _EMPTY_PAGES:
            raise OSError(errno.EINVAL, "the server lists empty pages without an end", prefix)


def sorted_by_key(listed: Iterator[UserObject]) -> Iterator[UserObject]:
    """The objects by their keys. Not every server of S3 lists so (directory buckets of S3 Express, Storj): where the
    first of a list are not in order, all are read and sorted. Raises OSError: EFBIG where there are too many for that.
    """
    first = list(islice(listed, _AHEAD))
    if any(before.key > after.key for before, after in pairwise(first)):
        sortable: dict[str, UserObject] = {}
        for found in chain(first, listed):
            if found.key in sortable:
                raise OSError(errno.EINVAL, "the server lists an object twice", found.key)
            sortable[found.key] = found
            if len(sortable) > MAX_SORTED:
                raise unsorted_error(found.key)
        yield from (sortable[key] for key in sorted(sortable))
        return
    last = ""
    for found in chain(first, listed):
        if found.key <= last:
            raise unsorted_error(found.key)
        last = found.key
        yield found


def unsorted_error(key: str) -> OSError:
    """Of a list that is too long to be sorted here."""
    text = "the server does not list its objects in the order of their keys, and lists too many to sort them: name"
    return OSError(errno.EFBIG, f"{text} a folder of at most {MAX_SORTED} objects, or put them into one archive", key)


@dataclass(frozen=True, slots=True)
class UserObjectHead:
    """An object with the time that whoever put it wrote to it, or else when it was put. Nanoseconds since 1970."""

    object: UserObject
    mtime_ns: int


class UserStore(Protocol):
    """One bucket or container. From several threads; raises OSError only, whose ``strerror`` is a sentence."""

    origin: str
    """Tells it from every other."""

    def url(self, key: str) -> str:
        """For people."""
        ...

    def list_sorted(self, prefix: str) -> Iterator[UserObject]:
        """All objects whose key begins so, in the order of keys."""
        ...

    def list_unsorted(self, prefix: str) -> Iterator[UserObject]:
        """The same in the server's order, which may be none."""
        ...

    def head(self, key: str) -> UserObjectHead | None:
        """One object; None: it is not there."""
        ...

    def read_range(self, found: UserObject, offset: int, length: int) -> Iterator[bytes]:
        """Bytes of the object as it was found; EAGAIN where it has changed since."""
        ...

    def part_ranges(self, size: int) -> list[tuple[int, int]]:
        """The parts (offset, length) in which an object of this size is put; one: in a single call."""
        ...

    def put(self, key: str, part: FilePart, mtime_ns: int) -> None:
        """Puts an object in a single call."""
        ...

    def begin_upload(self, key: str, mtime_ns: int) -> MultipartUpload:
        """Begins an object of several parts."""
        ...

    def copy(self, source: UserObject, key: str) -> None:
        """Within the store. EFBIG where it is too large for that."""
        ...

    def delete(self, key: str) -> None:
        """One that is gone is no error."""
        ...

    def check_writable(self, key: str) -> None:
        """Raises where an object cannot be put; leaves nothing."""
        ...


class MultipartUpload(Protocol):
    """An object of several parts on its way; ``put_part`` from several threads."""

    def put_part(self, number: int, part: FilePart) -> None:
        """Part ``number``, from 0."""
        ...

    def complete(self) -> None:
        """The object is there."""
        ...

    def abort(self) -> None:
        """Nothing of it is left."""
        ...


class ByteCounter:
    """Bytes to and from servers, counted by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, count: int) -> None:
        """So many more."""
        with self._lock:
            self.total += count


class FilePart(io.RawIOBase):
    """A run of bytes of an open file, as a file of its own: what HTTP clients want to send."""

    def __init__(self, fd: int, offset: int, length: int, on_read: Callable[[int], object] = int) -> None:
        """``read`` takes how many bytes were read each time."""
        super().__init__()
        self._fd, self._from, self.length, self._at, self._on_read = fd, offset, length, 0, on_read

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        return True

    def readable(self) -> bool:
        """As RawIOBase."""
        return True

    def seekable(self) -> bool:
        """As RawIOBase."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """As RawIOBase."""
        count = min(len(buffer), self.length - self._at)
        if count <= 0:
            return 0
        read = os.preadv(self._fd, [memoryview(buffer)[:count]], self._from + self._at)
        self._at += read
        self._on_read(read)
        return read

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """As RawIOBase."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        """As RawIOBase."""
        return self._at


def cut_into_parts(size: int, part: int, most: int) -> list[tuple[int, int]]:
    """At most ``most`` parts of at least ``part`` bytes, but for the last."""
    part = max(part, -(-size // most))
    return [(offset, min(part, size - offset)) for offset in range(0, size, part)] or [(0, 0)]


def format_mtime(mtime_ns: int) -> str:
    """A time as rclone writes it to objects: seconds with a fraction."""
    return f"{mtime_ns // 10**9}.{mtime_ns % 10**9:09d}"


def parse_mtime(text: str, otherwise: int) -> int:
    """The reverse of ``stamp``; ``otherwise`` where that is no time."""
    found = _STAMP.fullmatch(text or "")
    return int(found[1]) * 10**9 + int((found[2] or "0").ljust(9, "0")) if found else otherwise
