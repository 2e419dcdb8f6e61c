"""Making, renaming and removing files in a directory, never through a symbolic link inside it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

_TRAVERSE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COPY_AT_ONCE = 64 << 20


Facts = Sequence[object]
"""Of a file or link: ``f`` or ``l``, bytes, time of change in nanoseconds."""
Mount = tuple[int, int]
"""Device, and the kernel's number of the mount."""


class SafeDirectory:
    """Paths are in ``root``, without ``.`` and ``..``; ``""`` is the root itself. Raises OSError.

    The root is followed where it is a symbolic link, and so is what leads to it: it is the user's own word.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._root_fd = -1
        self._last_parent: tuple[str, int] = ("", -1)
        self._unfinished: dict[str, tuple[int, int]] = {}
        """New files that are not finished: what they are, since others may write where the user lets them."""

    def close(self) -> None:
        """Closes what is open."""
        self._close_last_parent()
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def make_directory(self, path: str) -> bool:
        """Makes a directory that only its owner can enter; False: it is there. The root with all that leads to it."""
        if not path:
            return self._make_root()
        parent, name = self._parent(path)
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
            return False
        return True

    def make_private_directory(self, path: str) -> None:
        """Makes a directory of mode 0700 that nobody else can change, the root too, but not what leads to the root.

        One that is there is taken only if it is this user's. Raises PermissionError with owner and mode.
        """
        if path:
            self.make_directory(path)
        else:
            above = os.stat(os.path.dirname(self.root) or "/")  # noqa: PTH116, PTH120
            if above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
                raise PermissionError(errno.EPERM, "lies where everybody can rename it: chmod +t the directory above")
            with suppress(FileExistsError):
                os.mkdir(self.root, 0o700)  # noqa: PTH102
        parent, name = self._parent(path) if path else (None, self.root)
        try:
            fd = os.open(name, _LIST, dir_fd=parent)
        except PermissionError:
            facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        else:
            facts = os.fstat(fd)
            os.close(fd)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            what = f"is there already, is uid {facts.st_uid}'s with mode {stat.S_IMODE(facts.st_mode):04o}, and no"
            remedy = "look who made it, and remove it"
            raise PermissionError(errno.EPERM, f"{what} directory of uid {os.geteuid()} alone: {remedy}")

    def create_file(self, path: str, job: str) -> tuple[str, int]:
        """A new file beside ``path``, which only its owner can open: its path and its descriptor, to write and read."""
        parent, name = self._parent(path)
        new = temporary_name(job)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(new, flags, 0o600, dir_fd=parent)
        beside = path[: len(path) - len(name)] + new
        self._unfinished[beside] = _identity(fd)
        return beside, fd

    def create_in_place(self, path: str, *, resumed: bool) -> int:
        """A new file at ``path`` itself, in a tree that nobody uses yet; its descriptor, and nothing to commit.

        ``resumed``: what an earlier try left there is taken as it is.
        """
        parent, name = self._parent(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if resumed else os.O_EXCL)
        try:
            return os.open(name, flags, 0o600, dir_fd=parent)
        except PermissionError:
            if not resumed:
                raise
            # It has its mode already.
            os.unlink(name, dir_fd=parent)
            return os.open(name, flags | os.O_EXCL, 0o600, dir_fd=parent)

    def commit_file(self, new: str, path: str, mode: int, mtime_ns: int) -> None:
        """Gives a new file its mode and time and renames it to ``path``. ``new`` is what ``create`` gave."""
        self._finish_file(new, mode, mtime_ns)
        self._replace(new, path)

    def _finish_file(self, new: str, mode: int, mtime_ns: int) -> None:
        parent, name = self._parent(new)
        fd = os.open(name, _READ, dir_fd=parent)
        try:
            if self._unfinished.pop(new, None) != _identity(fd):
                raise OSError(errno.ESTALE, "was exchanged while it was written: see who else may write there", new)
            os.fchmod(fd, mode & 0o777)
            os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(fd)

    def commit_beside(self, new: str, path: str, mode: int, mtime_ns: int, sent: Facts | None, suffix: str) -> str:
        """As ``commit_file``, but over nothing else than what is as ``sent``, and else beside it; the path it went to.

        ``sent``: what was at ``path`` when somebody looked, None: nothing. Beside is ``path`` with ``suffix``, or with
        ``suffix`` and a number where that is taken.
        """
        self._finish_file(new, mode, mtime_ns)
        if self._is_as_sent(path, sent):
            self._replace(new, path)
            return path
        for beside in _names_beside(path, suffix):
            parent, name = self._parent(beside)
            old = os.path.basename(new)  # noqa: PTH119
            try:
                # In one step, so that nothing is replaced which comes there meanwhile.
                os.link(old, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
                os.unlink(old, dir_fd=parent)
            except FileExistsError:
                continue
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if self.lstat(beside) is not None:
                    continue
                os.rename(old, name, src_dir_fd=parent, dst_dir_fd=parent)
            return beside
        raise AssertionError("names do not end")

    def symlink_beside(self, row: tuple[str, str, int, Facts | None, str], job: str) -> str:
        """A symbolic link by the rule of ``commit_beside``; one that is there with this target counts for it.

        ``row``: target, path, mtime_ns, ``sent``, ``suffix``.
        """
        target, path, mtime_ns, sent, suffix = row
        if self._is_as_sent(path, sent):
            self.symlink(target, path, mtime_ns, job)
            return path
        for beside in _names_beside(path, suffix):
            parent, name = self._parent(beside)
            try:
                os.symlink(target, name, dir_fd=parent)
            except FileExistsError:
                facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if not stat.S_ISLNK(facts.st_mode) or os.readlink(name, dir_fd=parent) != target:
                    continue
            os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
            return beside
        raise AssertionError("names do not end")

    def _is_as_sent(self, path: str, sent: Facts | None) -> bool:
        facts = self.lstat(path)
        if facts is None or sent is None:
            return False
        kind = {stat.S_IFREG: "f", stat.S_IFLNK: "l"}.get(stat.S_IFMT(facts.st_mode), "")
        return [kind, facts.st_size, facts.st_mtime_ns] == [*sent]

    def symlink(self, target: str, path: str, mtime_ns: int | None, job: str) -> None:
        """A symbolic link that replaces ``path``."""
        parent, name = self._parent(path)
        new = temporary_name(job)
        os.symlink(target, new, dir_fd=parent)
        try:
            if mtime_ns is not None:
                os.utime(new, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)
            os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            os.unlink(new, dir_fd=parent)
            raise

    def hardlink(self, earlier: str, path: str, job: str) -> None:
        """A second name of a file, that replaces ``path``."""
        source, old = self._parent(earlier)
        source = os.dup(source)
        try:
            parent, name = self._parent(path)
            new = temporary_name(job)
            os.link(old, new, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)
        try:
            os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            # A rename between two names of one file does nothing and leaves both.
            _unlink_if_there(new, parent)

    def finalize_directory(self, path: str, mode: int, mtime_ns: int) -> None:
        """Gives a directory its mode and time (0: none), when nothing more is written into it."""
        fd = self._directory(path)
        try:
            os.fchmod(fd, mode & 0o777)
            if mtime_ns:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(fd)

    def remove_file(self, path: str) -> None:
        """Removes a file or link; one that is gone is no error."""
        self._unfinished.pop(path, None)
        parent, name = self._parent(path)
        _unlink_if_there(name, parent)

    def remove_unfinished(self, path: str, job: str) -> int:
        """Removes a job's new files that were never finished from a directory; how many there were."""
        prefix = temporary_name(job)[:-_RANDOM]
        fd = self._directory(path)
        try:
            found = [name for name in _listed(fd) if name.startswith(prefix) and len(name) == len(prefix) + _RANDOM]
            for name in found:
                _unlink_if_there(name, fd)
        finally:
            os.close(fd)
        return len(found)

    def lstat(self, path: str) -> os.stat_result | None:
        """What lstat says; None: there is nothing."""
        try:
            if not path:
                return os.stat(self.root)  # noqa: PTH116
            parent, name = self._parent(path)
            return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_file(self, path: str) -> int:
        """A regular file, to read."""
        parent, name = self._parent(path)
        fd = os.open(name, _READ, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is no regular file", path)
        return fd

    def move(self, source: SafeDirectory, old: str, path: str, job: str) -> Iterator[int]:
        """Moves a file, link or directory from ``source``: renamed, or copied where that is another file system.

        Yields now and then the bytes of the files that are done. Directories that are there are gone into, files
        replaced.
        """
        parent, name = source._parent(old)
        facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            yield from self._move_directory(source, old, path, facts, job)
            return
        try:
            target_parent, new = self._parent(path)
            os.rename(name, new, src_dir_fd=parent, dst_dir_fd=target_parent)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            yield facts.st_size
            return
        if stat.S_ISLNK(facts.st_mode):
            self.symlink(os.readlink(name, dir_fd=parent), path, facts.st_mtime_ns, job)
        elif stat.S_ISREG(facts.st_mode):
            yield from self._copy(source.open_file(old), path, facts, job)
        source.remove_file(old)

    def remove_tree(self, path: str) -> None:
        """Removes a directory with all that is in it; one that is gone is no error. A link is removed, not followed."""
        parent, name = self._parent(path)
        try:
            _remove_tree(parent, name)
        except FileNotFoundError:
            return

    def empty_directory(self, path: str) -> None:
        """Removes all that is in a directory, following no link. Raises OSError where something is mounted there."""
        parent, name = self._parent(path)
        os.close(_emptied(parent, name, _mount(parent)))

    def _move_directory(
        self, source: SafeDirectory, old: str, path: str, facts: os.stat_result, job: str
    ) -> Iterator[int]:
        parent, name = source._parent(old)
        if self.lstat(path) is None:
            try:
                target_parent, new = self._parent(path)
                os.rename(name, new, src_dir_fd=parent, dst_dir_fd=target_parent)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
            else:
                yield 0
                return
        self.make_directory(path)
        fd = source._directory(old)
        try:
            names = sorted(_listed(fd))
        finally:
            os.close(fd)
        for child in names:
            yield from self.move(source, f"{old}/{child}", f"{path}/{child}", job)
        self.finalize_directory(path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns)
        parent, name = source._parent(old)
        os.rmdir(name, dir_fd=parent)

    def _copy(self, fd: int, path: str, facts: os.stat_result, job: str) -> Iterator[int]:
        try:
            new, out = self.create_file(path, job)
            try:
                yield from copy_data(fd, out, facts.st_size)
                os.fsync(out)
            except BaseException:
                self.remove_file(new)
                raise
            finally:
                os.close(out)
        finally:
            os.close(fd)
        self.commit_file(new, path, stat.S_IMODE(facts.st_mode), facts.st_mtime_ns)

    def _replace(self, new: str, path: str) -> None:
        source, old = self._parent(new)
        if os.path.dirname(new) == os.path.dirname(path):  # noqa: PTH120
            os.rename(old, os.path.basename(path), src_dir_fd=source, dst_dir_fd=source)  # noqa: PTH119
            return
        source = os.dup(source)
        try:
            parent, name = self._parent(path)
            os.rename(old, name, src_dir_fd=source, dst_dir_fd=parent)
        finally:
            os.close(source)

    def _make_root(self) -> bool:
        try:
            os.makedirs(self.root)  # noqa: PTH103
        except FileExistsError:
            if not os.path.isdir(self.root):  # noqa: PTH112
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.root) from None
            return False
        return True

    def _directory(self, path: str) -> int:
        """The directory, open to list and change."""
        if not path:
            return os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        parent, name = self._parent(path)
        return os.open(name, _LIST, dir_fd=parent)

    def _parent(self, path: str) -> tuple[int, str]:
        """The open directory of a path, which is closed with the next call, and the path's last name."""
        if self._root_fd < 0:
            self._root_fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        above, _, name = path.rpartition("/")
        if not {"", ".", ".."}.isdisjoint(path.split("/")):
            raise OSError(errno.EINVAL, "is not a path in its directory", path)
        if not above:
            return self._root_fd, name
        if above != self._last_parent[0]:
            self._close_last_parent()
            fd = self._root_fd
            try:
                for part in above.split("/"):
                    deeper = os.open(part, _TRAVERSE, dir_fd=fd)
                    if fd != self._root_fd:
                        os.close(fd)
                    fd = deeper
            except OSError:
                if fd != self._root_fd:
                    os.close(fd)
                raise
            self._last_parent = (above, fd)
        return self._last_parent[1], name

    def _close_last_parent(self) -> None:
        if self._last_parent[1] >= 0:
            os.close(self._last_parent[1])
        self._last_parent = ("", -1)


def _names_beside(path: str, suffix: str) -> Iterator[str]:
    """The path itself, and then names that are likely to be free."""
    yield from (path, path + suffix)
    yield from (f"{path}{suffix}.{number}" for number in count(2))


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
"""What file systems without hard links say, or where a file has too many."""
_RANDOM = 12


def temporary_name(job: str) -> str:
    """A name for a file that is being written for a job: ``.burst-JOB-0123456789ab``."""
    return f".burst-{job}-{os.urandom(_RANDOM // 2).hex()}"


def _identity(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


def _listed(directory: int) -> list[str]:
    return os.listdir(directory)


def _unlink_if_there(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return


def _remove_tree(parent: int, name: str, mount: Mount | None = None) -> None:
    try:
        os.close(_emptied(parent, name, mount))
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    else:
        os.rmdir(name, dir_fd=parent)


def _emptied(parent: int, name: str, mount: Mount | None = None) -> int:
    """The directory, with nothing left in it. ``mount``: in which all of it must be, None: anywhere.

    Raises NotADirectoryError, of links too.
    """
    try:
        fd = os.open(name, _LIST, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
        if error.errno != errno.EACCES:
            raise
        fd = -1
    if fd < 0 or not os.access(".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
        fd = _open_unlocked(parent, name, fd)
    try:
        _check_mount(fd, mount, name)
        for child in _listed(fd):
            try:
                os.unlink(child, dir_fd=fd)
            except IsADirectoryError:
                _remove_tree(fd, child, mount)
            except PermissionError:  # what some file systems say of directories
                if not stat.S_ISDIR(os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise
                _remove_tree(fd, child, mount)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_mount(fd: int, mount: Mount | None, name: str) -> None:
    if mount not in (None, _mount(fd)):
        raise OSError(errno.EXDEV, "is mounted there, and is not removed", name)


def _mount(fd: int) -> Mount:
    """Of what is mounted from the same file system the device alone does not differ."""
    # As bytes: the worker of another user may be unable to import an encoding.
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:  # noqa: PTH123
        (number,) = (int(line.split()[1]) for line in file if line.startswith(b"mnt_id:"))
    return os.fstat(fd).st_dev, number


def _open_unlocked(parent: int, name: str, fd: int) -> int:
    """The directory, made open to its owner: a job may have taken its own rights away."""
    if fd < 0:
        way = os.open(name, _TRAVERSE, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{way}", 0o700)  # noqa: PTH101
        finally:
            os.close(way)
        return os.open(name, _LIST, dir_fd=parent)
    try:
        os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd


def copy_data(source: int, target: int, size: int) -> Iterator[int]:
    """Copies within the kernel where the file systems can, and keeps holes."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        end = os.lseek(source, start, os.SEEK_HOLE)
        at = start
        while at < end:
            count = _copy_some(source, target, at, min(_COPY_AT_ONCE, end - at))
            if not count:
                raise OSError(errno.ESTALE, "has become shorter while it was copied")
            at += count
            yield count
    os.ftruncate(target, size)


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, at, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    return os.pwrite(target, os.pread(source, min(count, 1 << 20), at), at)
