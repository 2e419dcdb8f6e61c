"""The manifest of a tree: one line of JSON for each entry, deflated, cut into objects like any content."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from burstd.model.data import Piece
from burstd.model.stager import OBJECT_BYTES

Kind = Literal["d", "f", "l"]
"""Directory, file, symbolic link. Sockets, devices and pipes are no data: they are left out and told of."""


class ManifestDamaged(Exception):
    """It does not read as a manifest: the store's object is not what was put there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory or link of a tree.

    ``path``: relative to the tree's root, without ``.`` and ``..``; ``b""``: the root itself (a source that is one
    file has its base name as path). ``mode``: permission bits, as chmod takes them. ``hard``: path of an earlier entry
    that is the same file (a hard link); it then has no pieces of its own. ``digest``: SHA-256 of the content in
    hexadecimal, where it was computed over the whole file.
    """

    path: bytes
    kind: Kind
    mode: int
    mtime_ns: int
    size: int = 0
    target: bytes = b""
    hard: bytes = b""
    pieces: tuple[Piece, ...] = ()
    digest: str = ""


def object_key(prefix: str, digest: str) -> str:
    """The key in a store of the object with this content: ``in/ab/abcd...``."""
    return f"{prefix}/{digest[:2]}/{digest}"


def encode(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The manifest's objects, each of at most OBJECT_BYTES; at least one."""
    deflate = zlib.compressobj(1)
    held = bytearray()
    for entry in entries:
        held += deflate.compress(_line(entry))
        while len(held) >= OBJECT_BYTES:
            yield bytes(held[:OBJECT_BYTES])
            del held[:OBJECT_BYTES]
    held += deflate.flush()
    for start in range(0, len(held), OBJECT_BYTES):
        yield bytes(held[start : start + OBJECT_BYTES])


def decode(objects: Iterable[bytes]) -> Iterator[Entry]:
    """The entries, in the order in which they were encoded. Raises ManifestDamaged."""
    inflate = zlib.decompressobj()
    rest = b""
    for body in objects:
        data = body
        while data:
            try:
                rest += inflate.decompress(data, 1 << 20)
            except zlib.error as error:
                raise ManifestDamaged(f"a manifest does not inflate: {error}") from None
            data = inflate.unconsumed_tail
            *lines, rest = rest.split(b"\n")
            yield from map(_entry, lines)
    if rest or not inflate.eof:
        raise ManifestDamaged("a manifest ends in the middle")


def _line(entry: Entry) -> bytes:
    row: dict[str, object] = {"p": os.fsdecode(entry.path), "t": entry.kind, "m": entry.mode, "n": entry.mtime_ns}
    if entry.kind == "f":
        row["s"] = entry.size
        if entry.hard:
            row["h"] = os.fsdecode(entry.hard)
        else:
            row["c"] = [[p.key, p.offset, p.length] for p in entry.pieces]
        if entry.digest:
            row["d"] = entry.digest
    elif entry.kind == "l":
        row["l"] = os.fsdecode(entry.target)
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def _entry(line: bytes) -> Entry:
    try:
        row = json.loads(line)
        return Entry(
            path=os.fsencode(row["p"]),
            kind=row["t"],
            mode=row["m"],
            mtime_ns=row["n"],
            size=row.get("s", 0),
            target=os.fsencode(row.get("l", "")),
            hard=os.fsencode(row.get("h", "")),
            pieces=tuple(Piece(*c) for c in row.get("c", ())),
            digest=row.get("d", ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestDamaged(f"a manifest has an entry that cannot be read: {error}") from None
