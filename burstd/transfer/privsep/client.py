"""The client of a user worker, a process with a user's rights (burstd.transfer.privsep.worker)."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from burstd.transfer.privsep import descriptor_channel, worker_answers
from burstd.transfer.privsep import worker as program
from burstd.transfer.privsep.errors import (
    Account,
    DestinationSpace,
    FileFacts,
    SourceSize,
    UserWorkerError,
    UserWorkerTimeout,
    WalkBatch,
    account,
    printable,
)
from burstd.transfer.trees.ignore import IgnoreRow

__all__ = [
    "Account",
    "DestinationSpace",
    "FileFacts",
    "SourceSize",
    "UserWorker",
    "UserWorkerError",
    "UserWorkerTimeout",
    "WalkBatch",
    "account",
    "printable",
    "start_user_worker",
    "user_worker_for",
]

AnyUserWorker = TypeVar("AnyUserWorker", bound="UserWorker")


_CONNECT_S = 2.0
MAX_WORKERS_PER_USER = 32
"""Of one user at once: half of every thread pool, and a few more."""
SILENCE_TIMEOUT_S = 600.0
"""A worker that was not heard for so long hangs, as the file system does that it works on."""
_MEASURE_GRACE_S = 30.0
"""For the one call that a look may be in when its time is over."""
_REMOVE_TIMEOUT_S = 6 * 3600.0
"""A large directory goes without a word."""
_POLL_INTERVAL_S = 0.2
_MAX_SENTENCE_CHARS = 1000
_MAX_UNREAD_MESSAGES = 16
"""Messages of a walk that may still come when it was cancelled."""


SentFacts = tuple[str, int, int]
"""What was at a path when it was sent: ``f`` or ``l``, bytes, time of change in nanoseconds."""
CommitBeside = tuple[str, str, int, int, SentFacts | None]
"""New file, path, permission bits, mtime_ns, and what was sent from the path; None: nothing was there."""
LinkBeside = tuple[str, str, int, SentFacts | None]
"""Target, path, mtime_ns, and what was sent from the path."""
_GONE = "the user worker is gone: {}; see its journal (burstd-user-worker@)"


CHANGING_REQUESTS = (
    "make_directories", "make_private_directories", "create_files", "commit_files", "commit_beside", "symlink",
    "symlink_beside", "hardlink", "finalize_directories", "remove_files", "remove_unfinished", "move", "copy",
    "remove_tree",
)  # fmt: skip
"""Methods of UserWorker and ObjectWorker that change what is at the user's."""


class UserWorker:
    """One user's worker, for one thread at a time. Its paths are text with surrogates for what is no UTF-8.

    ``root``s are absolute or begin with ``~``; ``items`` are paths in them, of which no part is followed where it is
    a symbolic link. Lists are carried out in order up to the first that fails, which UserWorkerError names; all
    requests may be repeated. Raises UserWorkerError only.
    """

    def __init__(self, sock: socket.socket, child: subprocess.Popen[bytes] | None = None) -> None:
        self._sock = sock
        self._child = child
        self._cancelled: threading.Event | None = None
        self._exit_timeout_s = 5.0
        self._deadline = float("inf")

    def set_deadline(self, deadline: float) -> None:
        """From now on every request fails with UserWorkerTimeout after this time of time.monotonic."""
        self._deadline = deadline

    def set_cancel_event(self, cancelled: threading.Event) -> None:
        """From now on what only reads, and copies and moves, fail soon after this is set."""
        self._cancelled = cancelled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def handshake(self, hello: Mapping[str, object]) -> int:
        """Says whose worker it is, once; returns its process id."""
        with self._rejecting_malformed():
            return worker_answers.number(self._request(dict(hello))["ready"], least=1, most=1 << 22)

    def close(self) -> None:
        """Ends the connection, and with it the worker."""
        self._sock.close()
        if self._child is not None:
            try:
                self._child.wait(self._exit_timeout_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                # One that hangs in the kernel dies when its file system answers; Python reaps it then.
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(1)
            self._child = None

    def walk(self, source: str, ignore: Sequence[IgnoreRow] = ()) -> Generator[WalkBatch, None, bool]:
        """Entries of a file, directory or pattern in a stable order. The descriptors of a message are closed here.

        ``ignore``: what of a directory is left out. Returns (as the generator's value) whether the source is a single
        file.
        """
        self._send({"do": "walk", "source": source, "ignore": list(ignore)})
        single = False
        ended = False
        try:
            while True:
                message, fds = self._receive(cancellable=True)
                try:
                    if isinstance(message, dict):
                        ended = True
                        answer = self._check_answer(message)
                        with self._rejecting_malformed():
                            single = worker_answers.flag(answer["single"])
                        break
                    with self._rejecting_malformed():
                        batch = worker_answers.rows(message, fds)
                    yield batch
                finally:
                    _close(fds)
                self._send({})
        finally:
            if not ended:
                self._stop_walk()
        return single

    def fetch_objects(self, source: str, rows: Sequence[list[Any]]) -> list[int]:
        """Content of ``o`` rows of the walk under way, 64 at most: descriptors to read, the caller's to close soon."""
        self._send({"do": "fetch", "source": source, "items": list(rows)})
        return self._receive_descriptors(len(rows))[1]

    def measure_source(
        self, source: str, *, seconds: float = 2.0, entries: int = 100_000, ignore: Sequence[IgnoreRow] = ()
    ) -> SourceSize:
        """What a source is, within a time and a number of entries. UserWorkerError: it is not there or not readable."""
        self._send({"do": "look", "source": source, "seconds": seconds, "entries": entries, "ignore": list(ignore)})
        answer = self._receive_answer(
            min(seconds + _MEASURE_GRACE_S, self._sock.gettimeout() or SILENCE_TIMEOUT_S), cancellable=True
        )
        with self._rejecting_malformed():
            return worker_answers.source_size(answer)

    def destination_space(self, path: str) -> DestinationSpace:
        """Space at a destination, which need not be there yet."""
        answer = self._request({"do": "free", "path": path})
        with self._rejecting_malformed():
            return worker_answers.destination_space(answer)

    def make_directories(self, root: str, items: Sequence[str]) -> list[bool]:
        """Makes directories with mode 0700 (``""``: the root and what leads to it); False where one was there."""
        made = self._request_items({"do": "make", "root": root}, items)
        with self._rejecting_malformed():
            return [worker_answers.flag(each) for each in made]

    def make_private_directories(self, root: str, items: Sequence[str]) -> None:
        """Makes directories of mode 0700 in one whose parent is there; fails where one is not this user's alone."""
        self._request_items({"do": "make_own", "root": root}, items)

    def create_files(self, root: str, items: Sequence[str], *, job: str) -> list[tuple[str, int]]:
        """New files of mode 0600 beside these paths: their paths, and descriptors that are the caller's to close."""
        return self._request_files({"do": "create", "root": root, "job": job}, items, worker_answers.check_writable)

    def open_files(self, root: str, items: Sequence[str]) -> list[int]:
        """Regular files, open for reading; the descriptors are the caller's to close."""
        opened = self._request_files({"do": "open", "root": root}, items, worker_answers.check_readable)
        return [fd for _, fd in opened]

    def commit_files(self, root: str, items: Sequence[tuple[str, str, int, int]]) -> None:
        """Renames new files to their paths: (path of the new file, path, permission bits, mtime_ns)."""
        self._request_items({"do": "finish", "root": root}, items)

    def commit_beside(self, root: str, items: Sequence[CommitBeside], suffix: str) -> list[str]:
        """As ``commit_files``, but over nothing else than what is as it was sent; else beside it. Where each went.

        Beside is the path with ``suffix``, and with a number where that is taken.
        """
        rows = [[new, path, mode, mtime_ns, sent, suffix] for new, path, mode, mtime_ns, sent in items]
        return self._request_paths({"do": "finish_beside", "root": root}, rows)

    def symlink_beside(self, root: str, items: Sequence[LinkBeside], suffix: str, *, job: str) -> list[str]:
        """Makes symbolic links by the rule of ``commit_beside``; where each went."""
        rows = [[target, path, mtime_ns, sent, suffix] for target, path, mtime_ns, sent in items]
        return self._request_paths({"do": "symlink_beside", "root": root, "job": job}, rows)

    def _request_paths(self, request: dict[str, Any], rows: Sequence[Any]) -> list[str]:
        went = self._request_items(request, rows)
        with self._rejecting_malformed():
            return [worker_answers.relative_path(path) for path in went]

    def symlink(self, root: str, items: Sequence[tuple[str, str, int | None]], *, job: str) -> None:
        """Makes symbolic links, replacing files and links: (target, path, mtime_ns or None)."""
        self._request_items({"do": "symlink", "root": root, "job": job}, items)

    def hardlink(self, root: str, items: Sequence[tuple[str, str]], *, job: str) -> None:
        """Makes second names of files: (path of the file, path)."""
        self._request_items({"do": "hardlink", "root": root, "job": job}, items)

    def finalize_directories(self, root: str, items: Sequence[tuple[str, int, int]]) -> None:
        """Gives directories mode and time when all is in them, the deepest first: (path, permission bits, mtime_ns)."""
        self._request_items({"do": "settle", "root": root}, items)

    def remove_files(self, root: str, items: Sequence[str]) -> None:
        """Removes files and links; what is gone is no error."""
        self._request_items({"do": "remove", "root": root}, items)

    def remove_unfinished(self, root: str, items: Sequence[str], *, job: str) -> int:
        """Removes a job's unfinished new files from these directories (``""``: the root); how many."""
        swept = self._request_items({"do": "sweep", "root": root, "job": job}, items)
        with self._rejecting_malformed():
            return sum(worker_answers.number(each) for each in swept)

    def file_facts(self, root: str, items: Sequence[str]) -> list[FileFacts | None]:
        """What is at these paths (``""``: the root, followed); None: nothing."""
        found = self._request_items({"do": "facts", "root": root}, items)
        with self._rejecting_malformed():
            return [worker_answers.file_facts(row) for row in found]

    def move(self, source_root: str, source: str, root: str, path: str, *, job: str) -> int:
        """Moves a file, link or directory: renamed, or copied (holes kept) to another file system. Bytes of its files.

        An existing file is replaced, a directory gone into. A renamed directory counts 0.
        """
        return self._request_copy(
            {"do": "move", "from": source_root, "source": source, "root": root, "path": path, "job": job}
        )

    def copy(self, source: str, root: str, path: str, *, job: str) -> int:
        """Copies a source (file, directory or pattern, as for a walk) to a path below ``root``. Bytes of its files.

        What is there is replaced, what is in a directory beside it stays. Raises UserWorkerError for the first file
        that cannot be read.
        """
        return self._request_copy({"do": "copy", "source": source, "root": root, "path": path, "job": job})

    def _request_copy(self, request: dict[str, Any]) -> int:
        self._send(request)
        while True:
            message = self._receive_answer(cancellable=True)
            if "progress" not in message:
                with self._rejecting_malformed():
                    return worker_answers.number(*worker_answers.items(message, 1))

    def remove_tree(self, root: str, items: Sequence[str]) -> None:
        """Removes directories with all that is in them, following no link; what is gone is no error."""
        self._request_items({"do": "remove_tree", "root": root}, items, _REMOVE_TIMEOUT_S)

    def _request_items(self, request: dict[str, Any], items: Sequence[Any], seconds: float | None = None) -> list[Any]:
        answers: list[Any] = []
        # In portions, which bounds what a message holds.
        for start in range(0, len(items), 1000):
            part = list(items[start : start + 1000])
            self._send({**request, "items": part})
            answer = self._receive_answer(seconds)
            with self._rejecting_malformed():
                answers += worker_answers.items(answer, len(part))
        return answers

    def _request_files(
        self, request: dict[str, Any], items: Sequence[str], check: Callable[[Sequence[int], int], None]
    ) -> list[tuple[str, int]]:
        """Names, which only ``create`` gives, and descriptors."""
        opened: list[tuple[str, int]] = []
        try:
            for start in range(0, len(items), descriptor_channel.FDS_AT_ONCE):
                part = list(items[start : start + descriptor_channel.FDS_AT_ONCE])
                self._send({**request, "items": part})
                opened += zip(*self._receive_descriptors(len(part), check), strict=True)
        except BaseException:
            _close([fd for _, fd in opened])
            raise
        return opened

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        self._send(request)
        return self._receive_answer()

    def _receive_answer(self, seconds: float | None = None, *, cancellable: bool = False) -> dict[str, Any]:
        message, fds = self._receive(seconds, cancellable=cancellable)
        _close(fds)
        return self._check_answer(message)

    def _receive_descriptors(
        self, count: int, check: Callable[[Sequence[int], int], None] = worker_answers.check_readable
    ) -> tuple[list[str], list[int]]:
        message, fds = self._receive()
        try:
            answer = self._check_answer(message)
            with self._rejecting_malformed():
                names = worker_answers.items(answer, count)
                check(fds, count)
                return [worker_answers.relative_path(name or "") for name in names], fds
        except BaseException:
            _close(fds)
            raise

    def _check_answer(self, message: Any) -> dict[str, Any]:
        with self._rejecting_malformed():
            if not isinstance(message, dict):
                raise TypeError("no object")
            if "error" in message:
                what = printable(worker_answers.text(message["error"]))[:_MAX_SENTENCE_CHARS]
                path, code = (
                    worker_answers.text(message.get("path", "")),
                    worker_answers.code(message.get("errno") or 0),
                )
                raise UserWorkerError(path, code, f"{printable(path)}: {what}" if path else what)
            return message

    @contextmanager
    def _rejecting_malformed(self) -> Iterator[None]:
        """An answer that no worker of burstd gives ends the connection, and is a UserWorkerError."""
        try:
            yield
        except (ValueError, TypeError, LookupError):
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            raise UserWorkerError(
                "", 0, "the user worker gives a wrong answer; see its journal (burstd-user-worker@)"
            ) from None

    def _stop_walk(self) -> None:
        """Ends a walk that nobody wants to hear to its end."""
        try:
            self._send({"stop": True})
            for _ in range(_MAX_UNREAD_MESSAGES):
                message, fds = self._receive(cancellable=True)
                _close(fds)
                if isinstance(message, dict):
                    return
                self._send({})
            self._sock.shutdown(socket.SHUT_RDWR)
        except (UserWorkerError, OSError):
            # It is gone, and the walk with it.
            return

    def _send(self, request: dict[str, Any]) -> None:
        try:
            descriptor_channel.send(self._sock, request)
        except (descriptor_channel.ConnectionEnded, OSError) as error:
            raise UserWorkerError("", 0, _GONE.format(error)) from None

    def _receive(self, seconds: float | None = None, *, cancellable: bool = False) -> tuple[Any, list[int]]:
        """The next message, if it comes in time; ``cancellable``: and nobody has cancelled."""
        try:
            self._wait(self._sock.gettimeout() if seconds is None else seconds, cancellable=cancellable)
            return descriptor_channel.receive(self._sock, worker_answers.MAX_ANSWER_BYTES)
        except (descriptor_channel.ConnectionEnded, OSError) as error:
            raise UserWorkerError("", 0, _GONE.format(error)) from None

    def _wait(self, seconds: float | None, *, cancellable: bool) -> None:
        until = min(time.monotonic() + seconds if seconds is not None else float("inf"), self._deadline)
        ready = select.poll()
        ready.register(self._sock, select.POLLIN)
        while not ready.poll(1000 * max(0.0, min(_POLL_INTERVAL_S, until - time.monotonic()))):
            cancelled = cancellable and self._cancelled is not None and self._cancelled.is_set()
            if cancelled or time.monotonic() >= until:
                # What it says from now on answers nothing: it learns that nobody listens any more.
                self._sock.shutdown(socket.SHUT_RDWR)
                self._exit_timeout_s = 1.0
                if time.monotonic() >= self._deadline:
                    self._exit_timeout_s = 0.1
                    raise UserWorkerTimeout("", 0, "the time for it is over")
                text = (
                    "the request was cancelled"
                    if cancelled
                    else f"the file system has not answered for {seconds:.0f} s"
                )
                raise UserWorkerError("", 0, text)


def start_user_worker(
    uid: int,
    gid: int,
    groups: Sequence[int] = (),
    *,
    home: str = "",
    socket_path: Path | None = None,
    min_uid: int = 1000,
    gone: bool = False,
    deadline: float = float("inf"),
) -> UserWorker:
    """A worker for a user: at ``socket_path`` where systemd starts them, else a child of this process (which is root).

    With ``socket_path`` the account database of the machine says what the user's groups are;
    ``gone``: it does not know the user any more; ``deadline``: as UserWorker.set_deadline. Raises UserWorkerError.
    """
    hello = {"uid": uid, "gid": gid, "groups": list(groups or (gid,)), "home": home, "gone": gone}

    def make_client(sock: socket.socket, child: subprocess.Popen[bytes] | None) -> UserWorker:
        sock.settimeout(SILENCE_TIMEOUT_S)
        worker = UserWorker(sock, child)
        worker.set_deadline(deadline)
        return worker

    return start_worker_process(make_client, ["-S", str(program.__file__)], hello, socket_path, min_uid, {})


def start_worker_process(
    make_client: Callable[[socket.socket, subprocess.Popen[bytes] | None], AnyUserWorker],
    command: Sequence[str],
    hello: Mapping[str, object],
    socket_path: Path | None,
    min_uid: int,
    env: Mapping[str, str],
) -> AnyUserWorker:
    """Starts a worker: a child that runs Python with ``command``, or at ``socket_path``. Raises UserWorkerError."""
    uid = int(str(hello["uid"]))
    if worker_processes.count(uid) >= MAX_WORKERS_PER_USER:
        text = f"user {uid} has {MAX_WORKERS_PER_USER} user workers that have not ended: look for stopped processes"
        raise UserWorkerError("", errno.EAGAIN, text)
    worker = make_client(*connect_worker(command, socket_path, min_uid, env))
    try:
        worker_processes.add(uid, worker.handshake(hello))
    except BaseException:
        worker.close()
        raise
    return worker


def connect_worker(
    command: Sequence[str], socket_path: Path | None, min_uid: int, env: Mapping[str, str]
) -> tuple[socket.socket, subprocess.Popen[bytes] | None]:
    """A connection to a new worker, as start_worker_process starts it, and the child. Raises UserWorkerError."""
    client_sock, worker_sock = None, None
    child: subprocess.Popen[bytes] | None = None
    try:
        if socket_path is not None:
            client_sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            client_sock.settimeout(_CONNECT_S)
            client_sock.connect(str(listening_socket(socket_path)))
        else:
            client_sock, worker_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            fd = worker_sock.fileno()
            argv = [sys.executable, "-I", *command, "--fd", str(fd), "--min-uid", str(min_uid)]
            child = subprocess.Popen(argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, env=env, cwd="/")
    except OSError as error:
        if client_sock is not None:
            client_sock.close()
        where = str(socket_path) if socket_path else "burstd-user-worker"
        raise UserWorkerError(
            where, error.errno or 0, f"cannot reach a user worker at {where}: {error.strerror or error}"
        ) from None
    finally:
        if worker_sock is not None:
            worker_sock.close()
    return client_sock, child


def listening_socket(path: Path) -> Path:
    """``path``, or the name that the units of the version before gave it, where only that is there."""
    former = path.with_name(path.name.replace("user-worker", "hand").replace("object-worker", "object-hand"))
    return former if former.exists() and not path.exists() else path


def user_worker_for(
    who: Account, deadline: float = float("inf"), *, socket_path: Path | None = None, min_uid: int = 1000
) -> UserWorker:
    """A worker for an account; one without a name is gone, and has what its number owns.

    ``deadline``: as UserWorker.set_deadline.
    """
    return start_user_worker(
        who.uid, who.gid, who.groups, home=who.home, socket_path=socket_path, min_uid=min_uid, gone=not who.user,
        deadline=deadline,
    )  # fmt: skip


class WorkerProcesses:
    """The workers of each user that have not ended: a user can stop his, and only systemd can end them then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: dict[int, list[int]] = {}
        """uid -> descriptors of processes."""

    def add(self, uid: int, pid: int) -> None:
        """One more."""
        try:
            process = os.pidfd_open(pid)
        except OSError:  # it has ended already
            return
        with self._lock:
            self._alive.setdefault(uid, []).append(process)

    def count(self, uid: int) -> int:
        """How many a user has."""
        with self._lock:
            for user, processes_of in list(self._alive.items()):
                self._alive[user] = [process for process in processes_of if not _ended(process)]
                if not self._alive[user]:
                    del self._alive[user]
            return len(self._alive.get(uid, ()))


def _ended(process: int) -> bool:
    """Closes its descriptor where it has."""
    found = select.poll()
    found.register(process, select.POLLIN)
    if not found.poll(0):
        return False
    os.close(process)
    return True


worker_processes = WorkerProcesses()


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
