"""What burstctl and burstd say to each other while a user is in a shell of a job: frames of a kind and bytes.

A frame is one byte for its kind, its length in four bytes, and so many bytes: DATA both ways; SIZE (rows and columns,
two bytes each) to burstd; STATUS (the command's exit status, four bytes) or LOST (a sentence) from burstd, once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

DATA, SIZE, STATUS, LOST = b"d", b"s", b"x", b"e"
MAX_FRAME_BYTES = 1 << 16
_HEADER = struct.Struct("!cI")
_SIZE = struct.Struct("!HH")
_STATUS = struct.Struct("!i")


def frame(kind: bytes, payload: bytes) -> bytes:
    """A frame. ``payload`` has at most MAX_FRAME_BYTES."""
    return _HEADER.pack(kind, len(payload)) + payload


def read_frame(receive: Callable[[int], bytes]) -> tuple[bytes, bytes] | None:
    """Kind and bytes of the next frame, from what ``receive`` gives at most so many bytes of; None: there is no more.

    Raises ConnectionError where it is cut off or too long.
    """
    header = _read(receive, _HEADER.size)
    if not header:
        return None
    kind, length = _HEADER.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame has {length} bytes")
    payload = _read(receive, length)
    if len(payload) < length:
        raise ConnectionError("a frame was cut off")
    return kind, payload


def _read(receive: Callable[[int], bytes], length: int) -> bytes:
    found = b""
    while len(found) < length and (piece := receive(length - len(found))):
        found += piece
    if 0 < len(found) < length:
        raise ConnectionError("a frame was cut off")
    return found


def pack_size(rows: int, columns: int) -> bytes:
    """The bytes of SIZE."""
    return _SIZE.pack(min(rows, 65535), min(columns, 65535))


def unpack_size(payload: bytes) -> tuple[int, int]:
    """Rows and columns. Raises ConnectionError."""
    if len(payload) != _SIZE.size:
        raise ConnectionError("a size has two numbers")
    rows, columns = _SIZE.unpack(payload)
    return rows, columns


def pack_status(status: int) -> bytes:
    """The bytes of STATUS."""
    return _STATUS.pack(max(-(2**31), min(status, 2**31 - 1)))


def unpack_status(payload: bytes) -> int:
    """The exit status. Raises ConnectionError."""
    if len(payload) != _STATUS.size:
        raise ConnectionError("a status has one number")
    (status,) = _STATUS.unpack(payload)
    return int(status)
