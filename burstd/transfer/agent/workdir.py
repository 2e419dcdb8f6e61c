"""A job's working directory on a node, at the path that it has at home: made, filled, and removed when the job is over.

The half with root's rights makes directories and removes them; what is in them only the user's half writes. Each
directory on the way is opened from the one above: a user who may write there could exchange it for a link.
"""

# ruff: noqa: PTH108, PTH119, PTH120

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from burstd.domain.mounts import NO_WORKDIR_DIRECTORIES, contains
from burstd.transfer.agent.cache import remove_reference, remove_tree
from burstd.transfer.agent.job_folder import JobFolder, job_records
from burstd.transfer.agent.user_process import AgentFault, JsonObject, UserProcess
from burstd.transfer.privsep.safe_directory import SafeDirectory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
UNFINISHED_TREE = "tree"
"""Its name in the directory in which it is made."""
_SOLUTION = "give such a partition OverSubscribe=EXCLUSIVE, so that a job has its nodes for itself"


class NodeWorkdir:
    """The working directory of one job. Its part of the job's record, ``workdir``, is written before anything is made:

    ``path``; ``made``: directories above it that may have to be removed, the outermost first; ``renamed``: device and
    inode of what has got ``path``, or is about to; ``filled_ns``: when it was whole, by its file system's clock, 0: it
    is not; ``entry``: that of the cache of which it is a copy; ``ignore``: rows of IgnoreRules.
    """

    def __init__(self, folder: JobFolder, job: str, path: str) -> None:
        """Raises AgentFault where the path is one of the node's own."""
        self.path = path
        self._folder = folder
        self._job = job
        self._above, self._name = os.path.split(path)
        spool = os.path.dirname(folder.path)
        if not path.startswith("/") or os.path.normpath(path) != path or path.startswith("//") or path == "/":
            raise AgentFault("rights", f"the working directory {path!r} is no absolute path in its shortest form")
        for directory in (*NO_WORKDIR_DIRECTORIES, spool):
            if contains(directory, path) or contains(path, directory):
                raise AgentFault("rights", f"{directory} is the node's own, so {path} is not made there")

    @property
    def unfinished(self) -> str:
        """The directory beside it in which it is made."""
        return f"{self._above.rstrip('/')}/.burst-{os.path.basename(self._folder.path)}"

    @property
    def is_renamed(self) -> bool:
        """Whether it was whole when an earlier try ended."""
        return bool(self._read().get("renamed"))

    @property
    def is_filled(self) -> bool:
        """Whether the job has it whole."""
        return bool(self._read().get("filled_ns"))

    def _read(self) -> JsonObject:
        record = self._folder.read_record() or {}
        found: JsonObject = record.get("workdir") or {}
        return found

    def _write(self, **changes: object) -> None:
        record = self._folder.read_record()
        if record is None:
            raise AgentFault("agent", f"{self._folder.record} is gone: somebody cleared the job while it was placed")
        record["workdir"] = {**(record.get("workdir") or {}), **changes}
        self._folder.write_record(record)

    def prepare(self, uid: int, gid: int, home: str, ignore: list[list[object]]) -> None:
        """Makes what leads to it, and the directory in which the user's half makes it. Raises AgentFault, OSError."""
        made = self._read().get("made", [])
        missing = []
        above = self._above
        while not os.path.lexists(above):
            missing.append(above)
            above = os.path.dirname(above)
        self._write(path=self.path, made=[*made, *(p for p in reversed(missing) if p not in made)], ignore=ignore)
        self._refuse_overlap()
        with suppress(FileNotFoundError, NotADirectoryError):
            if not self._is_own(os.lstat(self.path)):
                raise self._taken()
        with _opened(self._above, _Maker(uid, gid, home)) as directory:
            with suppress(FileExistsError):
                os.mkdir(os.path.basename(self.unfinished), 0o700, dir_fd=directory)
            opened = os.open(os.path.basename(self.unfinished), _DIRECTORY, dir_fd=directory)
            try:
                if os.fstat(opened).st_uid != uid and os.geteuid() == 0:
                    os.fchown(opened, uid, gid)
            finally:
                os.close(opened)

    def _is_own(self, about: os.stat_result) -> bool:
        """Whether it is what burstd has made: another user may have put something of his at the path."""
        return [about.st_dev, about.st_ino] == self._read().get("renamed")

    def _taken(self) -> AgentFault:
        return AgentFault(
            "rights",
            f"{self.path} is on the node already, and burstd has not made it: submit the job in another directory, "
            "or let the image leave this one out",
        )

    def _refuse_overlap(self) -> None:
        """Two jobs never have the same directory, nor one in the other's: each would take home what the other wrote."""
        for record in job_records(os.path.dirname(self._folder.path)):
            other = (record.get("workdir") or {}).get("path", "")
            if other and record["job"] != self._job and (contains(other, self.path) or contains(self.path, other)):
                self._write(path="")
                raise AgentFault(
                    "agent",
                    f"job {record['job']} has {other} on this node, and burstd does not mix the files of two jobs: "
                    f"{_SOLUTION}, or submit them in different directories",
                )

    def finish(self, entry: str, user: UserProcess, directories: list[str]) -> None:
        """What the user's half has made in ``unfinished`` gets its path, and these directories in it if they lack.

        ``entry``: that of the cache of which it is a copy. Raises AgentFault where somebody else has made the path.
        """
        with _opened(self._above) as directory:
            unfinished = os.open(os.path.basename(self.unfinished), _DIRECTORY, dir_fd=directory)
            try:
                with suppress(FileNotFoundError):  # An earlier try has come so far.
                    about = os.stat(UNFINISHED_TREE, dir_fd=unfinished, follow_symlinks=False)
                    self._write(renamed=[about.st_dev, about.st_ino], entry=entry)
                    _rename_to_free(unfinished, UNFINISHED_TREE, directory, self._name)
            except FileExistsError:
                raise self._taken() from None
            finally:
                os.close(unfinished)
            if not self._is_own(os.stat(self._name, dir_fd=directory, follow_symlinks=False)):
                raise self._taken()
            os.rmdir(os.path.basename(self.unfinished), dir_fd=directory)
            user.call_operation({"do": "directories", "path": self.path, "directories": directories})
            about = os.stat(self._name, dir_fd=directory, follow_symlinks=False)
        # That was the last change before the job's own.
        self._write(filled_ns=about.st_ctime_ns)

    def remove(self) -> None:
        """Removes it and what was made for it. Raises OSError where something is mounted in it."""
        record = self._read()
        for path in (self.unfinished, *([self.path] if record.get("renamed") else [])):
            # What lies behind a link now is not what was made.
            with suppress(FileNotFoundError, _WayExchanged), _opened(self._above) as directory:
                name = os.path.basename(path)
                about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if path == self.path and not self._is_own(about):
                    continue
                if stat.S_ISDIR(about.st_mode):
                    _empty(directory, name)
                    os.rmdir(name, dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
        for path in reversed(record.get("made", [])):
            try:
                with suppress(_WayExchanged), _opened(os.path.dirname(path)) as directory:
                    os.rmdir(os.path.basename(path), dir_fd=directory)
            except OSError as error:
                # Others have put something there, or have removed it.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    raise


class _WayExchanged(AgentFault):
    """A directory on the way is none, or may be a link of another user's."""


@dataclass(frozen=True)
class _Maker:
    """For whom directories are made that are missing."""

    uid: int
    gid: int
    home: str

    def make(self, above: int, name: str, path: str) -> None:
        """Makes ``path``, which is ``name`` in ``above``: the user's in what is the user's, else for all to pass."""
        try:
            os.mkdir(name, 0o700, dir_fd=above)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            raise AgentFault(
                "rights",
                f"{path} cannot be made on the node ({os.strerror(error.errno)}): let the image have "
                f"{os.path.dirname(path)}"
                " as a directory in which the pod's user may write",
            ) from None
        opened = os.open(name, _DIRECTORY, dir_fd=above)
        try:
            is_users = path == self.home or os.fstat(above).st_uid == self.uid
            if is_users and os.geteuid() == 0:
                os.fchown(opened, self.uid, self.gid)
            os.fchmod(opened, 0o700 if path == self.home else 0o755)
        finally:
            os.close(opened)


@contextmanager
def _opened(path: str, maker: _Maker | None = None) -> Iterator[int]:
    """A directory, opened part by part; what is missing is made by ``maker``.

    A link counts only where nobody but root, or who runs this, could have put it. Raises AgentFault, OSError.
    """
    fd = os.open("/", _DIRECTORY)
    try:
        at = ""
        for name in path.split("/")[1:] if path != "/" else ():
            at = f"{at}/{name}"
            about = os.fstat(fd)
            trusted = about.st_uid in (0, os.geteuid()) and not about.st_mode & 0o022
            if maker is not None:
                with suppress(FileExistsError):
                    maker.make(fd, name, at)
            try:
                deeper = os.open(name, _DIRECTORY & ~os.O_NOFOLLOW if trusted else _DIRECTORY, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    text = f"{at}, on the way to {path}, is no directory, or a link that another user may change"
                    raise _WayExchanged("rights", text) from None
                raise
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        os.close(fd)


_RENAME_NOREPLACE = 1


def _rename_to_free(source: int, old: str, target: int, new: str) -> None:
    """Renames to a name that is free. Raises FileExistsError where it is not, be it an empty directory; OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = errno.ENOSYS
    if hasattr(libc, "renameat2"):
        if libc.renameat2(source, os.fsencode(old), target, os.fsencode(new), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(number, os.strerror(number), new)
    # The C library, the kernel or the file system, such as NFS, has no such call.
    with suppress(FileNotFoundError):
        os.stat(new, dir_fd=target, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=source, dst_dir_fd=target)


def _empty(above: int, name: str) -> None:
    """Removes all that is in a directory. A job may have left files in it that are not its user's."""
    directory = SafeDirectory(f"/proc/self/fd/{above}")
    try:
        directory.empty_directory(name)
    finally:
        directory.close()


def clear_job(path: str, job: str) -> None:
    """Removes a job's folder and gives free what it used. Nothing there is no error. Raises AgentFault."""
    folder = JobFolder(path)
    record = folder.read_record()
    if record is None:
        if os.path.lexists(folder.path):
            raise AgentFault("agent", f"{folder.path} has no record of burstd's: it is not removed")
        return
    if record["job"] != job:
        raise AgentFault("agent", f"{folder.path} is the folder of job {record['job']}, not of job {job}")
    if workdir := (record.get("workdir") or {}).get("path", ""):
        NodeWorkdir(folder, job, workdir).remove()
    remove_tree(folder.path)
    for entry in record["entries"]:
        remove_reference(entry, job)
    os.unlink(folder.record)
