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
from burstd.transfer.agent.window import Objects, Target, Unfinished, Window
from burstd.transfer.content_store.manifest import Entry, ManifestDamaged, decode

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = 200


class Directories:
    """Open directories below one, by path: each is opened from the one above, never through a link."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: OrderedDict[bytes, int] = OrderedDict()

    def at(self, path: bytes) -> int:
        """A descriptor that is good until the next call. Raises OSError."""
        if not path:
            return self._root
        known = self._open.get(path)
        if known is not None:
            self._open.move_to_end(path)
            return known
        above, _, name = path.rpartition(b"/")
        descriptor = os.open(name, _DIRECTORY, dir_fd=self._from(above))
        self._open[path] = descriptor
        while len(self._open) > _OPEN:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _from(self, path: bytes) -> int:
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
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409
_NO_CLONE = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS, errno.EPERM}


class Filler:
    """Makes one tree under ``name`` in the directory ``base``. Raises OSError, ManifestDamaged, AgentFault."""

    def __init__(self, base: int, name: str, *, single: bool, read_only: bool, again: bool) -> None:
        """``again``: an earlier try may have left some of it there."""
        self._base = base
        self._name = os.fsencode(name)
        self._single = single
        self._again = again
        # Nobody writes what several jobs read; its user reads all of it, as he could at its source.
        self._drop, self._add_file, self._add_dir = (0o222, 0o400, 0o500) if read_only else (0, 0, 0)
        self._rows: IO[bytes] = tempfile.TemporaryFile(dir=f"/proc/self/fd/{base}")  # noqa: SIM115 - closed by run
        self._seen = 0
        self._root = base
        if not single:
            self._mkdir(self._name, base)
            self._root = os.open(name, _DIRECTORY, dir_fd=base)
        self._directories = Directories(self._root)

    def run(self, manifest: Iterable[bytes], objects: Objects) -> None:
        """Makes all of it from objects."""
        with self._closing():
            before: tuple[Window, list[str]] | None = None
            for window in self._windows(decode(manifest)):
                done = objects.applied(window.number)
                keys = [key for key in window.targets if key not in done]
                for key in done & window.targets.keys():
                    self._count_down(window.targets[key])
                objects.ask(window, keys)
                if before is not None:
                    self._write(*before, objects)
                before = window, keys
            if before is not None:
                self._write(*before, objects)
            self._finish()

    def copy(self, manifest: Iterable[bytes], tree: int) -> None:
        """Makes all of it from a tree that is on this node already: ``tree`` is its directory, or its only file."""
        origin = Directories(tree)
        with self._closing():
            for window in self._windows(decode(manifest), origin if not self._single else tree):
                self._link(window)
            self._finish()
            origin.close()

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._directories.close()
            self._rows.close()
            if self._root != self._base:
                os.close(self._root)

    def _windows(self, entries: Iterator[Entry], origin: Directories | int | None = None) -> Iterator[Window]:
        number = entries_here = pieces = 0
        window = Window(0)
        for entry in entries:
            self._seen += 1
            self._begin(entry, window, origin)
            entries_here += 1
            pieces += len(entry.pieces)
            if entries_here >= WINDOW_ENTRIES or pieces >= _WINDOW_PIECES:
                yield window
                number += 1
                entries_here = pieces = 0
                window = Window(number)
        yield window
        if self._single and self._seen != 1:
            raise ManifestDamaged(f"the tree of a single file has {self._seen} entries")

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """The directory and the name of an entry."""
        if self._single:
            return self._base, self._name
        above, _, name = path.rpartition(b"/")
        try:
            return self._directories.at(above), name
        except FileNotFoundError:
            raise ManifestDamaged(f"a manifest has an entry without its directory: {path!r}") from None

    def _begin(self, entry: Entry, window: Window, origin: Directories | int | None) -> None:
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
                directory, name = self._place(entry.path)
                self._mkdir(name, directory)
            marshal.dump((entry.path, entry.mode, entry.mtime_ns), self._rows)
        elif entry.kind == "l":
            directory, name = self._place(entry.path)
            self._once(lambda: os.symlink(entry.target, name, dir_fd=directory), name, directory)
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=directory, follow_symlinks=False)
        else:
            self._begin_file(entry, window, origin)

    def _begin_file(self, entry: Entry, window: Window, origin: Directories | int | None) -> None:
        if entry.hard:
            window.hard.append(entry)
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
        unfinished = Unfinished(entry, len(keys))
        if not keys:
            os.close(self._create(entry, 0o600))
            self._complete(entry)
            return
        at = 0
        for piece in pieces:
            if piece.key:
                window.targets.setdefault(piece.key, []).append((unfinished, entry, at, piece.offset, piece.length))
            at += piece.length

    def _write(self, window: Window, keys: list[str], objects: Objects) -> None:
        objects.give(window, keys, lambda key, body: self._apply(window.targets[key], body))
        self._link(window)

    def _link(self, window: Window) -> None:
        for entry in window.hard:
            directory, name = self._place(entry.path)
            earlier, _, old = entry.hard.rpartition(b"/")
            if not old or old in {b".", b".."} or {b"", b".", b".."} & set(earlier.split(b"/") if earlier else ()):
                raise ManifestDamaged(f"a manifest has an entry that leads out of its tree: {entry.hard!r}")
            # Both directories must stay open for the one call.
            held = os.dup(directory)
            try:
                source = self._directories.at(earlier)
                self._once(
                    lambda: os.link(
                        old, name, src_dir_fd=source, dst_dir_fd=held, follow_symlinks=False  # noqa: B023 - called at once
                    ),
                    name, held,
                )  # fmt: skip
            finally:
                os.close(held)

    def _apply(self, targets: list[Target], body: memoryview) -> int:
        """Writes what one object holds; returns how many bytes of files that was."""
        written = 0
        size = len(body)
        for unfinished, entry, at, offset, length in targets:
            if offset + length > size:
                raise ManifestDamaged(f"a manifest wants more of an object than there is, for {entry.path!r}")
            part = body[offset : offset + length]
            if unfinished is None:
                descriptor = self._create(entry, entry.mode & ~self._drop | self._add_file)
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
        self._count_down(targets)
        return written

    def _count_down(self, targets: list[Target]) -> None:
        for unfinished in {id(t[0]): t[0] for t in targets if t[0] is not None}.values():
            unfinished.left -= 1
            if not unfinished.left:
                self._complete(unfinished.entry)

    def _create(self, entry: Entry, mode: int) -> int:
        directory, name = self._place(entry.path)
        return self._once(lambda: os.open(name, _NEW, mode, dir_fd=directory), name, directory)

    def _copy_file(self, entry: Entry, origin: Directories | int) -> None:
        if isinstance(origin, int):
            source = os.dup(origin)
        else:
            above, _, name = entry.path.rpartition(b"/")
            source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=origin.at(above))
        try:
            target = self._create(entry, 0o600)
            try:
                _clone(source, target, entry)
            finally:
                os.close(target)
        finally:
            os.close(source)
        self._complete(entry)

    def _reopen(self, entry: Entry) -> int:
        directory, name = self._place(entry.path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o600, dir_fd=directory)
        except PermissionError:
            if not self._again:
                raise
        # An earlier try came as far as its mode.
        readable = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            os.fchmod(readable, 0o600)
        finally:
            os.close(readable)
        return os.open(name, flags, 0o600, dir_fd=directory)

    def _complete(self, entry: Entry) -> None:
        descriptor = self._reopen(entry)
        try:
            os.ftruncate(descriptor, entry.size)
            os.fchmod(descriptor, entry.mode & ~self._drop | self._add_file)
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(descriptor)

    def _mkdir(self, name: bytes, directory: int) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=directory)
        except FileExistsError:
            if not self._again:
                raise ManifestDamaged(f"a manifest names {name!r} twice") from None
            # It may have got its mode already.
            descriptor = os.open(name, _DIRECTORY, dir_fd=directory)
            os.fchmod(descriptor, 0o700)
            os.close(descriptor)

    def _once(self, make: Callable[[], _R], name: bytes, directory: int) -> _R:
        try:
            return make()
        except FileExistsError:
            if not self._again:
                raise ManifestDamaged(f"a manifest names {name!r} twice") from None
        os.unlink(name, dir_fd=directory)
        return make()

    def _finish(self) -> None:
        """Times and modes of directories: now nothing is made in them any more."""
        self._rows.seek(0)
        closed: list[tuple[bytes, int, int]] = []
        while True:
            try:
                path, mode, mtime_ns = marshal.load(self._rows)  # noqa: S302 - our own, written above
            except EOFError:
                break
            mode = mode & ~self._drop | self._add_dir
            if mode & 0o100:
                self._seal(path, mode, mtime_ns)
            else:
                closed.append((path, mode, mtime_ns))
        # What nobody can pass any more: what is in it comes first.
        for row in reversed(closed):
            self._seal(*row)

    def _seal(self, path: bytes, mode: int, mtime_ns: int) -> None:
        directory = self._directories.at(path)
        os.fchmod(directory, mode)
        if mtime_ns:
            os.utime(directory, ns=(mtime_ns, mtime_ns))


def _write_at(descriptor: int, part: memoryview, at: int) -> None:
    while part:
        count = os.pwrite(descriptor, part, at)
        at += count
        part = part[count:]


def _clone(source: int, target: int, entry: Entry) -> None:
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
                    "agent", f"{entry.path!r} became shorter in the node's cache. Place the job's data again"
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
