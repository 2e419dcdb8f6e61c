"""The control sockets (systemd's or our own), who is at the other end, and the lock that keeps a second burstd away."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from burstd.domain.errors import BurstdError

CONTROL = "control"
"""FileDescriptorName= of the control socket in burstd.socket."""
_LISTEN_FDS_START = 3  # SD_LISTEN_FDS_START
_MODE = 0o666  # anyone may speak; what a caller may do is decided by who the kernel says it is
_UCRED = struct.Struct("=iII")
_PATH_MAX = 107  # sun_path of sockaddr_un, without the ending zero
_ACL = "system.posix_acl_access"
_ACL_VERSION, _ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")  # linux/posix_acl_xattr.h
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER, _NO_ID = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0xFFFFFFFF
_READ_WRITE = 6


class AlreadyRunning(BurstdError):
    """Another burstd has the socket or the state directory."""


class SocketFailed(BurstdError):
    """The control socket cannot be had as the settings or systemd have it."""


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """Who is at the other end of a unix socket, as the kernel saw it when the connection was made."""

    uid: int
    gid: int
    pid: int


def peer_credentials(connection: socket.socket) -> PeerCredentials:
    """Who made this connection. Raises OSError where it is not a connected unix socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return PeerCredentials(uid=uid, gid=gid, pid=pid)


class ConnectionLimiter:
    """Counts connections by user; from any thread.

    Nobody takes more than a quarter of what is free: one user alone has a fifth of ``most``, and it takes more than
    twenty together to leave none. root and burstd's own user are not counted.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._open: Counter[int] = Counter()

    def acquire(self, uid: int) -> bool:
        """Whether this user may have one more; ``give_back`` it then."""
        if uid in (0, os.geteuid()):
            return True
        with self._lock:
            if 4 * self._open[uid] >= self._limit - self._open.total():
                return False
            self._open[uid] += 1
            return True

    def release(self, uid: int) -> None:
        """One that was taken has ended."""
        with self._lock:
            self._open[uid] -= self._open[uid] > 0
            if not self._open[uid]:
                del self._open[uid]


def listen(path: Path, environ: MutableMapping[str, str] = os.environ, *, backlog: int = 128) -> socket.socket:
    """The listening control socket: systemd's where it passed one, else bound at ``path``.

    A socket file left by a burstd that died is replaced. LISTEN_FDS and its companions are taken out of ``environ``,
    so that commands started later do not believe the descriptors to be theirs. Raises AlreadyRunning, SocketFailed.
    """
    from_systemd = _socket_from_systemd(environ)
    return from_systemd if from_systemd is not None else _bind(path, backlog, _MODE)


def listen_for_admins(path: Path, admin_group: str) -> socket.socket:
    """The same interface for root, burstd's own user and a group: whoever fills the other's queue is not in their way.

    Raises AlreadyRunning, SocketFailed.
    """
    listener = _bind(path, 128, 0o600)
    try:
        gid = grp.getgrnam(admin_group).gr_gid
    except KeyError:
        return listener  # nobody is in it
    _let_in(path, _GROUP, gid, "administrators'")
    return listener


def listen_for_user(path: Path, uid: int) -> socket.socket:
    """A socket that one account may open, beside root and burstd's own user. Raises AlreadyRunning, SocketFailed."""
    listener = _bind(path, 128, 0o600)
    if uid not in (0, os.geteuid()):
        _let_in(path, _USER, uid, "page's")
    return listener


def _let_in(path: Path, tag: int, number: int, whose: str) -> None:
    """Lets one group or account open a socket file. Not chown: burstd need not be in the group, nor be root."""
    entries = (
        (_USER_OBJ, _READ_WRITE, _NO_ID), (_GROUP_OBJ, 0, _NO_ID), (tag, _READ_WRITE, number),
        (_MASK, _READ_WRITE, _NO_ID), (_OTHER, 0, _NO_ID),
    )  # fmt: skip
    try:
        os.setxattr(path, _ACL, _ACL_VERSION.pack(2) + b"".join(_ACL_ENTRY.pack(*entry) for entry in sorted(entries)))
    except OSError as error:
        import structlog  # noqa: PLC0415 - only where something is wrong

        structlog.get_logger(__name__).warning(
            f"only root can use the {whose} socket: its file system has no ACLs",
            socket=str(path), id=number, error=error.strerror,
        )  # fmt: skip


def _socket_from_systemd(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The socket that systemd passed under our name, or the only one; None where it passed none to us."""
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count.isdigit() or int(count) == 0:
        return None
    descriptors = range(_LISTEN_FDS_START, _LISTEN_FDS_START + int(count))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    chosen = next((d for d, name in zip(descriptors, names, strict=False) if name == CONTROL), None)
    if chosen is None and len(descriptors) > 1:
        raise SocketFailed(
            f"systemd passed {len(descriptors)} sockets and none is named {CONTROL!r}: "
            f"write FileDescriptorName={CONTROL} in burstd.socket"
        )
    try:
        found = socket.socket(fileno=chosen if chosen is not None else _LISTEN_FDS_START)
        listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise SocketFailed(
            f"systemd passed a control socket that is no socket ({error}): check burstd.socket"
        ) from None
    if found.family != socket.AF_UNIX or found.type != socket.SOCK_STREAM or not listening:
        raise SocketFailed(
            "systemd passed a socket that is no listening unix stream: write ListenStream=/PATH in burstd.socket"
        )
    return found


def _bind(path: Path, backlog: int, mode: int) -> socket.socket:
    if len(os.fsencode(path)) > _PATH_MAX:
        raise SocketFailed(f"{path} is too long for a unix socket ({_PATH_MAX} bytes): choose a shorter path")
    _remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        # Before listen(): nobody connects to it with a mode that the umask happened to leave.
        path.chmod(mode)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise AlreadyRunning(f"another burstd has just taken {path}: stop one of the two") from None
        raise SocketFailed(f"the socket {path} cannot be made: {error.strerror}. {_remedy(error, path)}") from None
    return listener


def _remove_stale_socket(path: Path) -> None:
    """Removes a socket file that nobody listens on."""
    try:
        if not path.is_socket():
            if path.exists():
                raise SocketFailed(f"{path} is there and is no socket: move it away or choose another path")
            return
    except PermissionError:
        raise SocketFailed(f"{path} cannot be read: burstd lacks the right to enter its directory") from None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # its queue is full, so it lives
        except OSError as error:
            raise SocketFailed(f"{path} is in the way: {error.strerror}. {_remedy(error, path)}") from None
    raise AlreadyRunning(f"another burstd listens on {path}: stop it first, or see what it does with burstctl status")


def _remedy(error: OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"Make the directory {path.parent} first, or let systemd do it (RuntimeDirectory=)"
    if isinstance(error, PermissionError):
        return f"burstd, as user {os.geteuid()}, needs the right to write in {path.parent}"
    return "Choose another path in the settings"


class InstanceLock:
    """Held as long as this process lives; the kernel lets go of it however the process ends."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self.path = path

    def release(self) -> None:
        """Lets go before the process ends. The file stays: removing it would let two hold a lock of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def single_instance(state_dir: Path) -> InstanceLock:
    """Takes the lock of a state directory, so that two burstds never work on one database.

    Raises AlreadyRunning (naming the other's process) and SocketFailed (the directory cannot be written to).
    """
    path = state_dir / "lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SocketFailed(f"the lock {path} cannot be made: {error.strerror}. {_remedy(error, path)}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        who = f"process {holder}" if holder.isdigit() else "a process that did not say who it is"
        raise AlreadyRunning(
            f"another burstd ({who}) works on {state_dir}: stop it first, or give this one a state directory of its own"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return InstanceLock(descriptor, path)
