"""From a store to a destination, with its owner's rights: fetched, verified, written beside its path, renamed."""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.manifest import ManifestDamaged, ManifestEntry, decode_manifest
from burstd.transfer.content_store.objects import ObjectFetcher
from burstd.transfer.content_store.packs import MAX_PACKED_FILE_BYTES
from burstd.transfer.content_store.sparse import hash_zeros
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import FileFacts, SentFacts, UserWorker, UserWorkerError, printable
from burstd.transfer.privsep.object_workers import object_scheme
from burstd.transfer.trees.admission import admitted_entries
from burstd.transfer.trees.writer import BYTES_AT_ONCE, PendingFile, Place, TreeWriter

_HOLES_HASHED = 1 << 30
"""A file with more than so many bytes of holes has no digest in the report: only its objects were verified."""


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """One file at its destination. ``path`` as text with surrogates.

    ``digest``: SHA-256 in hexadecimal of what was written or found there; empty: not known.
    """

    path: str
    size: int
    digest: str
    skipped: bool
    """It was there already, with this content, mode and time, from an earlier try."""


ReuseObjects = Callable[[str, Mapping[str, int], Mapping[bytes, tuple[ObjectRange, ...]]], None]
"""Takes a prefix, verified objects there (key -> size) and what small contents (SHA-256) lie in them."""
REUSE_BATCH = 10_000


class TreeRestorer:
    """Writes trees to destinations. ``get`` fetches an object by its key.

    ``wait_for_bandwidth`` waits until so many bytes may go. ``reuse`` hears of the objects that were verified on the
    way: they can be input of other jobs.
    """

    def __init__(
        self,
        get: Callable[[str], bytes],
        store_name: str,
        wait_for_bandwidth: Callable[[int], bool] = lambda _size: True,
        reuse: ReuseObjects = lambda _prefix, _objects, _contents: None,
    ) -> None:
        self._reuse = reuse
        self._get = get
        self._store_name = store_name
        self._wait_for_bandwidth = wait_for_bandwidth
        self.content_bytes = 0
        """Of all files so far, also of those that were there from an earlier try; without holes."""

    def restore(
        self,
        worker: UserWorker,
        tree: Tree,
        root: str,
        *,
        job: str,
        name: str = "",
        unique_path: Callable[[str], str] = lambda path: path,
        on_file: Callable[[RestoredFile], None] = lambda _file: None,
        on_bytes: Callable[[int], None] = lambda _size: None,
        on_left_out: Callable[[str], None] = lambda _sentence: None,
        over: OverSent | None = None,
        cancelled: threading.Event,
    ) -> int:
        """Makes the tree in ``root`` (which is made too), or its single file as ``root/name``; returns its bytes.

        admission.py says what is admitted; ``on_left_out`` hears of what is not. ``unique_path`` gives the path under
        which an entry goes (another where the name is taken); ``on_file`` hears of each file, ``on_bytes`` of bytes.
        ``over``: nothing is replaced but what is there as it was sent.

        May be repeated: files that are there with the content, mode and time of the tree's are left, unfinished ones
        of this job removed. Raises UserWorkerError, StagerError (ObjectDamaged), ManifestDamaged, TransferCancelled.
        """
        worker.make_directories(root, [""])
        with ObjectFetcher(self._fetch, tree.prefix, self._store_name) as objects:
            if over is None:
                writer = _DestinationWriter(worker, root, job=job, name=name)
            else:
                writer = _OverSentWriter(worker, root, job=job, over=over)
            writer.objects, writer.cancelled, writer.unique_path = objects, cancelled, unique_path
            writer.on_file, writer.on_bytes = on_file, on_bytes
            writer.reuse = lambda found, contents: self._reuse(tree.prefix, found, contents)
            with closing(stored_entries(self._fetch, tree, self._store_name)) as listed:
                entries = admitted_entries(listed, tree, single_file_name=bool(name), left_out=on_left_out)
                total = writer.write(self._counted(entries), objects)
            writer.offer_for_reuse()
        return total

    def _counted(self, entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
        for entry in entries:
            self.content_bytes += sum(piece.length for piece in entry.pieces if piece.key)
            yield entry

    def _fetch(self, key: str) -> bytes:
        body = self._get(key)
        if not self._wait_for_bandwidth(len(body)):
            raise TransferCancelled("the transfer was cancelled")
        return body


@dataclass(frozen=True, slots=True)
class OverSent:
    """A tree goes back to where another was sent from, and what has changed there since stays."""

    sent: Mapping[bytes, ManifestEntry]
    """By path: what was sent."""
    suffix: str
    """What is added to the name of a file that goes beside the one that stays."""
    on_conflict: Callable[[str, str], None]
    """Hears of the path of one that stays, and of the path beside it."""

    def facts(self, path: str) -> SentFacts | None:
        """Of the file or link that was sent from a path."""
        entry = self.sent.get(os.fsencode(path))
        if entry is None or entry.kind == "d":
            return None
        return entry.kind, len(entry.link_target) if entry.kind == "l" else entry.size, entry.mtime_ns


class _DestinationWriter(TreeWriter):
    """Writes with a user worker, leaves files that are there already, and verifies the digests of whole files."""

    objects: ObjectFetcher
    cancelled: threading.Event
    unique_path: Callable[[str], str]
    on_file: Callable[[RestoredFile], None]
    on_bytes: Callable[[int], None]
    reuse: Callable[[Mapping[str, int], Mapping[bytes, tuple[ObjectRange, ...]]], None]
    UNFINISHED_BYTES = BYTES_AT_ONCE
    _target: UserWorker

    def __init__(self, worker: UserWorker, root: str, *, job: str, name: str) -> None:
        super().__init__(worker, root, job=job, name=name)
        self._digests: dict[PendingFile, _FileDigest] = {}
        self._contents: dict[bytes, tuple[ObjectRange, ...]] = {}
        self._verified: dict[PendingFile, str] = {}

    def offer_for_reuse(self) -> None:
        """Reports verified objects and the small contents in them."""
        found = dict(self.objects.verified)
        if found:
            self.reuse(found, self._contents)
        self._contents = {}

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise TransferCancelled("the transfer was cancelled")

    def _path(self, path: bytes) -> str:
        return self.unique_path(super()._path(path))

    def _prepare(self, paths: Iterable[str]) -> None:
        remove_unfinished_files(self._target, self._root, {os.path.dirname(path) for path in paths}, self._job)  # noqa: PTH120 - of a URL too

    def _incomplete(self, files: list[PendingFile]) -> list[PendingFile]:
        missing = []
        there = self._target.file_facts(self._root, [file.path for file in files])
        for file, facts in zip(files, there, strict=True):
            self._check_cancelled()
            entry = file.entry
            if (
                facts is not None
                and _has_attributes(facts, entry)
                and _has_content(self._target, self._root, file.path, entry.digest)
            ):
                self.on_file(RestoredFile(file.path, entry.size, entry.digest, skipped=True))
            else:
                missing.append(file)
        return missing

    def _write_batch(self, files: list[PendingFile], places: list[Place], body: memoryview) -> None:
        with self._named_errors(files):
            super()._write_batch(files, places, body)

    def _finish(self) -> None:
        with self._named_errors(self._done):
            super()._finish()

    @contextmanager
    def _named_errors(self, files: list[PendingFile]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"{self._root.rstrip('/')}/{files[0].path}"
            text = f"{printable(where)}, or what comes with it, cannot be written: {error.strerror}"
            raise UserWorkerError(where, error.errno or errno.EIO, text) from None

    def _piece_written(self, file: PendingFile, number: int, view: memoryview) -> None:
        self.on_bytes(len(view))
        entry = file.entry
        if len(entry.pieces) == 1 and entry.size <= MAX_PACKED_FILE_BYTES:
            self._contents[hashlib.sha256(view).digest()] = entry.pieces
        if file not in self._digests and _is_hashed(entry):
            self._digests[file] = _FileDigest(entry)
        if file in self._digests:
            self._digests[file].add(number, view)

    def _before_close(self, file: PendingFile) -> None:
        entry = file.entry
        digest = self._digests.pop(file, None)
        if digest is None and _is_hashed(entry):
            digest = _FileDigest(entry)
        if digest is not None and digest.hexdigest(file.fd) != entry.digest:
            raise ManifestDamaged(f"the content of {printable(os.fsdecode(entry.path))} is not what was collected")
        # A file that is one whole object has been verified with it.
        is_object = len(entry.pieces) == 1 and self.objects.verified.get(entry.digest) == entry.size
        self._verified[file] = entry.digest if digest is not None or is_object else ""

    def _file_written(self, file: PendingFile) -> None:
        self.on_file(RestoredFile(file.path, file.entry.size, self._verified.pop(file), skipped=False))
        if len(self._contents) >= REUSE_BATCH:
            self.offer_for_reuse()


class _OverSentWriter(_DestinationWriter):
    """Replaces only what is as it was sent; the rest goes beside. Directories that were sent keep mode and time."""

    _target: _BesideTarget  # type: ignore[assignment]

    def __init__(self, worker: UserWorker, root: str, *, job: str, over: OverSent) -> None:
        super().__init__(worker, root, job=job, name="")
        self._target = _BesideTarget(worker, over)
        self._over = over
        self._directories_beside: dict[str, str] = {}
        """Where directories went whose names had become those of files."""

    def _path(self, path: bytes) -> str:
        return self.unique_path(self._directory_path(os.fsdecode(path)))

    def _directory_path(self, path: str) -> str:
        above, slash, name = path.rpartition("/")
        if not self._directories_beside or not slash:
            return path
        return self._directories_beside.get(above, self._directory_path(above)) + slash + name

    def _make_group(self, group: list[ManifestEntry]) -> None:
        if not group or group[0].kind != "d":
            super()._make_group(group)
            return
        for entry in group:
            if entry.path:
                self._make_directory(entry)

    def _make_directory(self, entry: ManifestEntry) -> None:
        name = os.fsdecode(entry.path)
        wanted = path = self._directory_path(name)
        number = 1
        while (facts := self._target.worker.file_facts(self._root, [path])[0]) is not None and facts.kind != "d":
            path = f"{wanted}{self._over.suffix}{f'.{number}' if number > 1 else ''}"
            number += 1
        if path != wanted:
            self._over.on_conflict(wanted, path)
        if path != name:
            self._directories_beside[name] = path
        self._target.worker.make_directories(self._root, [path])
        sent = self._over.sent.get(entry.path)
        if sent is None or sent.kind != "d" or path != name:
            marshal.dump((path, entry.mode, entry.mtime_ns), self._directories)

    def _incomplete(self, files: list[PendingFile]) -> list[PendingFile]:
        missing = super()._incomplete(files)
        return [file for file in missing if not self._is_beside(file)]

    def _is_beside(self, file: PendingFile) -> bool:
        """Whether an earlier try has put it beside what is there."""
        number = 1
        while True:
            path = f"{file.path}{self._over.suffix}{f'.{number}' if number > 1 else ''}"
            facts = self._target.worker.file_facts(self._root, [path])[0]
            if facts is None:
                return False
            if _has_attributes(facts, file.entry) and _has_content(
                self._target.worker, self._root, path, file.entry.digest
            ):
                self._over.on_conflict(file.path, path)
                self.on_file(RestoredFile(path, file.entry.size, file.entry.digest, skipped=True))
                return True
            number += 1

    def _file_written(self, file: PendingFile) -> None:
        file.path = self._target.went_to.pop(file.path, file.path)
        super()._file_written(file)


class _BesideTarget:
    """A user worker that puts a file or link beside what is there, unless that is as it was sent."""

    def __init__(self, worker: UserWorker, over: OverSent) -> None:
        self.worker = worker
        self._over = over
        self.went_to: dict[str, str] = {}
        """Of files that went beside, their path and where they went."""
        self.make_directories = worker.make_directories
        self.create_files = worker.create_files
        self.remove_files = worker.remove_files
        self.remove_unfinished = worker.remove_unfinished
        self.finalize_directories = worker.finalize_directories
        self.file_facts = worker.file_facts
        self.open_files = worker.open_files

    def commit_files(self, root: str, items: Sequence[tuple[str, str, int, int]]) -> None:
        """Gives new files their paths, or paths beside them."""
        rows = [(new, path, mode, mtime_ns, self._sent_facts(root, path)) for new, path, mode, mtime_ns in items]
        went = self.worker.commit_beside(root, rows, self._over.suffix)
        self._note([path for _, path, _, _ in items], went)

    def _sent_facts(self, root: str, path: str) -> SentFacts | None:
        """None: what is there has another content, though its size and time may be those of what was sent."""
        entry = self._over.sent.get(os.fsencode(path))
        if entry is not None and entry.digest and not _has_content(self.worker, root, path, entry.digest):
            return None
        return self._over.facts(path)

    def symlink(self, root: str, items: Sequence[tuple[str, str, int | None]], *, job: str) -> None:
        """Makes symbolic links."""
        rows = [(target, path, mtime_ns or 0, self._over.facts(path)) for target, path, mtime_ns in items]
        self._note([path for _, path, _ in items], self.worker.symlink_beside(root, rows, self._over.suffix, job=job))

    def hardlink(self, root: str, items: Sequence[tuple[str, str]], *, job: str) -> None:
        """No node of burstd's sends any. Raises ManifestDamaged."""
        raise ManifestDamaged(f"a node sends a second name of a file in {printable(root)} for job {job}: {len(items)}")

    def _note(self, paths: Sequence[str], went: Sequence[str]) -> None:
        for path, where in zip(paths, went, strict=True):
            if where != path:
                self.went_to[path] = where
                self._over.on_conflict(path, where)


def _is_hashed(entry: ManifestEntry) -> bool:
    """Whether the digest of the whole is checked: there is one, no object's digest says it, and it is not too long."""
    holes = sum(piece.length for piece in entry.pieces if not piece.key)
    is_one_object = len(entry.pieces) == 1 and entry.pieces[0].key == entry.digest
    return bool(entry.digest) and not is_one_object and holes <= _HOLES_HASHED


class _FileDigest:
    """SHA-256 of a file while its pieces are written; where they come in another order, it is read again."""

    def __init__(self, entry: ManifestEntry) -> None:
        self._entry = entry
        self._digest = hashlib.sha256()
        self._next = 0
        self._in_order = True

    def add(self, number: int, view: memoryview) -> None:
        """Adds a piece by its number."""
        self._add_holes()
        self._in_order = self._in_order and number == self._next
        if self._in_order:
            self._digest.update(view)
            self._next += 1

    def hexdigest(self, fd: int) -> str:
        """Of the whole file, which is open as ``fd``."""
        self._add_holes()
        if self._in_order:
            return self._digest.hexdigest()
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _add_holes(self) -> None:
        pieces = self._entry.pieces
        while self._next < len(pieces) and not pieces[self._next].key:
            hash_zeros(self._digest, pieces[self._next].length, 0)
            self._next += 1


def remove_unfinished_files(worker: UserWorker, root: str, folders: Iterable[str], job: str) -> None:
    """Removes what a try that was killed left unfinished in these directories. Raises UserWorkerError."""
    for folder in sorted(folders):
        try:
            worker.remove_unfinished(root, [folder], job=job)
        except UserWorkerError as error:
            # A directory in which one may write, but whose names one may not see, or that is not there.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT):
                raise


def _has_attributes(facts: FileFacts, entry: ManifestEntry) -> bool:
    mode = facts.mode & 0o7777
    return (facts.kind, facts.size, facts.mtime_ns, mode) == ("f", entry.size, entry.mtime_ns, entry.mode)


def _has_content(worker: UserWorker, root: str, path: str, digest: str) -> bool:
    """Whether a file that looks like ours has our content: times and sizes are easily those of another result."""
    if not digest or object_scheme(root):
        # To read an object back costs what it costs to write it.
        return False
    try:
        (fd,) = worker.open_files(root, [path])
        with os.fdopen(fd, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except (UserWorkerError, OSError):
        # What cannot be read is written anew.
        return False


def stored_entries(get: Callable[[str], bytes], tree: Tree, store_name: str) -> Generator[ManifestEntry]:
    """The entries of a tree in a store."""
    with ObjectFetcher(get, tree.prefix, store_name) as objects:
        yield from decode_manifest(bytes(view) for view in objects.read_pieces(tree.manifest))
