"""Where a file has data and where holes, and the digest of holes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator

_ZEROS = bytes(1 << 20)
_HOLES_HASHED = 16 << 30
"""A file with more than so many bytes of holes has no digest of the whole: its objects have theirs."""


def data(descriptor: int, about: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where a file has data: (start, end). All of it where the file system does not tell."""
    size = about.st_size
    if about.st_blocks * 512 >= size:
        yield 0, size
        return
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, end = at, size
        yield start, min(end, size)
        at = end


def hash_zeros(digest: hashlib._Hash | None, length: int, holes: int) -> hashlib._Hash | None:
    """The digest after ``length`` zeros more, ``holes`` in all; None: there are too many."""
    if digest is None or holes > _HOLES_HASHED:
        return None
    while length:
        digest.update(_ZEROS[: min(length, len(_ZEROS))])
        length -= min(length, len(_ZEROS))
    return digest
