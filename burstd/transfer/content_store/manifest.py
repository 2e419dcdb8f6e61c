"""The manifest of a tree: one line of JSON for each entry, deflated, cut into objects like any content."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import ObjectRange

MAX_ENTRIES = 5_000_000
"""No tree has more."""
MAX_FILE_BYTES = (1 << 63) - 1
"""No file or offset is larger: what a file system, and SQLite, can count."""
MAX_PIECES = 800_000
"""No file has more: one of some 20 TiB."""
MAX_LINE_BYTES = 64 << 20
"""No line is longer: it holds as many pieces as a file may have."""
MAX_TEXT_BYTES = 64 << 10
"""... the names, numbers and digest in it."""
MAX_INFLATED_BYTES = 4 << 30
"""... and all of them together."""
MAX_TREE_BYTES = 1 << 50
"""More no node has: the sum over all nodes of a job is still a number that SQLite can store."""

EntryKind = Literal["d", "f", "l"]
"""Directory, file, symbolic link. Sockets, devices and pipes are no data: they are left out and reported."""


class ManifestDamaged(Exception):
    """It does not read as a manifest: the object is not what was put there, or who put it there lied."""


class TreeTooLarge(Exception):
    """A tree is too large for a manifest; the message says why."""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file, directory or link of a tree.

    ``path``: relative to the tree's root, without ``.`` and ``..``; ``b""``: the root itself (a source that is one
    file has its base name as path). ``mode``: permission bits, without setuid, setgid and sticky. ``hardlink_to``: path
    of an earlier entry that is the same file (a hard link); it then has no pieces of its own. ``digest``: SHA-256 of
    the content in hexadecimal, where it was computed over the whole file.
    """

    path: bytes
    kind: EntryKind
    mode: int
    mtime_ns: int
    size: int = 0
    link_target: bytes = b""
    hardlink_to: bytes = b""
    pieces: tuple[ObjectRange, ...] = ()
    digest: str = ""


def object_key(prefix: str, digest: str) -> str:
    """The key in a store of the object with this content: ``in/ab/abcd...``."""
    return f"{prefix}/{digest[:2]}/{digest}"


def encode_manifest(entries: Iterable[ManifestEntry]) -> Iterator[bytes]:
    """The manifest's objects, each of at most OBJECT_BYTES; at least one. Raises TreeTooLarge: none that is refused."""
    deflate = zlib.compressobj(1)
    held = bytearray()
    total = 0
    for entry in entries:
        line = _line(entry)
        total += len(line)
        if len(line) > MAX_TEXT_BYTES and len(_line(replace(entry, pieces=()))) > MAX_TEXT_BYTES:
            raise TreeTooLarge(f"the path {os.fsdecode(entry.path[:200])}... is too long")
        if total > MAX_INFLATED_BYTES:
            raise TreeTooLarge(
                f"the names and the places of the data of all files fill more than {MAX_INFLATED_BYTES} bytes"
            )
        held += deflate.compress(line)
        while len(held) >= OBJECT_BYTES:
            yield bytes(held[:OBJECT_BYTES])
            del held[:OBJECT_BYTES]
    held += deflate.flush()
    for start in range(0, len(held), OBJECT_BYTES):
        yield bytes(held[start : start + OBJECT_BYTES])


def decode_manifest(objects: Iterable[bytes]) -> Iterator[ManifestEntry]:
    """The entries, in the order in which they were encoded; each by itself is sound. Raises ManifestDamaged.

    Sound: types and ranges are as ManifestEntry says, and the pieces are as many bytes as the file. Memory is bounded
    by MAX_LINE_BYTES, whatever the objects hold.
    """
    inflate = zlib.decompressobj()
    rest: list[bytes] = []
    held = total = 0
    for data in (body[start : start + _DEFLATED] for body in objects for start in range(0, len(body), _DEFLATED)):
        left = data
        while left:
            if inflate.eof:
                raise ManifestDamaged("a manifest goes on after its end")
            try:
                text = inflate.decompress(left, _INFLATED)
            except zlib.error as error:
                raise ManifestDamaged(f"a manifest does not inflate: {error}") from None
            left = inflate.unconsumed_tail or inflate.unused_data
            first, *lines = text.split(b"\n")
            rest.append(first)
            held, total = held + len(first), total + len(text)
            if held > MAX_LINE_BYTES or total > MAX_INFLATED_BYTES:
                raise ManifestDamaged("a manifest is longer than any of burstd's")
            if lines:
                yield _entry(b"".join(rest))
                yield from map(_entry, lines[:-1])
                rest, held = lines[-1:], len(lines[-1])
    if held or not inflate.eof:
        raise ManifestDamaged("a manifest ends in the middle")


def _line(entry: ManifestEntry) -> bytes:
    mode = entry.mode & 0o777
    row: dict[str, object] = {"p": os.fsdecode(entry.path), "t": entry.kind, "m": mode, "n": entry.mtime_ns}
    if entry.kind == "f":
        row["s"] = entry.size
        if entry.hardlink_to:
            row["h"] = os.fsdecode(entry.hardlink_to)
        else:
            row["c"] = [[p.key, p.offset, p.length] for p in entry.pieces]
        if entry.digest:
            row["d"] = entry.digest
    elif entry.kind == "l":
        row["l"] = os.fsdecode(entry.link_target)
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


_DEFLATED = 64 << 10
_INFLATED = 1 << 20
_LATEST_NS = 1 << 64
_PIECES = b',"c":['
"""Begins the list of pieces; no name has it, in which a quotation mark follows a backslash."""
_PIECE = re.compile(rb'\["([0-9a-f]{64}|)",([0-9]{1,19}),([0-9]{1,19})\],?')
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _entry(line: bytes) -> ManifestEntry:
    head, listed, tail = line.partition(_PIECES)
    pieces: list[ObjectRange] = []
    if listed:
        at = 0
        while found := _PIECE.match(tail, at):
            pieces.append(ObjectRange(found[1].decode(), int(found[2]), int(found[3])))
            at = found.end()
            if len(pieces) > MAX_PIECES:
                raise ManifestDamaged(f"a manifest has a file of more than {MAX_PIECES} pieces")
        if tail[at : at + 1] != b"]":
            raise ManifestDamaged("a manifest has a list of pieces that cannot be read")
        head += tail[at + 1 :]
    if len(head) > MAX_TEXT_BYTES:
        raise ManifestDamaged("a manifest has a line that is longer than any of burstd's")
    try:
        row = json.loads(head)
        entry = ManifestEntry(
            path=os.fsencode(row["p"]), kind=row["t"], mode=_number(row["m"], 0o7777) & 0o777,
            mtime_ns=_number(row["n"], _LATEST_NS, -_LATEST_NS), size=_number(row.get("s", 0), MAX_FILE_BYTES),
            link_target=os.fsencode(row.get("l", "")), hardlink_to=os.fsencode(row.get("h", "")), pieces=tuple(pieces),
            digest=row.get("d", ""),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ManifestDamaged(f"a manifest has an entry that cannot be read: {error}"[:200]) from None
    _check(entry)
    return entry


def _check(entry: ManifestEntry) -> None:
    """Raises ManifestDamaged where no file system could have had it so."""
    content = entry.pieces or entry.size or entry.digest
    if (
        b"\0" in entry.path + entry.link_target + entry.hardlink_to
        or entry.kind not in ("d", "f", "l")
        or (entry.kind == "l") != bool(entry.link_target)
        or (entry.kind != "f" and (entry.hardlink_to or content))
        or (entry.hardlink_to and entry.pieces)
        or (entry.digest and not (isinstance(entry.digest, str) and _DIGEST.fullmatch(entry.digest)))
        or (not entry.hardlink_to and sum(piece.length for piece in entry.pieces) != entry.size)
        or any(piece.key and piece.offset + piece.length > OBJECT_BYTES for piece in entry.pieces)
    ):
        raise ManifestDamaged(f"a manifest has an entry that contradicts itself: {entry.path[:200]!r}")


def _number(value: Any, most: int, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{str(value)[:50]} is no number from {least} to {most}")
    return value
