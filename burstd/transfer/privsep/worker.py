"""burstd-user-worker: a process with a user's rights that opens, makes and renames files for burstd.

It serves one connection: descriptor ``--fd``, or the one that systemd passes (Accept=yes). The first message says whose
worker it is, ``{"uid", "gid", "groups", "home"}``; where it was started as root it becomes that user for good. Then
requests come one by one. Answers are objects, with descriptors where files were opened; an object with ``error`` ends a
request that failed. The bytes of files never pass through it: burstd reads and writes the descriptors. It ends with its
connection. Started often, so it imports little; and nothing once it is the user, who may not be able to read its code.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:  # python3 -I -S worker.py
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))  # noqa: PTH100, PTH120

import errno
import grp
import pwd
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from burstd.transfer.privsep import descriptor_channel
from burstd.transfer.privsep.descriptor_channel import ConnectionEnded
from burstd.transfer.privsep.safe_directory import SafeDirectory
from burstd.transfer.trees.ignore import IgnoreRules
from burstd.transfer.trees.local_copy import copy_source
from burstd.transfer.trees.walk import Walk, is_pattern

MEMORY_BYTES = 2 << 30
"""Of address space: a directory of millions of files takes half of it."""
WALK_WINDOW = 3
"""Messages of a walk that may be under way before one is answered: it bounds the descriptors that are open."""
_ROWS_PER_MESSAGE = 512
_MAX_NUMBER = (1 << 63) - 1
_TEXT_PER_MESSAGE = 256 << 10
LARGEST_PARTS = 5
"""So many of the files and directories in a source are named with their size."""
_NO_GROUP = 65534
WorkerRequest = dict[str, Any]
PrepareServer = Callable[[WorkerRequest], Callable[[socket.socket], None]]
"""Takes the first message, still as root, and gives what serves the user then. Raises OSError with a sentence."""


class ServeConnection(Protocol):
    """Serves a connection to its end. Raises ConnectionEnded."""

    def __call__(self, sock: socket.socket, min_uid: int, *, accounts: bool) -> None:
        """With the least uid that it is for, and whether the account database says what a user's groups are."""
        ...


def main(arguments: list[str] | None = None) -> int:
    """Serves one connection; returns an exit status."""
    return run_worker(arguments, lambda _hello: lambda sock: WorkerServer(sock).serve())


def run_worker(arguments: list[str] | None, prepare: PrepareServer) -> int:
    """What the kinds of workers do that are their user's: takes a connection, becomes the user, and serves."""

    def serve_user(sock: socket.socket, min_uid: int, *, accounts: bool) -> None:
        serve = _become_user(sock, min_uid, prepare, accounts=accounts)
        if serve is not None:
            serve(sock)

    return serve_connection(arguments, serve_user)


def serve_connection(
    arguments: list[str] | None,
    serve: ServeConnection,
    name: str = "burstd-user-worker",
    memory_bytes: int | None = MEMORY_BYTES,
) -> int:
    """What every kind of worker does: takes a connection, and serves it within limits; returns an exit status.

    ``memory_bytes``: of address space, also of the programs that it runs; None: no limit.
    """
    arguments_left = list(sys.argv[1:] if arguments is None else arguments)
    fd, min_uid, accounts = 3, 1000, False
    while arguments_left:
        argument = arguments_left.pop(0)
        if argument == "--fd" and arguments_left:
            fd = int(arguments_left.pop(0))
        elif argument == "--min-uid" and arguments_left:
            min_uid = int(arguments_left.pop(0))
        elif argument == "--accounts":
            accounts = True
        else:
            sys.stderr.write(
                f"usage: {name} [--fd N] [--min-uid UID] [--accounts]\nburstd starts it; it is no command.\n"
            )
            return 2
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        sys.stderr.write(f"{name}: descriptor {fd} is no connection: {error.strerror}. burstd or systemd start it.\n")
        return 2
    os.set_inheritable(fd, False)
    sock.setblocking(True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.setrecursionlimit(20_000)
    os.umask(0o022)
    os.chdir("/")
    with suppress(ConnectionEnded):
        serve(sock, min_uid, accounts=accounts)
    return 0


def _become_user(
    sock: socket.socket, min_uid: int, prepare: PrepareServer, *, accounts: bool
) -> Callable[[socket.socket], None] | None:
    """Takes the first message and the user's rights, irrevocably. None: refused, and the other end gets the reason."""
    hello, fds = descriptor_channel.receive(sock)
    for fd in fds:
        os.close(fd)
    try:
        user = worker_user(hello, min_uid, accounts=accounts)
        serve = prepare(hello)
        take_rights(user)
    except (KeyError, TypeError, ValueError, OSError) as error:
        refuse(sock, error)
        return None
    os.environ["HOME"] = user.home
    descriptor_channel.send(sock, {"ready": os.getpid(), "uid": user.uid})
    return serve


class WorkerUser(NamedTuple):
    """Whose worker it is."""

    uid: int
    gid: int
    groups: list[int]
    home: str


def worker_user(hello: WorkerRequest, min_uid: int, *, accounts: bool) -> WorkerUser:
    """Of the first message. ``accounts``: the account database says what the user's groups are, whatever it says.

    Raises KeyError, TypeError, ValueError, OSError.
    """
    uid, gid, groups = int(hello["uid"]), int(hello["gid"]), [int(g) for g in hello["groups"]]
    home = str(hello.get("home") or "/")
    if accounts and hello.get("gone"):
        # No account says what groups are: whoever has left has none, and his number clears what it owns.
        gid, groups = _NO_GROUP, []
    elif accounts:
        # Started by systemd as root for a caller who is not.
        entry = pwd.getpwuid(uid)
        gid, home = entry.pw_gid, entry.pw_dir
        groups = os.getgrouplist(entry.pw_name, gid)
        grp.getgrgid(gid)
    if uid < min_uid:
        raise PermissionError(errno.EPERM, f"uid {uid} is below {min_uid}: burstd does not act as a system account")
    return WorkerUser(uid, gid, groups, home)


def take_rights(user: WorkerUser) -> None:
    """Becomes the user, for good. Raises OSError."""
    if os.geteuid() == 0:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    if os.getresuid() != (user.uid, user.uid, user.uid) or (user.uid != 0 and _can_become_root()):
        raise PermissionError(errno.EPERM, f"this process cannot become uid {user.uid}: start it as root")


def refuse(sock: socket.socket, error: Exception) -> None:
    """Tells the other end why the first message is not served."""
    text = error.strerror if isinstance(error, OSError) else f"no such account, or no such request: {error}"
    path = error.filename if isinstance(error, OSError) and isinstance(error.filename, str) else ""
    descriptor_channel.send(sock, {"error": text, "errno": getattr(error, "errno", 0) or errno.EINVAL, "path": path})


def _can_become_root() -> bool:
    try:
        os.setresuid(-1, 0, -1)
    except PermissionError:
        return False
    return True


class WorkerServer:
    """One user's worker."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._directories: dict[str, SafeDirectory] = {}
        self._handlers: dict[str, Callable[[WorkerRequest], None]] = {
            "walk": self._walk,
            "look": self._measure_source,
            "free": self._destination_space,
            "make": lambda r: self._each(r, lambda b, path: b.make_directory(path)),
            "make_own": lambda r: self._each(r, lambda b, path: b.make_private_directory(path)),
            "create": lambda r: self._send_files(r, lambda b, path: b.create_file(path, r["job"])),
            "finish": lambda r: self._each(r, lambda b, row: b.commit_file(*row)),
            "symlink": lambda r: self._each(r, lambda b, row: b.symlink(row[0], row[1], row[2], r["job"])),
            "finish_beside": lambda r: self._each(r, lambda b, row: b.commit_beside(*row)),
            "symlink_beside": lambda r: self._each(r, lambda b, row: b.symlink_beside(row, r["job"])),
            "hardlink": lambda r: self._each(r, lambda b, row: b.hardlink(row[0], row[1], r["job"])),
            "settle": lambda r: self._each(r, lambda b, row: b.finalize_directory(*row)),
            "remove": lambda r: self._each(r, lambda b, path: b.remove_file(path)),
            "sweep": lambda r: self._each(r, lambda b, path: b.remove_unfinished(path, r["job"])),
            "facts": lambda r: self._each(r, _file_facts),
            "open": lambda r: self._send_files(r, lambda b, path: (None, b.open_file(path))),
            "move": self._move,
            "copy": self._copy,
            "remove_tree": lambda r: self._each(r, lambda b, path: b.remove_tree(path)),
        }

    def serve(self) -> None:
        """Until the connection ends."""
        while True:
            request, fds = descriptor_channel.receive(self.sock)
            for fd in fds:
                os.close(fd)
            try:
                act = self._handlers[request["do"]]
            except (KeyError, TypeError):
                self._fail(OSError(errno.ENOSYS, "unknown request: burstd and its user worker have different versions"))
                continue
            try:
                act(request)
            except OSError as error:
                self._fail(error)
            except (KeyError, TypeError, ValueError, RecursionError, re.error) as error:
                self._fail(OSError(errno.EINVAL, f"the request cannot be carried out: {error!r}"))

    def _fail(self, error: OSError, path: str = "") -> None:
        name = path or (os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "")
        descriptor_channel.send(
            self.sock, {"error": error.strerror or str(error), "errno": error.errno or 0, "path": name}
        )

    def _safe_directory(self, request: WorkerRequest) -> SafeDirectory:
        root = _expanded(request["root"])
        if root not in self._directories:
            for directory in self._directories.values():
                directory.close()
            self._directories = {root: SafeDirectory(root)}
        return self._directories[root]

    def _each(self, request: WorkerRequest, act: Callable[[SafeDirectory, Any], object]) -> None:
        """One answer for all items; the first that fails ends it, with its path."""
        directory = self._safe_directory(request)
        answers = []
        for item in request["items"]:
            try:
                answers.append(act(directory, item))
            except OSError as error:
                self._fail(error, os.path.join(directory.root, _path_of(item)))  # noqa: PTH118
                return
        descriptor_channel.send(self.sock, {"items": answers})

    def _walk(self, request: WorkerRequest) -> None:
        walk = _walk_of(request)
        rows: list[list[object]] = []
        fds: list[int] = []
        text = under_way = 0
        found = iter(walk)
        try:
            for row, fd in found:
                rows.append(row)
                text += 64 + sum(len(value) for value in row if isinstance(value, str))
                if fd >= 0:
                    fds.append(fd)
                if (
                    len(fds) == descriptor_channel.FDS_AT_ONCE
                    or len(rows) == _ROWS_PER_MESSAGE
                    or text > _TEXT_PER_MESSAGE
                ):
                    descriptor_channel.send(self.sock, rows, fds)
                    _close(fds)
                    rows, text = [], 0
                    under_way += 1
                    if under_way == WALK_WINDOW:
                        answer, _ = descriptor_channel.receive(self.sock)
                        under_way -= 1
                        if answer.get("stop"):
                            break
            if rows:
                descriptor_channel.send(self.sock, rows, fds)
                under_way += 1
            descriptor_channel.send(self.sock, {"end": True, "single": walk.single})
        except OSError as error:
            name = error.filename if isinstance(error.filename, str) else walk.source
            descriptor_channel.send(
                self.sock, {"error": error.strerror or str(error), "errno": error.errno or 0, "path": name}
            )
        finally:
            _close(fds)
            found.close()  # type: ignore[attr-defined]
        for _ in range(under_way):
            descriptor_channel.receive(self.sock)

    def _measure_source(self, request: WorkerRequest) -> None:
        walk = _walk_of(request)
        until = time.monotonic() + float(request["seconds"])
        limit = int(request["entries"])
        size = entries = 0
        whole = True
        unreadable: list[list[object]] = []
        parts: dict[str, list[int]] = {}
        found = iter(walk)
        for row, fd in found:
            part = parts.setdefault(str(row[1]).partition("/")[0], [0, 0]) if row[1] else [0, 0]
            part[1] += 1
            if fd >= 0:
                file_size = os.fstat(fd).st_size
                size += file_size
                part[0] += file_size
                os.close(fd)
            elif row[0] == "e" and len(unreadable) < 10:
                unreadable.append(row[1:])
            entries += 1
            if entries >= limit or time.monotonic() > until:
                whole = next(found, None) is None
                break
        found.close()  # type: ignore[attr-defined]
        answer = {
            "size": size, "entries": entries, "whole": whole, "single": walk.single, "unreadable": unreadable,
            "largest": [[name, *part] for name, part in sorted(parts.items(), key=_part_size)[:LARGEST_PARTS]],
        }  # fmt: skip
        descriptor_channel.send(self.sock, answer)

    def _destination_space(self, request: WorkerRequest) -> None:
        """Of the nearest directory on the way to the path that is there."""
        path = _expanded(request["path"])
        there = os.path.isdir(path)  # noqa: PTH112
        nearest = path
        while not os.path.isdir(nearest):  # noqa: PTH112
            parent = os.path.dirname(nearest.rstrip("/")) or "/"  # noqa: PTH120
            if os.path.lexists(nearest):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), nearest)
            nearest = parent
        filesystem = os.statvfs(nearest)
        writable = os.access(nearest, os.W_OK | os.X_OK, effective_ids=True)
        # Some file systems say with the largest number that they do not count.
        free = min(filesystem.f_bavail * filesystem.f_frsize, _MAX_NUMBER)
        inodes = filesystem.f_favail if filesystem.f_files and filesystem.f_favail <= _MAX_NUMBER else -1
        descriptor_channel.send(
            self.sock, {"free": free, "inodes": inodes, "writable": writable, "there": there, "nearest": nearest}
        )

    def _send_files(
        self, request: WorkerRequest, open_one: Callable[[SafeDirectory, str], tuple[str | None, int]]
    ) -> None:
        """Answers with open files and the names of new ones; the first that fails ends it, with its path."""
        directory = self._safe_directory(request)
        opened: list[tuple[str | None, int]] = []
        try:
            for path in request["items"][: descriptor_channel.FDS_AT_ONCE]:
                try:
                    opened.append(open_one(directory, path))
                except OSError as error:
                    for name, _ in opened:
                        if name is not None:
                            directory.remove_file(name)
                    self._fail(error, os.path.join(directory.root, path))  # noqa: PTH118
                    return
            descriptor_channel.send(self.sock, {"items": [name for name, _ in opened]}, [fd for _, fd in opened])
        finally:
            _close([fd for _, fd in opened])

    def _move(self, request: WorkerRequest) -> None:
        source = SafeDirectory(_expanded(request["from"]))
        try:
            self._report_progress(
                self._safe_directory(request).move(source, request["source"], request["path"], request["job"])
            )
        finally:
            source.close()

    def _copy(self, request: WorkerRequest) -> None:
        walk = Walk(_expanded(request["source"]))
        self._report_progress(copy_source(walk, self._safe_directory(request), request["path"], request["job"]))

    def _report_progress(self, counts: Iterator[int]) -> None:
        reported_at = time.monotonic()
        size = 0
        for count in counts:
            size += count
            if time.monotonic() > reported_at + 0.5:
                # Fails where burstd is gone, which ends a long copy.
                descriptor_channel.send(self.sock, {"progress": size})
                reported_at = time.monotonic()
        descriptor_channel.send(self.sock, {"items": [size]})


def _walk_of(request: WorkerRequest) -> Walk:
    rows = request.get("ignore")
    return Walk(_expanded(request["source"]), IgnoreRules(rows) if rows else None)


def _part_size(part: tuple[str, list[int]]) -> tuple[int, int]:
    """By which parts come first: the largest, or of no size the fullest."""
    return -part[1][0], -part[1][1]


def _file_facts(directory: SafeDirectory, path: str) -> list[int] | None:
    facts = directory.lstat(path)
    if facts is None:
        return None
    return [facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_nlink, facts.st_dev, facts.st_ino, facts.st_uid]


def _path_of(item: object) -> str:
    """The path in a row of a request: the second of several, which is where it goes."""
    if isinstance(item, str):
        return item
    return str(item[1] if isinstance(item[1], str) else item[0]) if isinstance(item, list) else ""


def _expanded(path: str) -> str:
    path = os.path.expanduser(path)  # noqa: PTH111
    if not path.startswith("/"):
        raise OSError(errno.EINVAL, "is no absolute path", path)
    if "\0" in path:
        raise OSError(errno.EINVAL, "has a NUL in it", path.replace("\0", "?"))
    return path if is_pattern(path) else path.rstrip("/") or "/"


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


if __name__ == "__main__":
    sys.exit(main())
