"""Messages with open descriptors over a unix stream socket: the protocol of burstd and its user workers.

A message is 8 bytes (length of the text, number of descriptors; big endian) and a text of JSON. Descriptors go with the
first byte. Paths are text with surrogates, as os.fsdecode makes it, which JSON carries unharmed.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

FDS_AT_ONCE = 64
"""Descriptors in one message, at most: the kernel's limit is 253."""
MESSAGE_BYTES = 64 << 20
_HEAD = struct.Struct("!II")
_CONTROL_BYTES = socket.CMSG_SPACE(FDS_AT_ONCE * 4)


class ConnectionEnded(Exception):
    """The other end is gone, or does not speak this."""


def send(sock: socket.socket, message: object, fds: list[int] | None = None) -> None:
    """Sends one message; the descriptors stay open here. Raises ConnectionEnded."""
    text = json.dumps(message, separators=(",", ":")).encode()
    data = _HEAD.pack(len(text), len(fds) if fds else 0) + text
    try:
        if fds:
            sent = sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
            if sent < len(data):
                sock.sendall(memoryview(data)[sent:])
        else:
            sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        raise ConnectionEnded("the other end is gone") from None


def receive(sock: socket.socket, limit: int = MESSAGE_BYTES) -> tuple[Any, list[int]]:
    """The next message, of ``limit`` bytes, and its descriptors, the caller's to close. Raises ConnectionEnded."""
    fds: list[int] = []
    try:
        length, count = _receive_head(sock, fds, limit)
        text = _receive_exactly(sock, length)
        if count == len(fds):
            return json.loads(text), fds
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, ConnectionResetError):
            raise ConnectionEnded("the other end is gone") from None
        if isinstance(error, ValueError | RecursionError):
            raise ConnectionEnded("the other end does not speak as it should") from None
        raise
    for fd in fds:
        os.close(fd)
    raise ConnectionEnded("the other end does not speak as it should")


def _receive_head(sock: socket.socket, fds: list[int], limit: int) -> tuple[int, int]:
    """Length and number of descriptors of the next message; the descriptors come into ``fds``."""
    head = b""
    while len(head) < _HEAD.size:
        part, controls, flags, _ = sock.recvmsg(_HEAD.size - len(head), _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += array.array("i", data[: len(data) - len(data) % 4])
        if flags & socket.MSG_CTRUNC:
            raise ConnectionEnded("descriptors were lost: raise the limit of open files (LimitNOFILE=)")
        if not part:
            raise ConnectionEnded("the other end is gone")
        head += part
    length, count = _HEAD.unpack(head)
    if length > limit:
        raise ConnectionEnded("the other end does not speak as it should")
    return length, count


def _receive_exactly(sock: socket.socket, length: int) -> bytearray:
    text = bytearray(length)
    view = memoryview(text)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise ConnectionEnded("the other end ended in the middle")
        view = view[count:]
    return text
