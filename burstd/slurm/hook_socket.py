"""The unix sockets at which Slurm's programs speak to burstd: made, and who speaks there."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

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


def caller(wire: socket.socket) -> int:
    """The uid at the other end. Raises OSError."""
    _, uid, _ = _UCRED.unpack(wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
