"""burstd-mount-worker: shows a user's trees to a node by SFTP, for as long as ssh's connection to the node lasts.

It serves one connection, as burstd.transfer.privsep.worker does. The first message says whose trees which, and the
command of ssh; with it come two descriptors: one that it keeps open while the stream lasts (burstd holds a lock by it),
and one that takes what ssh says. It starts two processes, joined by pipes, that end with each other:

- OpenSSH's sftp-server, for good as the user, who gains no privileges, in a mount namespace with a root of its own:
  the user's trees and, read-only, the libraries of sftp-server. Whoever speaks SFTP to it reaches nothing else.
- ssh, as the caller, who names it: what it may read, the caller may.

Then it has the caller's rights itself, and waits for the end of one. Once it has heard "keep" it lasts without burstd.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not __package__:  # python3 -I -S mount_worker.py
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))  # noqa: PTH100, PTH120

import ctypes
import errno
import fcntl
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from burstd.domain.mounts import NOBODY_UID, MountedTree, check_trees, contains
from burstd.transfer.privsep import descriptor_channel, worker
from burstd.transfer.privsep.descriptor_channel import ConnectionEnded

SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
"""Where distributions have it."""
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE, _MS_SLAVE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18, 1 << 19,
)  # fmt: skip
_KEPT_OPTIONS = {b"ro": _MS_RDONLY, b"noexec": _MS_NOEXEC, b"nosymfollow": 256}
"""What a remount of a bind clears unless it is given again; times of access are kept by the kernel."""
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PIPE_BYTES = 1 << 20
_ERROR_BYTES = 4096
_NEW_ROOT = "/run"
"""Hidden by the new root, in a namespace that is the process's own."""


def main(arguments: list[str] | None = None) -> int:
    """Serves one connection; returns an exit status."""
    return worker.serve_connection(arguments, _serve, "burstd-mount-worker")


def _serve(sock: socket.socket, min_uid: int, *, accounts: bool) -> None:
    hello, fds = descriptor_channel.receive(sock)
    children: list[int] = []
    try:
        user = worker.worker_user(hello, min_uid, accounts=accounts)
        trees = [MountedTree(str(path), bool(read_only)) for path, read_only in hello["trees"]]
        check_trees(trees)
        if user.uid == NOBODY_UID and not all(tree.read_only for tree in trees):
            raise PermissionError(errno.EPERM, "trees that everybody may read are shown read-only")
        _held, said = fds
        ssh = [str(word) for word in hello["ssh"]]
        program = _sftp_server(str(hello["sftp_server"]))
        if os.getsid(0) != os.getpid():  # Started by burstd, whose terminal is not to end it.
            os.setsid()
        _start_stream(children, user, trees, program, ssh, sock, said)
        os.close(said)
    except (KeyError, TypeError, ValueError, OSError) as error:
        _end(children)
        worker.refuse(sock, error)
        return
    descriptor_channel.send(sock, {"ready": os.getpid(), "uid": user.uid})
    try:
        _wait_for_end(sock, children)
    finally:
        _end(children)


def _sftp_server(named: str) -> str:
    found = next((path for path in ([named] if named else SFTP_SERVERS) if os.access(path, os.X_OK)), None)
    if found is None:
        text = "no sftp-server on the head: install OpenSSH's (Debian: openssh-sftp-server; RHEL: openssh-server)"
        raise FileNotFoundError(errno.ENOENT, text, named or SFTP_SERVERS[0])
    return os.path.normpath(found)


def _start_stream(
    children: list[int],
    user: worker.WorkerUser,
    trees: Sequence[MountedTree],
    program: str,
    ssh: Sequence[str],
    sock: socket.socket,
    said: int,
) -> None:
    """Starts both processes, joined by pipes; ``children``: those that were started. Raises OSError."""
    # The kernel knows who connected; where burstd is root and started this process, that is root.
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, caller_uid, caller_gid = struct.unpack("3i", peer)
    caller = worker.WorkerUser(caller_uid, caller_gid, [caller_gid], "/")
    from_node, to_server = _pipe()
    from_server, to_node = _pipe()

    def serve_trees() -> list[str]:
        _change_root(trees, user, program)
        worker.take_rights(user)
        # -u 0: modes are the job's.
        read_only = ["-R"] if all(tree.read_only for tree in trees) else []
        return [program, "-e", "-l", "QUIET", "-u", "0", *read_only]

    def reach_node() -> list[str]:
        worker.take_rights(caller)
        return list(ssh)

    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    # Not burstd's ear for sftp-server, which is the user's: he could speak for the node.
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    children.append(_start(serve_trees, {0: from_node, 1: to_node, 2: nothing}, environment))
    children.append(_start(reach_node, {0: from_server, 1: to_server, 2: said}, environment))
    for fd in (from_node, to_server, from_server, to_node, nothing):
        os.close(fd)
    # From here on the caller's, who may end it. sftp-server ends with its pipes.
    worker.take_rights(caller)
    # A process that was another user's is hidden from its new one.
    _prctl(_PR_SET_DUMPABLE, 1)


def _pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    with suppress(OSError):  # The user's pipes may be many: a smaller one works too.
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing


def _start(prepare: Callable[[], list[str]], fds: Mapping[int, int], environment: Mapping[str, str]) -> int:
    """Starts a process that runs what ``prepare`` answers, in it, with these descriptors only. Raises OSError."""
    failed, failing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(prepare, fds, environment, failing, parent)
    os.close(failing)
    said = b""
    while part := os.read(failed, _ERROR_BYTES):
        said += part
    os.close(failed)
    if said:
        os.waitpid(child, 0)
        number, path, text = said.decode("utf-8", "surrogateescape").split("\0")
        raise OSError(int(number), text, path)
    return child


def _become(
    prepare: Callable[[], list[str]], fds: Mapping[int, int], environment: Mapping[str, str], failing: int, parent: int
) -> NoReturn:
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        argv = prepare()
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        # Once more: a change of user undoes it.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if os.getppid() != parent:
            os._exit(1)
        # Above those that are to be, so that none is overwritten before it is copied.
        copies = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for number, fd in fds.items()}
        for number, copy in copies.items():
            os.dup2(copy, number)
        os.execvpe(argv[0], argv, dict(environment))  # noqa: S606 - no shell is wanted
    except OSError as error:
        text = "\0".join((str(error.errno or 0), str(error.filename or ""), error.strerror or str(error)))
        os.write(failing, text.encode("utf-8", "surrogateescape")[:_ERROR_BYTES])
    finally:
        os._exit(1)


def _change_root(trees: Sequence[MountedTree], user: worker.WorkerUser, program: str) -> None:
    """Makes a root with these trees at their own paths, and what sftp-server needs to run. Raises OSError."""
    _system_call("unshare", _CLONE_NEWNS)
    # What is mounted on the head later on, by an automounter too, appears in writable trees as well.
    _mount("none", "/", _MS_REC | _MS_SLAVE)
    # As the user: root may not enter a closed home on NFS, and shows nothing that the user does not reach.
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        opened = [(tree, os.open(f"{tree.path}/.", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) for tree in trees]
    except OSError as error:
        path = str(error.filename).removesuffix("/.")
        text = f"{error.strerror} for its user on the head: the tree cannot be shown"
        raise OSError(error.errno, text, path) from None
    finally:
        os.seteuid(0)
        os.setegid(0)
    _mount("tmpfs", _NEW_ROOT, _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, kind="tmpfs", options="size=64k,mode=755")
    for directory in _LIBRARIES:
        if os.path.islink(directory):  # noqa: PTH114
            os.makedirs(_NEW_ROOT + os.path.dirname(directory), exist_ok=True)  # noqa: PTH103, PTH120
            os.symlink(os.readlink(directory), _NEW_ROOT + directory)  # noqa: PTH115, PTH211
        elif os.path.isdir(directory):  # noqa: PTH112
            _bind(directory, directory, _MS_NOSUID | _MS_NODEV | _MS_RDONLY)
    for file in (program, "/dev/null"):
        if not os.path.exists(_NEW_ROOT + file):  # noqa: PTH110
            os.makedirs(_NEW_ROOT + os.path.dirname(file), exist_ok=True)  # noqa: PTH103, PTH120
            os.close(os.open(_NEW_ROOT + file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444))
            _bind(file, file, 0)
    # sftp-server does not run for a user without an account.
    etc = Path(_NEW_ROOT, "etc")
    etc.mkdir()
    (etc / "passwd").write_text(f"user:x:{user.uid}:{user.gid}::/:/\n", encoding="ascii")
    for tree, fd in opened:
        flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if tree.read_only else 0)
        _bind(f"/proc/self/fd/{fd}", tree.path, flags)
        os.close(fd)
    _mount("none", _NEW_ROOT, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(_NEW_ROOT)
    _system_call("pivot_root", b".", b".")
    _system_call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def _bind(source: str, path: str, flags: int) -> None:
    """Shows what is at ``source`` at ``path`` of the new root, with all that is mounted below it.

    What is read-only on the head stays so. What is mounted there later would arrive writable: it does not appear in
    read-only trees.
    """
    target = _NEW_ROOT + path
    if not os.path.exists(target):  # noqa: PTH110
        os.makedirs(target)  # noqa: PTH103
    _mount(source, target, _MS_BIND | _MS_REC)
    if flags & _MS_RDONLY:
        _mount("none", target, _MS_REC | _MS_PRIVATE)
    if flags:
        for mounted, kept in _mounts_below(target):
            _mount("none", mounted, _MS_REMOUNT | _MS_BIND | flags | kept)


def _mounts_below(directory: str) -> list[tuple[str, int]]:
    """Paths of mounts, each with those of its flags that a remount is to keep."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point, options = line.split(b" ")[4:6]
        path = os.fsdecode(point.decode("unicode_escape").encode("latin-1"))
        if contains(directory, path):
            found.append((path, sum(_KEPT_OPTIONS.get(option, 0) for option in options.split(b","))))
    return found


def _mount(source: str, target: str, flags: int, *, kind: str = "none", options: str = "") -> None:
    try:
        _system_call("mount", os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode())
    except OSError as error:
        path = target.removeprefix(_NEW_ROOT) or "/"
        raise OSError(error.errno, f"{error.strerror}: it cannot be mounted on the head", path) from None


def _prctl(option: int, value: int) -> None:
    _system_call("prctl", option, value, 0, 0, 0)


def _system_call(name: str, *words: object) -> None:
    """A function of the C library that Python lacks. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} ({name})")


def _wait_for_end(sock: socket.socket, children: Sequence[int]) -> None:
    """Returns when a child has ended, or burstd is gone before it said that the stream shall last."""
    waiting = select.poll()
    processes = [os.pidfd_open(child) for child in children]
    for process in processes:
        waiting.register(process, select.POLLIN)
    waiting.register(sock, select.POLLIN)
    while True:
        ready = {fd for fd, _ in waiting.poll()}
        if ready & set(processes):
            return
        if descriptor_channel.receive(sock)[0] != {"do": "keep"}:
            raise ConnectionEnded("no such request")
        descriptor_channel.send(sock, {"kept": True})
        waiting.unregister(sock)
        sock.close()


def _end(children: Sequence[int]) -> None:
    """Ends the processes that may be ended by this one. The user's ends with its pipes."""
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
