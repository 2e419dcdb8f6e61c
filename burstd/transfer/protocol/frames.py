"""The frames between a storage node's program and its clients, and how bytes go through a pair of descriptors.

The program first says MAGIC (what a login's own scripts print before it is skipped) and one answer with number 0: fit
to serve, or why not. Then each request is a frame with a number of its client's choice and gets one answer of the same
number. A frame: HEADER (number, what, length of the text, length of the body), text, body.
"""

from __future__ import annotations

import errno
import os
import struct
from enum import IntEnum

from burstd.domain.plugins.stager import (
    OBJECT_BYTES,
    NoSuchObject,
    StagerError,
    StoreBusy,
    StoreRefused,
    StoreSpaceGone,
)

MAGIC = b"\0burstd-store-1\n"
HEADER = struct.Struct("!IBxHI")
LIST_PAGE_SIZE = 1000
"""Objects in one answer to LIST."""
MAX_BODY_BYTES = OBJECT_BYTES
"""No frame's body is longer, in bytes."""


class RequestKind(IntEnum):
    """What is asked, with its text and body, and what the answer's body is."""

    PUT = 1
    """Key; content."""
    GET = 2
    """Key. Answer: content."""
    PRESENT = 3
    """Body: keys, a line each. Answer: JSON, key to size."""
    COPY = 4
    """Source and target, a line each."""
    DELETE = 5
    """Body: keys, a line each."""
    LIST = 6
    """Prefix, and the key after which to go on, a line each. Answer: JSON, [key, size, modified] of up to PAGE."""
    UNFINISHED = 7
    """Answer: JSON, [id, key, begun] each."""
    ABORT = 8
    """Body: ids, a line each."""
    FREE = 9
    """Answer: JSON, bytes."""


class ReplyStatus(IntEnum):
    """How an answer begins. The body of all but OK is a sentence."""

    OK = 0
    MISSING = 1
    FULL = 2
    REFUSED = 3
    BUSY = 4


ERROR_OF_STATUS: dict[ReplyStatus, type[StagerError]] = {
    ReplyStatus.MISSING: NoSuchObject,
    ReplyStatus.FULL: StoreSpaceGone,
    ReplyStatus.REFUSED: StoreRefused,
    ReplyStatus.BUSY: StoreBusy,
}


def reply_status(error: StagerError) -> ReplyStatus:
    """How an answer says it."""
    return next((status for status, kind in ERROR_OF_STATUS.items() if isinstance(error, kind)), ReplyStatus.BUSY)


class ConnectionClosed(Exception):
    """The other end is gone. No OSError: those are of the disk."""


def read_exactly(descriptor: int, count: int) -> bytes:
    """Raises HungUp where fewer come."""
    parts = []
    while count:
        try:
            part = os.read(descriptor, count)
        except OSError as error:
            raise ConnectionClosed(str(error)) from None
        if not part:
            raise ConnectionClosed("end of file")
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_exactly(descriptor: int, *parts: bytes | memoryview) -> None:
    """Raises HungUp."""
    for part in parts:
        rest = memoryview(part)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except OSError as error:
                raise ConnectionClosed(str(error)) from None


def send_file(source: int, target: int, size: int) -> int:
    """Bytes of ``source`` sent, fewer than ``size`` where it is shorter. Raises HungUp, or OSError of the source."""
    sent = 0
    while sent < size:
        try:
            count = os.sendfile(target, source, sent, size - sent)
        except OSError as error:
            if error.errno in {errno.EPIPE, errno.ECONNRESET}:
                raise ConnectionClosed(str(error)) from None
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
            body = os.pread(source, min(size - sent, 1 << 20), sent)
            write_exactly(target, body)
            count = len(body)
        if not count:
            break
        sent += count
    return sent
