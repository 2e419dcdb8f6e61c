"""From a store to a destination, with its owner's rights: fetched, verified, written beside its path, renamed."""

from __future__ import annotations

import errno
import hashlib
import marshal
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO

from burstd.domain.staging import ObjectRange, Tree
from burstd.transfer.content_store.manifest import MAX_PIECES, ManifestDamaged, ManifestEntry, decode_manifest
from burstd.transfer.content_store.objects import ObjectFetcher
from burstd.transfer.content_store.packs import MAX_PACKED_FILE_BYTES
from burstd.transfer.content_store.upload_pool import TransferCancelled
from burstd.transfer.privsep.client import FileFacts, UserWorker, UserWorkerError, printable
from burstd.transfer.privsep.object_workers import object_scheme
from burstd.transfer.trees.admission import admitted_entries

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 256 << 20
"""Files are written together up to this size: for objects, so much waits on this machine's disk to be put."""
_WRITE = 1 << 20
_HOLES_HASHED = 1 << 30
"""A file with more than so many bytes of holes has no digest in the report: only its objects were verified."""
_ZEROS = bytes(1 << 20)


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
    """Writes trees to destinations. ``get`` fetches an object by its key; ``pay`` waits until so many bytes may go.

    ``adopt`` hears of the objects that were verified on the way: they can be input of other jobs.
    """

    def __init__(
        self,
        get: Callable[[str], bytes],
        store_name: str,
        wait_for_bandwidth: Callable[[int], bool] = lambda _size: True,
        reuse: ReuseObjects = lambda _prefix, _objects, _contents: None,
    ) -> None:
        self._reuse = reuse
        self._verified_contents: dict[bytes, tuple[ObjectRange, ...]] = {}
        self._get = get
        self._store_name = store_name
        self._wait_for_bandwidth = wait_for_bandwidth

    def restore(
        self,
        worker: UserWorker,
        tree: Tree,
        root: str,
        *,
        job: str,
        name: str = "",
        unique_path: Callable[[str], str] = lambda path: path,
        on_file: Callable[[RestoredFile], None] = lambda _brought: None,
        on_bytes: Callable[[int], None] = lambda _size: None,
        on_left_out: Callable[[str], None] = lambda _sentence: None,
        cancelled: threading.Event,
    ) -> int:
        """Makes the tree in ``root`` (which is made too), or its single file as ``root/name``; returns its bytes.

        admission.py says what is admitted; ``left_out`` hears of what is not. ``taken`` gives the path under
        which an entry goes (another where the name is taken); ``brought`` hears of each file, ``moved`` of bytes.

        May be repeated: files that are there with the content, mode and time of the tree's are left, unfinished ones
        of this job removed. Raises UserWorkerError, StagerError (ObjectDamaged), ManifestDamaged, TransferCancelled.
        """
        total = 0
        worker.make_directories(root, [""])
        # Millions of directories have a long list: it waits on the disk.
        with (
            ObjectFetcher(self._fetch, tree.prefix, self._store_name) as objects,
            tempfile.TemporaryFile() as directories,
        ):
            batch: list[ManifestEntry] = []
            batch_bytes = pieces = 0
            listed = decode_manifest(bytes(view) for _, view in objects.read_pieces(tree.manifest))
            for entry in admitted_entries(listed, tree, single_file_name=bool(name), left_out=on_left_out):
                if cancelled.is_set():
                    raise TransferCancelled("the transfer was cancelled")
                # Small groups of one kind keep the order in which entries depend on each other.
                full = len(batch) >= FILES_AT_ONCE or batch_bytes + entry.size > BYTES_AT_ONCE
                full = full or pieces + len(entry.pieces) > MAX_PIECES
                if batch and (full or _entry_kind(batch[0]) != _entry_kind(entry)):
                    total += self._restore_batch(
                        worker, objects, batch, root, job, name, unique_path, on_file, on_bytes
                    )
                    batch, batch_bytes, pieces = [], 0, 0
                    if len(self._verified_contents) >= REUSE_BATCH:
                        self._offer_for_reuse(objects, tree)
                if entry.kind == "d" and entry.path:
                    marshal.dump((unique_path(os.fsdecode(entry.path)), entry.mode, entry.mtime_ns), directories)
                if entry.path:
                    batch.append(entry)
                    batch_bytes += entry.size
                    pieces += len(entry.pieces)
            total += self._restore_batch(worker, objects, batch, root, job, name, unique_path, on_file, on_bytes)
            self._offer_for_reuse(objects, tree)
            inner = _inner_first(directories)
            while some := list(islice(inner, FILES_AT_ONCE)):
                worker.finalize_directories(root, some)
        return total

    def _offer_for_reuse(self, objects: ObjectFetcher, tree: Tree) -> None:
        listed = {piece.key for piece in tree.manifest}
        found = {key: size for key, size in dict(objects.verified).items() if key not in listed}
        if found:
            self._reuse(tree.prefix, found, self._verified_contents)
        self._verified_contents = {}

    def _fetch(self, key: str) -> bytes:
        body = self._get(key)
        if not self._wait_for_bandwidth(len(body)):
            raise TransferCancelled("the transfer was cancelled")
        return body

    def _restore_batch(
        self,
        worker: UserWorker,
        objects: ObjectFetcher,
        batch: list[ManifestEntry],
        root: str,
        job: str,
        name: str,
        unique_path: Callable[[str], str],
        on_file: Callable[[RestoredFile], None],
        on_bytes: Callable[[int], None],
    ) -> int:
        if not batch:
            return 0
        paths = [unique_path(name or os.fsdecode(e.path)) for e in batch]
        if _entry_kind(batch[0]) != "d":
            remove_unfinished_files(worker, root, {os.path.dirname(path) for path in paths}, job)  # noqa: PTH120 - of a URL too
        match _entry_kind(batch[0]):
            case "d":
                worker.make_directories(root, paths)
            case "l":
                links = [(os.fsdecode(e.link_target), p, e.mtime_ns) for e, p in zip(batch, paths, strict=True)]
                worker.symlink(root, links, job=job)
            case "h":
                pairs = [(unique_path(os.fsdecode(e.hardlink_to)), p) for e, p in zip(batch, paths, strict=True)]
                worker.hardlink(root, pairs, job=job)
            case _:
                self._restore_files(worker, objects, batch, paths, root, job, on_file, on_bytes)
        return sum(e.size for e in batch if e.kind == "f" and not e.hardlink_to)

    def _restore_files(
        self,
        worker: UserWorker,
        objects: ObjectFetcher,
        batch: list[ManifestEntry],
        paths: list[str],
        root: str,
        job: str,
        on_file: Callable[[RestoredFile], None],
        on_bytes: Callable[[int], None],
    ) -> None:
        existing = worker.file_facts(root, paths)
        missing: list[tuple[ManifestEntry, str]] = []
        for entry, path, facts in zip(batch, paths, existing, strict=True):
            if facts is not None and _has_attributes(facts, entry) and _has_content(worker, root, path, entry.digest):
                on_file(RestoredFile(path, entry.size, entry.digest, skipped=True))
            else:
                missing.append((entry, path))
        if not missing:
            return
        created = worker.create_files(root, [path for _, path in missing], job=job)
        try:
            try:
                digests = self._write(objects, [entry for entry, _ in missing], [fd for _, fd in created], on_bytes)
            except OSError as error:
                where = f"{root.rstrip('/')}/{missing[0][1]}"
                text = f"{printable(where)}, or what comes with it, cannot be written: {error.strerror}"
                raise UserWorkerError(where, error.errno or errno.EIO, text) from None
            finally:
                for _, fd in created:
                    os.close(fd)
            finished = [(new, path, e.mode, e.mtime_ns) for (new, _), (e, path) in zip(created, missing, strict=True)]
            worker.commit_files(root, finished)
        except BaseException:
            # Where the worker itself is gone, the next try sweeps.
            with suppress(UserWorkerError):
                worker.remove_files(root, [new for new, _ in created])
            raise
        for (entry, path), digest in zip(missing, digests, strict=True):
            on_file(RestoredFile(path, entry.size, digest, skipped=False))

    def _write(
        self, objects: ObjectFetcher, entries: list[ManifestEntry], fds: list[int], on_bytes: Callable[[int], None]
    ) -> list[str]:
        """Returns the files' digests, where they were verified. Raises ManifestDamaged where one is another."""
        stream = objects.read_pieces(piece for entry in entries for piece in entry.pieces)
        digests: list[str] = []
        for entry, fd in zip(entries, fds, strict=True):
            at = 0
            digest = _new_digest(entry)
            for _ in entry.pieces:
                piece, view = next(stream)
                if piece.key:
                    _write_at(fd, view, at)
                    on_bytes(len(view))
                    if len(entry.pieces) == 1 and entry.size <= MAX_PACKED_FILE_BYTES:
                        self._verified_contents[hashlib.sha256(view).digest()] = entry.pieces
                if digest is not None:
                    _update_digest(digest, piece, view)
                at += piece.length
            # Holes stay holes, at the end too.
            os.ftruncate(fd, entry.size)
            if digest is None:
                digests.append(entry.digest if _is_verified_object(entry, objects) else "")
            elif digest.hexdigest() == entry.digest:
                digests.append(entry.digest)
            else:
                raise ManifestDamaged(f"the content of {printable(os.fsdecode(entry.path))} is not what was collected")
        return digests


def remove_unfinished_files(worker: UserWorker, root: str, folders: Iterable[str], job: str) -> None:
    """Removes what a try that was killed left unfinished in these directories. Raises UserWorkerError."""
    for folder in sorted(folders):
        try:
            worker.remove_unfinished(root, [folder], job=job)
        except UserWorkerError as error:
            # A directory in which one may write, but whose names one may not see, or that is not there.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT):
                raise


def _inner_first(rows: IO[bytes]) -> Iterator[tuple[str, int, int]]:
    """Directories in the order of a walk, each after all that are in it."""
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


def _new_digest(entry: ManifestEntry) -> hashlib._Hash | None:
    """What checks the digest of the whole. None: there is none, or an object's digest says it, or it is too long."""
    holes = sum(piece.length for piece in entry.pieces if not piece.key)
    is_one_object = len(entry.pieces) == 1 and entry.pieces[0].key == entry.digest
    return None if not entry.digest or is_one_object or holes > _HOLES_HASHED else hashlib.sha256()


def _is_verified_object(entry: ManifestEntry, objects: ObjectFetcher) -> bool:
    """Whether a file is one whole object, which was verified."""
    return len(entry.pieces) == 1 and objects.verified.get(entry.digest) == entry.size == entry.pieces[0].length


def _update_digest(digest: hashlib._Hash, piece: ObjectRange, view: memoryview) -> None:
    if piece.key:
        digest.update(view)
        return
    left = piece.length
    while left:
        digest.update(_ZEROS[: min(left, len(_ZEROS))])
        left -= min(left, len(_ZEROS))


def _write_at(fd: int, view: memoryview, at: int) -> None:
    while view:
        written = os.pwrite(fd, view[:_WRITE], at)
        view, at = view[written:], at + written


def _entry_kind(entry: ManifestEntry) -> str:
    return "h" if entry.hardlink_to else entry.kind


def stored_entries(get: Callable[[str], bytes], tree: Tree, store_name: str) -> Iterator[ManifestEntry]:
    """The entries of a tree in a store."""
    with ObjectFetcher(get, tree.prefix, store_name) as objects:
        yield from decode_manifest(bytes(view) for _, view in objects.read_pieces(tree.manifest))
