"""Open directories of a tree that is being made or read, so that no path is looked up through a link.

Making a tree from its manifest, with the rights that this process has: the child's part of placing.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, TypeVar

from burstd.transfer.agent.user_process import AgentFault
from burstd.transfer.agent.window import EntryWindow, PartialFile, WindowObjects, WriteTarget
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, decode_manifest

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_OPEN = 200


class DirectoryCache:
    """Open directories in one, by path: each is opened from the one above, never through a link."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def open_directory(self, path: bytes) -> int:
        """A descriptor that is good until the next call. Raises OSError."""
        if not path:
            return self._root
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        above, _, name = path.rpartition(b"/")
        descriptor = os.open(name, _DIRECTORY, dir_fd=self._open_from_nearest(above))
        self._open[path] = descriptor
        while len(self._open) > _MAX_OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _open_from_nearest(self, path: bytes) -> int:
        """As ``at``, without recursion: a tree may be thousands deep."""
        nearest = path
        while nearest and nearest not in self._open:
            nearest = nearest.rpartition(b"/")[0]
        here = self._open[nearest] if nearest else self._root
        if nearest == path:
            return here
        rest = path[len(nearest) :].lstrip(b"/").split(b"/")
        mine = -1
        for name in rest:
            following = os.open(name, _DIRECTORY, dir_fd=here)
            if mine >= 0:
                os.close(mine)
            here = mine = following
        # Kept, as its neighbours will want it too.
        self._open[path] = here
        return here

    def close(self) -> None:
        """Closes all but the root."""
        while self._open:
            os.close(self._open.popitem()[1])


WINDOW_ENTRIES = 16384
_WINDOW_PIECES = 65536
_R = TypeVar("_R")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_NO_CLONE = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM}


class InputRestorer:
    """Makes one tree under ``name`` in the directory ``base``. Raises OSError, ManifestDamaged, AgentFault."""

    def __init__(self, base: int, name: str, *, single: bool, read_only: bool, resumed: bool) -> None:
        """``again``: an earlier try may have left some of it there."""
        self._base = base
        self._name = os.fsencode(name)
        self._single = single
        self._resumed = resumed
        # Nobody writes what several jobs read; its user reads all of it, as he could at its source.
        self._mode_removed, self._file_mode_added, self._directory_mode_added = (
            (0o222, 0o400, 0o500) if read_only else (0, 0, 0)
        )
        self._directory_records: IO[bytes] = tempfile.TemporaryFile(dir=f"/proc/self/fd/{base}")  # noqa: SIM115 - closed by run
        self._entry_count = 0
        self._root = base
        if not single:
            self._mkdir(self._name, base)
            self._root = os.open(name, _DIRECTORY, dir_fd=base)
        self._directories = DirectoryCache(self._root)

    def restore_from_objects(self, manifest: Iterable[bytes], objects: WindowObjects) -> None:
        """Makes all of it from objects."""
        with self._closing():
            before: tuple[EntryWindow, list[str]] | None = None
            for window in self._windows(decode_manifest(manifest)):
                done = objects.written_keys(window.number)
                keys = [key for key in window.targets if key not in done]
                for key in done & window.targets.keys():
                    self._object_written(window.targets[key])
                objects.request_objects(window, keys)
                if before is not None:
                    self._write_window(*before, objects)
                before = window, keys
            if before is not None:
                self._write_window(*before, objects)
            self._finish_directories()

    def restore_from_tree(self, manifest: Iterable[bytes], tree: int) -> None:
        """Makes all of it from a tree that is on this node already: ``tree`` is its directory, or its only file."""
        origin = DirectoryCache(tree)
        with self._closing():
            for window in self._windows(decode_manifest(manifest), origin if not self._single else tree):
                self._make_hardlinks(window)
            self._finish_directories()
            origin.close()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._directories.close()
            self._directory_records.close()
            if self._root != self._base:
                os.close(self._root)

    def _windows(
        self, entries: Iterator[ManifestEntry], origin: DirectoryCache | int | None = None
    ) -> Iterator[EntryWindow]:
        number = entries_here = pieces = 0
        window = EntryWindow(0)
        for entry in entries:
            self._entry_count += 1
            self._create_entry(entry, window, origin)
            entries_here += 1
            pieces += len(entry.pieces)
            if entries_here >= WINDOW_ENTRIES or pieces >= _WINDOW_PIECES:
                yield window
                number += 1
                entries_here = pieces = 0
                window = EntryWindow(number)
        yield window
        if self._single and self._entry_count != 1:
            raise ManifestDamaged(f"the tree of a single file has {self._entry_count} entries")

    def _parent_and_name(self, path: bytes) -> tuple[int, bytes]:
        """The directory and the name of an entry."""
        if self._single:
            return self._base, self._name
        above, _, name = path.rpartition(b"/")
        try:
            return self._directories.open_directory(above), name
        except FileNotFoundError:
            raise ManifestDamaged(f"a manifest has an entry without its directory: {path!r}") from None

    def _create_entry(self, entry: ManifestEntry, window: EntryWindow, origin: DirectoryCache | int | None) -> None:
        """Makes what has no content, and notes what the rest needs."""
        if entry.path:
            parts = entry.path.split(b"/")
            if b"" in parts or b"." in parts or b".." in parts:
                raise ManifestDamaged(f"a manifest has an entry that leads out of its tree: {entry.path!r}")
        elif entry.kind != "d" or self._single:
            raise ManifestDamaged("a manifest has an entry without a name")
        if self._single and entry.kind == "d":
            raise ManifestDamaged("the tree of a single file has a directory")
        if entry.kind == "d":
            if entry.path:
                directory, name = self._parent_and_name(entry.path)
                self._mkdir(name, directory)
            marshal.dump((entry.path, entry.mode, entry.mtime_ns), self._directory_records)
        elif entry.kind == "l":
            directory, name = self._parent_and_name(entry.path)
            self._create_once(lambda: os.symlink(entry.link_target, name, dir_fd=directory), name, directory)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=directory, follow_symlinks=False)
        else:
            self._plan_file(entry, window, origin)

    def _plan_file(self, entry: ManifestEntry, window: EntryWindow, origin: DirectoryCache | int | None) -> None:
        if entry.hardlink_to:
            window.hardlinks.append(entry)
            return
        pieces = entry.pieces
        if origin is not None:
            self._copy_file(entry, origin)
            return
        if len(pieces) == 1 and pieces[0].key:
            piece = pieces[0]
            window.targets.setdefault(piece.key, []).append((None, entry, 0, piece.offset, piece.length))
            return
        keys = {piece.key for piece in pieces if piece.key}
        unfinished = PartialFile(entry, len(keys))
        if not keys:
            os.close(self._create_file(entry, 0o600))
            self._finish_file(entry)
            return
        at = 0
        for piece in pieces:
            if piece.key:
                window.targets.setdefault(piece.key, []).append((unfinished, entry, at, piece.offset, piece.length))
            at += piece.length

    def _write_window(self, window: EntryWindow, keys: list[str], objects: WindowObjects) -> None:
        objects.write_arriving(window, keys, lambda key, body: self._write_object(window.targets[key], body))
        self._make_hardlinks(window)

    def _make_hardlinks(self, window: EntryWindow) -> None:
        for entry in window.hardlinks:
            directory, name = self._parent_and_name(entry.path)
            earlier, _, old = entry.hardlink_to.rpartition(b"/")
            if not old or old in {b".", b".."} or {b"", b".", b".."} & set(earlier.split(b"/") if earlier else ()):
                raise ManifestDamaged(f"a manifest has an entry that leads out of its tree: {entry.hardlink_to!r}")
            # Both directories must stay open for the one call.
            held = os.dup(directory)
            try:
                source = self._directories.open_directory(earlier)
                self._create_once(
                    lambda: os.link(
                        old, name, src_dir_fd=source, dst_dir_fd=held, follow_symlinks=False  # noqa: B023 - called at once
                    ),
                    name, held,
                )  # fmt: skip
            finally:
                os.close(held)

    def _write_object(self, targets: list[WriteTarget], body: memoryview) -> int:
        """Writes what one object holds; returns how many bytes of files that was."""
        written = 0
        size = len(body)
        for unfinished, entry, at, offset, length in targets:
            if offset + length > size:
                raise ManifestDamaged(f"a manifest wants more of an object than there is, for {entry.path!r}")
            part = body[offset : offset + length]
            if unfinished is None:
                descriptor = self._create_file(entry, entry.mode & ~self._mode_removed | self._file_mode_added)
                try:
                    _write_at(descriptor, part, 0)
                    os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
                finally:
                    os.close(descriptor)
            else:
                descriptor = self._reopen(entry)
                try:
                    _write_at(descriptor, part, at)
                finally:
                    os.close(descriptor)
            written += length
        self._object_written(targets)
        return written

    def _object_written(self, targets: list[WriteTarget]) -> None:
        for unfinished in {id(t[0]): t[0] for t in targets if t[0] is not None}.values():
            unfinished.remaining -= 1
            if not unfinished.remaining:
                self._finish_file(unfinished.entry)

    def _create_file(self, entry: ManifestEntry, mode: int) -> int:
        directory, name = self._parent_and_name(entry.path)
        return self._create_once(lambda: os.open(name, _NEW, mode, dir_fd=directory), name, directory)

    def _copy_file(self, entry: ManifestEntry, origin: DirectoryCache | int) -> None:
        if isinstance(origin, int):
            source = os.dup(origin)
        else:
            above, _, name = entry.path.rpartition(b"/")
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=origin.open_directory(above))
        try:
            target = self._create_file(entry, 0o600)
            try:
                _clone(source, target, entry)
            finally:
                os.close(target)
        finally:
            os.close(source)
        self._finish_file(entry)

    def _reopen(self, entry: ManifestEntry) -> int:
        directory, name = self._parent_and_name(entry.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o600, dir_fd=directory)
        except PermissionError:
            if not self._resumed:
                raise
        # An earlier try came as far as its mode.
        readable = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fchmod(readable, 0o600)
        finally:
            os.close(readable)
        return os.open(name, flags, 0o600, dir_fd=directory)

    def _finish_file(self, entry: ManifestEntry) -> None:
        descriptor = self._reopen(entry)
        try:
            os.ftruncate(descriptor, entry.size)
            os.fchmod(descriptor, entry.mode & ~self._mode_removed | self._file_mode_added)
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(descriptor)

    def _mkdir(self, name: bytes, directory: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not self._resumed:
                raise ManifestDamaged(f"a manifest names {name!r} twice") from None
            # It may have got its mode already.
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
            os.fchmod(descriptor, 0o700)
            os.close(descriptor)

    def _create_once(self, make: Callable[[], _R], name: bytes, directory: int) -> _R:
        try:
            return make()
        except FileExistsError:
            if not self._resumed:
                raise ManifestDamaged(f"a manifest names {name!r} twice") from None
        os.unlink(name, dir_fd=directory)
        return make()

    def _finish_directories(self) -> None:
        """Times and modes of directories: now nothing is made in them any more."""
        self._directory_records.seek(0)
        closed: list[tuple[bytes, int, int]] = []
        while True:
            try:
                path, mode, mtime_ns = marshal.load(self._directory_records)  # noqa: S302 - our own, written above
            except EOFError:
                break
            mode = mode & ~self._mode_removed | self._directory_mode_added
            if mode & 0o100:
                self._finish_directory(path, mode, mtime_ns)
            else:
                closed.append((path, mode, mtime_ns))
        # What nobody can pass any more: what is in it comes first.
        for row in reversed(closed):
            self._finish_directory(*row)

    def _finish_directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        directory = self._directories.open_directory(path)
        os.fchmod(directory, mode)
        if mtime_ns:
            os.utime(directory, ns=(mtime_ns, mtime_ns))


def _write_at(descriptor: int, part: memoryview, at: int) -> None:
    while part:
        count = os.pwrite(descriptor, part, at)
        at += count
        part = part[count:]


def _clone(source: int, target: int, entry: ManifestEntry) -> None:
    """The same content: shared blocks where the file system can, otherwise a copy with the same holes."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    else:
        return
    at = 0
    for piece in entry.pieces:
        end = at + piece.length
        while piece.key and at < end:
            count = _copy_range(source, target, min(end - at, 1 << 30), at)
            if not count:
                raise AgentFault(
                    "agent", f"{entry.path!r} became shorter in the node's cache. Stage the job's data again"
                )
            at += count
        at = end


def _copy_range(source: int, target: int, length: int, at: int) -> int:
    try:
        return os.copy_file_range(source, target, length, at, at)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    # From one file system to another, where the kernel leaves that to us.
    part = memoryview(os.pread(source, min(length, 1 << 22), at))
    _write_at(target, part, at)
    return len(part)
