"""From a store to a destination, with its owner's rights: fetched, verified, written beside its place, put there."""

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

from burstd.domain.errors import BurstdError
from burstd.domain.staging import Piece, Tree
from burstd.transfer.content_store.manifest import PIECES, Entry, ManifestDamaged, decode
from burstd.transfer.content_store.objects import Fetched
from burstd.transfer.content_store.packs import SMALL_BYTES
from burstd.transfer.privsep.client import Facts, Hand, HandError, printable
from burstd.transfer.privsep.object_workers import scheme
from burstd.transfer.trees.admission import admitted

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 256 << 20
"""Files are written together up to this size: for objects, so much waits on this machine's disk to be put."""
_WRITE = 1 << 20
_HOLES_HASHED = 1 << 30
"""A file with more than so many bytes of holes has no digest in what is told: only its objects were verified."""
_ZEROS = bytes(1 << 20)


class Stopped(BurstdError):
    """It was told to stop."""


@dataclass(frozen=True, slots=True)
class Brought:
    """One file at its destination. ``path`` as text with surrogates.

    ``digest``: SHA-256 in hexadecimal of what was written or found there; empty: not known.
    """

    path: str
    size: int
    digest: str
    skipped: bool
    """It was there already, with this content, mode and time, from an earlier try."""


Adopt = Callable[[str, Mapping[str, int], Mapping[bytes, tuple[Piece, ...]]], None]
"""Takes a prefix, verified objects there (key -> size) and what small contents (SHA-256) lie in them."""
ADOPTED_AT_ONCE = 10_000


class Bringer:
    """Writes trees to destinations. ``get`` fetches an object by its key; ``pay`` waits until so many bytes may go.

    ``adopt`` hears of the objects that were verified on the way: they can be input of other jobs.
    """

    def __init__(
        self,
        get: Callable[[str], bytes],
        where: str,
        pay: Callable[[int], bool] = lambda _size: True,
        adopt: Adopt = lambda _prefix, _objects, _contents: None,
    ) -> None:
        self._adopt = adopt
        self._contents: dict[bytes, tuple[Piece, ...]] = {}
        self._get = get
        self._where = where
        self._pay = pay

    def bring(
        self,
        hand: Hand,
        tree: Tree,
        root: str,
        *,
        job: str,
        name: str = "",
        taken: Callable[[str], str] = lambda path: path,
        brought: Callable[[Brought], None] = lambda _brought: None,
        moved: Callable[[int], None] = lambda _size: None,
        left_out: Callable[[str], None] = lambda _sentence: None,
        cancelled: threading.Event,
    ) -> int:
        """Makes the tree below ``root`` (which is made too), or its single file as ``root/name``; returns its bytes.

        admission.py says what is admitted; ``left_out`` hears of what is not. ``taken`` gives the path under
        which an entry goes (another where the name is taken); ``brought`` hears of each file, ``moved`` of bytes.

        May be repeated: files that are there with the content, mode and time of the tree's are left, unfinished ones
        of this job removed. Raises HandError, StagerError (ObjectDamaged), ManifestDamaged, Stopped.
        """
        total = 0
        hand.make(root, [""])
        # Millions of directories have a long list: it waits on the disk.
        with Fetched(self._fetch, tree.prefix, self._where) as objects, tempfile.TemporaryFile() as directories:
            batch: list[Entry] = []
            held = pieces = 0
            listed = decode(bytes(view) for _, view in objects.each(tree.manifest))
            for entry in admitted(listed, tree, named=bool(name), left_out=left_out):
                if cancelled.is_set():
                    raise Stopped("it was told to stop")
                # Small groups of one kind keep the order in which entries depend on each other.
                full = len(batch) >= FILES_AT_ONCE or held + entry.size > BYTES_AT_ONCE
                full = full or pieces + len(entry.pieces) > PIECES
                if batch and (full or _kind(batch[0]) != _kind(entry)):
                    total += self._batch(hand, objects, batch, root, job, name, taken, brought, moved)
                    batch, held, pieces = [], 0, 0
                    if len(self._contents) >= ADOPTED_AT_ONCE:
                        self._offer(objects, tree)
                if entry.kind == "d" and entry.path:
                    marshal.dump((taken(os.fsdecode(entry.path)), entry.mode, entry.mtime_ns), directories)
                if entry.path:
                    batch.append(entry)
                    held += entry.size
                    pieces += len(entry.pieces)
            total += self._batch(hand, objects, batch, root, job, name, taken, brought, moved)
            self._offer(objects, tree)
            inner = _inner_first(directories)
            while some := list(islice(inner, FILES_AT_ONCE)):
                hand.settle(root, some)
        return total

    def _offer(self, objects: Fetched, tree: Tree) -> None:
        listed = {piece.key for piece in tree.manifest}
        found = {key: size for key, size in dict(objects.verified).items() if key not in listed}
        if found:
            self._adopt(tree.prefix, found, self._contents)
        self._contents = {}

    def _fetch(self, key: str) -> bytes:
        body = self._get(key)
        if not self._pay(len(body)):
            raise Stopped("it was told to stop")
        return body

    def _batch(
        self,
        hand: Hand,
        objects: Fetched,
        batch: list[Entry],
        root: str,
        job: str,
        name: str,
        taken: Callable[[str], str],
        brought: Callable[[Brought], None],
        moved: Callable[[int], None],
    ) -> int:
        if not batch:
            return 0
        paths = [taken(name or os.fsdecode(e.path)) for e in batch]
        if _kind(batch[0]) != "d":
            sweep(hand, root, {os.path.dirname(path) for path in paths}, job)  # noqa: PTH120 - of a URL too
        match _kind(batch[0]):
            case "d":
                hand.make(root, paths)
            case "l":
                links = [(os.fsdecode(e.target), p, e.mtime_ns) for e, p in zip(batch, paths, strict=True)]
                hand.symlink(root, links, job=job)
            case "h":
                pairs = [(taken(os.fsdecode(e.hard)), p) for e, p in zip(batch, paths, strict=True)]
                hand.hardlink(root, pairs, job=job)
            case _:
                self._files(hand, objects, batch, paths, root, job, brought, moved)
        return sum(e.size for e in batch if e.kind == "f" and not e.hard)

    def _files(
        self,
        hand: Hand,
        objects: Fetched,
        batch: list[Entry],
        paths: list[str],
        root: str,
        job: str,
        brought: Callable[[Brought], None],
        moved: Callable[[int], None],
    ) -> None:
        there = hand.facts(root, paths)
        missing: list[tuple[Entry, str]] = []
        for entry, path, facts in zip(batch, paths, there, strict=True):
            if facts is not None and _is_as(facts, entry) and _holds(hand, root, path, entry.digest):
                brought(Brought(path, entry.size, entry.digest, skipped=True))
            else:
                missing.append((entry, path))
        if not missing:
            return
        made = hand.create(root, [path for _, path in missing], job=job)
        try:
            try:
                digests = self._write(objects, [entry for entry, _ in missing], [fd for _, fd in made], moved)
            except OSError as error:
                where = f"{root.rstrip('/')}/{missing[0][1]}"
                text = f"{printable(where)}, or what comes with it, cannot be written: {error.strerror}"
                raise HandError(where, error.errno or errno.EIO, text) from None
            finally:
                for _, fd in made:
                    os.close(fd)
            finished = [(new, path, e.mode, e.mtime_ns) for (new, _), (e, path) in zip(made, missing, strict=True)]
            hand.finish(root, finished)
        except BaseException:
            # Where the hand itself is gone, the next try sweeps.
            with suppress(HandError):
                hand.remove(root, [new for new, _ in made])
            raise
        for (entry, path), digest in zip(missing, digests, strict=True):
            brought(Brought(path, entry.size, digest, skipped=False))

    def _write(self, objects: Fetched, entries: list[Entry], fds: list[int], moved: Callable[[int], None]) -> list[str]:
        """Returns the files' digests, where they were verified. Raises ManifestDamaged where one is another."""
        stream = objects.each(piece for entry in entries for piece in entry.pieces)
        digests: list[str] = []
        for entry, fd in zip(entries, fds, strict=True):
            at = 0
            digest = _digest_of(entry)
            for _ in entry.pieces:
                piece, view = next(stream)
                if piece.key:
                    _write_at(fd, view, at)
                    moved(len(view))
                    if len(entry.pieces) == 1 and entry.size <= SMALL_BYTES:
                        self._contents[hashlib.sha256(view).digest()] = entry.pieces
                if digest is not None:
                    _take(digest, piece, view)
                at += piece.length
            # Holes stay holes, at the end too.
            os.ftruncate(fd, entry.size)
            if digest is None:
                digests.append(entry.digest if _is_object(entry, objects) else "")
            elif digest.hexdigest() == entry.digest:
                digests.append(entry.digest)
            else:
                raise ManifestDamaged(f"the content of {printable(os.fsdecode(entry.path))} is not what was collected")
        return digests


def sweep(hand: Hand, root: str, folders: Iterable[str], job: str) -> None:
    """Removes what a try that was killed left unfinished in these directories. Raises HandError."""
    for folder in sorted(folders):
        try:
            hand.sweep(root, [folder], job=job)
        except HandError as error:
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


def _is_as(facts: Facts, entry: Entry) -> bool:
    mode = facts.mode & 0o7777
    return (facts.kind, facts.size, facts.mtime_ns, mode) == ("f", entry.size, entry.mtime_ns, entry.mode)


def _holds(hand: Hand, root: str, path: str, digest: str) -> bool:
    """Whether a file that looks like ours has our content: times and sizes are easily those of another result."""
    if not digest or scheme(root):
        # To read an object back costs what it costs to write it.
        return False
    try:
        (fd,) = hand.open(root, [path])
        with os.fdopen(fd, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except (HandError, OSError):
        # What cannot be read is written anew.
        return False


def _digest_of(entry: Entry) -> hashlib._Hash | None:
    """What checks the digest of the whole. None: there is none, or an object's digest says it, or it is too long."""
    holes = sum(piece.length for piece in entry.pieces if not piece.key)
    alone = len(entry.pieces) == 1 and entry.pieces[0].key == entry.digest
    return None if not entry.digest or alone or holes > _HOLES_HASHED else hashlib.sha256()


def _is_object(entry: Entry, objects: Fetched) -> bool:
    """Whether a file is one whole object, which was verified."""
    return len(entry.pieces) == 1 and objects.verified.get(entry.digest) == entry.size == entry.pieces[0].length


def _take(digest: hashlib._Hash, piece: Piece, view: memoryview) -> None:
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


def _kind(entry: Entry) -> str:
    return "h" if entry.hard else entry.kind


def entries(get: Callable[[str], bytes], tree: Tree, where: str) -> Iterator[Entry]:
    """The entries of a tree in a store."""
    with Fetched(get, tree.prefix, where) as objects:
        yield from decode(bytes(view) for _, view in objects.each(tree.manifest))
