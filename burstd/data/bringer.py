"""From a store to a destination, with its owner's rights: fetched, verified, written beside its place, put there."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from burstd.data.hands import Hand
from burstd.data.manifest import Entry, decode
from burstd.data.objects import Fetched
from burstd.data.pack import SMALL_BYTES
from burstd.model.data import Piece, Tree
from burstd.model.errors import BurstdError

FILES_AT_ONCE = 64
BYTES_AT_ONCE = 256 << 20
"""Files are written together up to this size: for objects, so much waits on this machine's disk to be put."""
_WRITE = 1 << 20


class Stopped(BurstdError):
    """It was told to stop."""


@dataclass(frozen=True, slots=True)
class Brought:
    """One file at its destination. ``path`` as text with surrogates; ``digest``: SHA-256 in hexadecimal, or empty."""

    path: str
    size: int
    digest: str
    skipped: bool
    """It was there already, with this size and time, from an earlier try."""


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
        cancelled: threading.Event,
    ) -> int:
        """Makes the tree below ``root`` (which is made too), or its single file as ``root/name``; returns its bytes.

        ``taken`` gives the path under which an entry goes (another where the name is taken); ``brought`` hears of each
        file, ``moved`` of bytes. May be repeated: files that are there with the size and time of the tree's are left.
        Raises HandError, StagerError (ObjectDamaged), ManifestDamaged, Stopped.
        """
        total = 0
        directories: list[tuple[str, int, int]] = []
        hand.make(root, [""])
        with Fetched(self._fetch, tree.prefix, self._where) as objects:
            batch: list[Entry] = []
            held = 0
            for entry in decode(bytes(view) for _, view in objects.each(tree.manifest)):
                if cancelled.is_set():
                    raise Stopped("it was told to stop")
                # Small groups of one kind keep the order in which entries depend on each other.
                full = len(batch) >= FILES_AT_ONCE or held + entry.size > BYTES_AT_ONCE
                if batch and (full or _kind(batch[0]) != _kind(entry)):
                    total += self._batch(hand, objects, batch, root, job, name, taken, brought, moved)
                    batch, held = [], 0
                    if len(self._contents) >= ADOPTED_AT_ONCE:
                        self._offer(objects, tree)
                if entry.kind == "d" and entry.path:
                    directories.append((taken(os.fsdecode(entry.path)), entry.mode, entry.mtime_ns))
                if entry.path:
                    batch.append(entry)
                    held += entry.size
            total += self._batch(hand, objects, batch, root, job, name, taken, brought, moved)
            self._offer(objects, tree)
        hand.settle(root, sorted(directories, key=lambda d: d[0].count("/"), reverse=True))
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
            same = facts is not None and (facts.kind, facts.size, facts.mtime_ns) == ("f", entry.size, entry.mtime_ns)
            if same:
                brought(Brought(path, entry.size, entry.digest, skipped=True))
            else:
                missing.append((entry, path))
        if not missing:
            return
        made = hand.create(root, [path for _, path in missing], job=job)
        fds = [fd for _, fd in made]
        try:
            self._write(objects, [entry for entry, _ in missing], fds, moved)
        finally:
            for fd in fds:
                os.close(fd)
        finished = [(new, path, e.mode, e.mtime_ns) for (new, _), (e, path) in zip(made, missing, strict=True)]
        hand.finish(root, finished)
        for entry, path in missing:
            brought(Brought(path, entry.size, entry.digest, skipped=False))

    def _write(self, objects: Fetched, entries: list[Entry], fds: list[int], moved: Callable[[int], None]) -> None:
        stream = objects.each(piece for entry in entries for piece in entry.pieces)
        for entry, fd in zip(entries, fds, strict=True):
            at = 0
            for _ in entry.pieces:
                piece, view = next(stream)
                if piece.key:
                    _write_at(fd, view, at)
                    moved(len(view))
                    if len(entry.pieces) == 1 and entry.size <= SMALL_BYTES:
                        self._contents[hashlib.sha256(view).digest()] = entry.pieces
                at += piece.length
            # Holes stay holes, at the end too.
            os.ftruncate(fd, entry.size)


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
