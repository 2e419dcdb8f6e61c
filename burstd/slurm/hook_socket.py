"""The unix sockets at which Slurm's programs speak to burstd: made, and who speaks there."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PAUSE_S = 0.2
_UCRED = struct.Struct("3i")


def listen(path: Path, backlog: int) -> socket.socket:
    """Listens at ``path``. Raises OSError.

    Anyone may connect; who may call is decided by who the kernel says it is. Only one burstd runs (its state folder is
    locked), so a socket that is there already is a dead one's.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def connections(listener: socket.socket, closing: threading.Event, what: str) -> Iterator[socket.socket]:
    """Each connection in turn, until ``closing`` is set and the listener shut down.

    An error of accept() is of one connection, or of a machine that is short of descriptors or memory for a while: it is
    logged once, and the next is taken. ``what``: whose connections, for the log.
    """
    failing = False
    while not closing.is_set():
        try:
            wire, _ = listener.accept()
        except OSError as error:
            if not closing.is_set():
                if not failing:
                    log.warning(
                        "connections cannot be accepted; tried again until they can", what=what, error=str(error)
                    )
                failing = True
                closing.wait(_PAUSE_S)
            continue
        failing = False
        yield wire


def caller(wire: socket.socket) -> int:
    """The uid at the other end. Raises OSError."""
    _, uid, _ = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
