"""The unix sockets at which Slurm's programs speak to burstd: made, and who speaks there."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PAUSE_S = 0.2
_UCRED = struct.Struct("3i")


def listen_for_hooks(path: Path, backlog: int, mode: int = 0o600) -> socket.socket:
    """Listens at ``path``, where burstd's user and root may connect, and whom ``admit`` lets in. Raises OSError.

    Who may call is decided by who the kernel says it is; but whoever may connect can fill the queue of those that wait.
    Only one burstd runs (its state folder is locked), so a socket that is there already is a dead one's.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(mode)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def allow_connect(path: Path, uid: int) -> None:
    """Lets this user connect as well: SlurmUser. Nobody else, unless burstd is neither root nor SlurmUser."""
    try:
        if os.geteuid() == 0:
            os.chown(path, uid, -1)
        elif uid not in (0, os.geteuid()):
            path.chmod(0o666)
    except OSError as error:
        log.warning("SlurmUser cannot be let in", socket=str(path), uid=uid, error=error.strerror)


def accept_connections(listener: socket.socket, closing: threading.Event, what: str) -> Iterator[socket.socket]:
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


def peer_uid(wire: socket.socket) -> int:
    """The uid at the other end. Raises OSError."""
    _, uid, _ = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
