"""Where a file has data and where holes, and the digest of holes."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.transfer.content_store.manifest import MAX_PIECES

MAX_EXTENTS = 100_000
"""More runs of data are not reported of one file: the manifest lists them."""
_ZEROS = bytes(1 << 20)
_MAX_HASHED_HOLES = 16 << 30
"""A file with more than so many bytes of holes has no digest of the whole: its objects have theirs."""

Extent = tuple[int, int]
"""Of data: its start and its end."""


def data_extents(descriptor: int, size: int, gap: int = 1) -> list[Extent]:
    """Where a file of ``size`` bytes has data, at most MAX_EXTENTS runs; all of it where no file system tells.

    Holes of less than ``gap`` bytes count as data, and larger ones where there are too many. Raises OSError: EFBIG
    where so much data does not fit into a manifest.
    """
    found = merge_extents(_read_extents(descriptor, size), gap, MAX_EXTENTS)
    if len(found) + sum(-(-(end - start) // OBJECT_BYTES) + 1 for start, end in found) > MAX_PIECES:
        raise OSError(errno.EFBIG, "has more data than one file can be staged with: split it into several files")
    return found


def merge_extents(extents: Iterable[Extent], gap: int, most: int) -> list[Extent]:
    """The runs, in order, those less than ``gap`` bytes apart as one; ``gap`` doubles until there are ``most``."""
    found: list[Extent] = []
    for run in extents:
        _append_merged(found, run, gap)
        while len(found) > most:
            gap *= 2
            before, found = found, []
            for each in before:
                _append_merged(found, each, gap)
    return found


def _append_merged(found: list[Extent], run: Extent, gap: int) -> None:
    if found and run[0] - found[-1][1] < gap:
        found[-1] = found[-1][0], run[1]
    else:
        found.append(run)


def _read_extents(descriptor: int, size: int) -> Iterator[Extent]:
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, end = at, size
        if start >= size or end <= start:
            # It changes while it is looked at: what is read of it shows that.
            start, end = at, size
        yield start, min(end, size)
        at = end


def hash_zeros(digest: hashlib._Hash | None, length: int, holes: int) -> hashlib._Hash | None:
    """The digest after ``length`` zeros more, ``holes`` in all; None: there are too many."""
    if digest is None or holes > _MAX_HASHED_HOLES:
        return None
    while length:
        digest.update(_ZEROS[: min(length, len(_ZEROS))])
        length -= min(length, len(_ZEROS))
    return digest
