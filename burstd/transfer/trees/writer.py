"""Writes a tree from its manifest: an object is fetched once for thousands of entries, and written into all of them."""

from __future__ import annotations

import hashlib
import marshal
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, Any, Protocol

from burstd.domain.errors import BurstdError
from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 256 << 20
"""Files are written together up to this size: for objects, so much waits on this machine's disk to be put."""
WINDOW_ENTRIES = 16_384
_WINDOW_PIECES = 65_536
_WINDOW_NAME_BYTES = 8 << 20
"""Of paths: whoever writes a manifest may give each entry one of 64 KiB."""
_WRITE = 1 << 20


class WriteTarget(Protocol):
    """What makes files in a root directory: UserWorker, or this process itself. Its methods are UserWorker's."""

    def make_directories(self, root: str, items: Sequence[str]) -> object: ...  # noqa: D102
    def symlink(self, root: str, items: Sequence[tuple[str, str, int | None]], *, job: str) -> None: ...  # noqa: D102
    def hardlink(self, root: str, items: Sequence[tuple[str, str]], *, job: str) -> None: ...  # noqa: D102
    def create_files(self, root: str, items: Sequence[str], *, job: str) -> list[tuple[str, int]]: ...  # noqa: D102
    def commit_files(self, root: str, items: Sequence[tuple[str, str, int, int]]) -> None: ...  # noqa: D102
    def remove_files(self, root: str, items: Sequence[str]) -> None: ...  # noqa: D102
    def finalize_directories(self, root: str, items: Sequence[tuple[str, int, int]]) -> None: ...  # noqa: D102


class ObjectSource(Protocol):
    """Where verified objects come from. ``number`` is the window's."""

    def request(self, number: int, keys: Sequence[str]) -> None:
        """Announces what a window needs."""
        ...

    def arrivals(self, number: int, keys: Sequence[str]) -> Iterator[tuple[str, memoryview]]:
        """Yields each object of a window once, in any order; a view is good until the next."""
        ...


class PendingFile:
    """A file that is written. ``remaining``: pieces that are still to come; ``fd``: -1 while it is not open."""

    __slots__ = ("entry", "fd", "new", "path", "remaining")

    def __init__(self, entry: ManifestEntry, path: str) -> None:
        self.entry = entry
        self.path = path
        self.new = ""
        self.fd = -1
        self.remaining = 0


Place = tuple[PendingFile, int, int]
"""Where a part of an object goes: the file, the number of its piece, the offset in the file."""


class _Window:
    """Some thousand entries, whose objects are each fetched once."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.places: dict[str, list[Place]] = {}
        self.complete: list[PendingFile] = []
        """Files that need no object."""
        self.hardlinks: list[tuple[str, str]] = []


class TreeWriter:
    """Writes one tree into ``root``, or its only file as ``root/name``; use it once.

    Subclasses say which files are left as they are, and hear of what is written.
    """

    MAKES_ROOT = False
    """The tree's root is a directory to make like others."""
    COMMITS_AT_ONCE = FILES_AT_ONCE
    UNFINISHED_BYTES = float("inf")
    """Of files of several objects, which may all be unfinished at once; one larger file is alone."""

    def __init__(
        self, target: WriteTarget, root: str, *, job: str = "", name: str = "", scratch: str | None = None
    ) -> None:
        """``scratch``: directory for a temporary file with the list of directories; there may be millions."""
        self._target = target
        self._root = root
        self._job = job
        self._name = name
        self._directories: IO[bytes] = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - closed by write
        self._open: dict[PendingFile, None] = {}
        self._done: list[PendingFile] = []
        self._size = 0

    def write(self, entries: Iterable[ManifestEntry], objects: ObjectSource) -> int:
        """Writes all entries; returns the bytes of the files. Raises ManifestDamaged and the target's errors."""
        before: _Window | None = None
        try:
            for window in self._windows(entries):
                objects.request(window.number, list(window.places))
                if before is not None:
                    self._write_window(before, objects)
                before = window
            if before is not None:
                self._write_window(before, objects)
            inner = inner_directories_first(self._directories)
            while some := list(islice(inner, FILES_AT_ONCE)):
                self._target.finalize_directories(self._root, some)
        except BaseException:
            # Where a user worker itself is gone, the next try removes them.
            with suppress(BurstdError):
                self._target.remove_files(self._root, [file.new for file in self._open])
            raise
        finally:
            self._directories.close()
            for file in self._open:
                if file.fd >= 0:
                    os.close(file.fd)
        return self._size

    def _check_cancelled(self) -> None:
        """Raises an error where nobody wants the tree any more."""

    def _mode(self, entry: ManifestEntry) -> int:
        return entry.mode

    def _path(self, path: bytes) -> str:
        return self._name or os.fsdecode(path)

    def _prepare(self, paths: Iterable[str]) -> None:
        """Called before files and links are made at these paths."""

    def _incomplete(self, files: list[PendingFile]) -> list[PendingFile]:
        """Those that are to be written."""
        return files

    def _is_there(self, file: PendingFile, piece: ObjectRange, at: int) -> bool:  # noqa: ARG002
        """Whether an earlier try has written this piece."""
        return False

    def _piece_written(self, file: PendingFile, number: int, view: memoryview) -> None:
        """Called for each piece."""

    def _before_close(self, file: PendingFile) -> None:
        """Called when all pieces of a file are there. Raises ManifestDamaged."""

    def _file_written(self, file: PendingFile) -> None:
        """Called when a file has its path, mode and time."""

    def _windows(self, entries: Iterable[ManifestEntry]) -> Iterator[_Window]:
        """Makes directories and symbolic links, and yields what the rest needs."""
        number = count = pieces = names = unfinished = 0
        files: list[ManifestEntry] = []
        group: list[ManifestEntry] = []
        for entry in entries:
            self._check_cancelled()
            if entry.kind == "f":
                files.append(entry)
                pieces += max(1, len(entry.pieces))
                names += len(entry.path) + len(entry.hardlink_to)
                unfinished += entry.size if len(entry.pieces) > 1 else 0
                # So many files of several objects may be open at once.
                count += WINDOW_ENTRIES // FILES_AT_ONCE if len(entry.pieces) > 1 else 1
            else:
                # Small groups of one kind keep the order in which entries depend on each other.
                if group and (group[0].kind != entry.kind or len(group) == FILES_AT_ONCE):
                    self._make_group(group)
                    group = []
                group.append(entry)
            full = count >= WINDOW_ENTRIES or pieces >= _WINDOW_PIECES or names >= _WINDOW_NAME_BYTES
            if full or unfinished >= self.UNFINISHED_BYTES:
                self._make_group(group)
                yield self._plan(number, files)
                number += 1
                count = pieces = names = unfinished = 0
                files, group = [], []
        self._make_group(group)
        yield self._plan(number, files)

    def _make_group(self, group: list[ManifestEntry]) -> None:
        """Makes directories, or symbolic links."""
        group = [entry for entry in group if entry.path or self.MAKES_ROOT]
        paths = [self._path(entry.path) for entry in group]
        if group and group[0].kind == "d":
            # Their modes and times come last.
            for entry, path in zip(group, paths, strict=True):
                marshal.dump((path, self._mode(entry), entry.mtime_ns), self._directories)
            self._target.make_directories(self._root, paths)
        elif group:
            self._prepare(paths)
            links = [(os.fsdecode(e.link_target), path, e.mtime_ns) for e, path in zip(group, paths, strict=True)]
            self._target.symlink(self._root, links, job=self._job)

    def _plan(self, number: int, entries: list[ManifestEntry]) -> _Window:
        window = _Window(number)
        files = [PendingFile(e, self._path(e.path)) for e in entries]
        self._prepare(file.path for file in files)
        window.hardlinks = [(self._path(f.entry.hardlink_to), f.path) for f in files if f.entry.hardlink_to]
        files = [file for file in files if not file.entry.hardlink_to]
        self._size += sum(file.entry.size for file in files)
        for file in self._incomplete(files):
            at = 0
            for index, piece in enumerate(file.entry.pieces):
                if piece.key and not self._is_there(file, piece, at):
                    window.places.setdefault(piece.key, []).append((file, index, at))
                    file.remaining += 1
                at += piece.length
            if not file.remaining:
                window.complete.append(file)
        return window

    def _write_window(self, window: _Window, objects: ObjectSource) -> None:
        for start in range(0, len(window.complete), FILES_AT_ONCE):
            self._check_cancelled()
            self._write_batch(window.complete[start : start + FILES_AT_ONCE], [], memoryview(b""))
        for key, body in objects.arrivals(window.number, list(window.places)):
            self._check_cancelled()
            for places in _batches(window.places.pop(key)):
                self._write_batch(list(dict.fromkeys(file for file, _, _ in places)), places, body)
        self._finish()
        for start in range(0, len(window.hardlinks), FILES_AT_ONCE):
            self._check_cancelled()
            self._target.hardlink(self._root, window.hardlinks[start : start + FILES_AT_ONCE], job=self._job)

    def _write_batch(self, files: list[PendingFile], places: list[Place], body: memoryview) -> None:
        """Writes parts of one object into some files."""
        self._create([file for file in files if file.fd < 0])
        for file, number, at in places:
            piece = file.entry.pieces[number]
            if piece.offset + piece.length > len(body):
                raise ManifestDamaged(f"a manifest wants more of an object than there is, for {file.entry.path!r}")
            view = body[piece.offset : piece.offset + piece.length]
            _write_at(file.fd, view, at)
            file.remaining -= 1
            self._piece_written(file, number, view)
        self._done += [file for file in files if not file.remaining]
        if len(self._done) >= self.COMMITS_AT_ONCE or sum(file.entry.size for file in self._done) >= BYTES_AT_ONCE // 2:
            self._finish()

    def _finish(self) -> None:
        """Gives files that lack nothing their paths, several at once: a store takes them side by side."""
        done, self._done = self._done, []
        for file in done:
            pieces = file.entry.pieces
            if len(pieces) != 1 or not pieces[0].key:
                # Holes stay holes, at the end too.
                os.ftruncate(file.fd, file.entry.size)
            self._before_close(file)
            fd, file.fd = file.fd, -1
            os.close(fd)
        if done:
            self._target.commit_files(
                self._root, [(f.new, f.path, self._mode(f.entry), f.entry.mtime_ns) for f in done]
            )
        for file in done:
            del self._open[file]
            self._file_written(file)

    def _create(self, files: list[PendingFile]) -> None:
        if files:
            created = self._target.create_files(self._root, [file.path for file in files], job=self._job)
            for file, (new, fd) in zip(files, created, strict=True):
                file.new, file.fd = new, fd
                self._open[file] = None


def _batches(places: list[Place]) -> Iterator[list[Place]]:
    batch: list[Place] = []
    size = 0
    for place in places:
        length = place[0].entry.pieces[place[1]].length
        if batch and (len(batch) == FILES_AT_ONCE or size + length > BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += length
    yield batch


def inner_directories_first(rows: IO[bytes]) -> Iterator[tuple[str, Any, Any]]:
    """Directories in the order of a walk, each after all that are in it: (path, mode, time in nanoseconds)."""
    rows.seek(0)
    above: list[tuple[str, int, int]] = []
    while True:
        try:
            row: tuple[str, int, int] = marshal.load(rows)  # noqa: S302 - our own
        except EOFError:
            break
        while above and not row[0].startswith(f"{above[-1][0]}/"):
            yield above.pop()
        above.append(row)
    yield from reversed(above)


def has_content(fd: int, piece: ObjectRange, at: int) -> bool:
    """Whether a file has this piece, which is a whole object."""
    body = b"" if piece.offset else os.pread(fd, piece.length, at)
    return hashlib.sha256(body).hexdigest() == piece.key


def _write_at(fd: int, view: memoryview, at: int) -> None:
    while view:
        written = os.pwrite(fd, view[:_WRITE], at)
        view, at = view[written:], at + written
