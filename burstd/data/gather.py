"""Reading a job's output with the rights that this process has: the child's part of collecting."""

# ruff: noqa: PTH114, PTH118

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from burstd.data.manifest import Entry, encode
from burstd.data.pack import PACK_CONTENTS, SMALL_BYTES
from burstd.data.userside import SLOTS, STOPPED, AgentFault, Line, Message, Slots
from burstd.data.walk import Row, Walk, is_pattern
from burstd.model.data import Piece
from burstd.model.stager import OBJECT_BYTES

_WARNINGS = 100
_ZEROS = bytes(1 << 20)
_HOLES_HASHED = 16 << 30
"""A file with more than so many bytes of holes has no digest of the whole: its objects have theirs."""
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _Sent:
    """An object on its way to the store; its key is told when it is there."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = ""


_Part = tuple[_Sent | None, int, int]
"""What will be a piece: its object (None: a hole), offset, length."""


class _Found:
    """What will be an entry, when all its objects have keys."""

    __slots__ = ("entry", "parts")

    def __init__(self, entry: Entry, parts: Sequence[_Part] = ()) -> None:
        self.entry = entry
        self.parts = parts

    @property
    def ready(self) -> bool:
        return all(sent is None or sent.key for sent, _, _ in self.parts)

    def whole(self) -> Entry:
        """The entry, with its pieces."""
        was = self.entry
        if was.kind != "f" or was.hard:
            return was
        pieces = tuple(Piece(sent.key if sent else "", offset, length) for sent, offset, length in self.parts)
        # One object of its own: the digest of the file is the object's.
        digest = was.digest or (pieces[0].key if len(pieces) == 1 and was.size > SMALL_BYTES else "")
        return Entry(was.path, "f", was.mode, was.mtime_ns, was.size, pieces=pieces, digest=digest)


class Outgoing:
    """Slots that are filled here and put into the store by the other half."""

    def __init__(self, line: Line, slots: Slots) -> None:
        self._line = line
        self._slots = slots
        self._free = list(range(SLOTS))
        self._under_way: dict[int, _Sent] = {}

    def room(self) -> int:
        """A slot to fill; waits for one. Raises AgentFault when the other half has given up."""
        while not self._free:
            self.wait()
        return self._free.pop()

    def view(self, slot: int) -> memoryview:
        """Its memory."""
        return self._slots.view(slot)

    def send(self, slot: int, length: int, sent: _Sent | None = None) -> _Sent:
        """Has it put."""
        sent = sent or _Sent()
        self._under_way[slot] = sent
        self._line.send({"object": slot, "length": length})
        return sent

    def give_back(self, slot: int) -> None:
        """It was not needed."""
        self._free.append(slot)

    def wait(self) -> None:
        """Until one more is in the store."""
        message, _ = self._line.receive()
        if "stop" in message:
            raise AgentFault(STOPPED, "stopped")
        self._under_way.pop(message["slot"]).key = message["key"]
        self._free.append(message["slot"])


class Gathering:
    """One tree on its way into the store."""

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self._waiting: deque[_Found] = deque()
        self._pack = -1
        self._packed = 0
        self._pack_sent = _Sent()
        self._contents: dict[bytes, int] = {}
        self._warned = 0
        self.warnings: list[str] = []
        self.entries = 0
        self.size = 0

    def tree(self, found: Iterator[_Found]) -> Message:
        """Sends all of it, and the manifest; returns what the tree is."""
        digest, manifest = hashlib.sha256(), []
        for body in encode(self._entries(found)):
            digest.update(body)
            slot = self._out.room()
            self._out.view(slot)[: len(body)] = body
            manifest.append((self._out.send(slot, len(body)), len(body)))
        while not all(sent.key for sent, _ in manifest):
            self._out.wait()
        return {
            "digest": digest.hexdigest(), "manifest": [[sent.key, 0, length] for sent, length in manifest],
            "entries": self.entries, "size": self.size,
        }  # fmt: skip

    def _entries(self, found: Iterator[_Found]) -> Iterator[Entry]:
        """In the order in which they were found, each when its objects are in the store."""
        for each in found:
            self.entries += 1
            self._waiting.append(each)
            if len(self._waiting) >= PACK_CONTENTS:
                self._flush()
                while not self._waiting[0].ready:
                    self._out.wait()
            while self._waiting and self._waiting[0].ready:
                yield self._waiting.popleft().whole()
        self._flush()
        while self._waiting:
            while not self._waiting[0].ready:
                self._out.wait()
            yield self._waiting.popleft().whole()

    def rows(self, rows: Iterator[tuple[Row, int]]) -> Iterator[_Found]:
        """What a walk finds."""
        for row, descriptor in rows:
            kind, name = row[0], str(row[1])
            path = os.fsencode(name)
            if kind == "f":
                one = self.file(path, descriptor)
                if one is not None:
                    yield one
            elif kind == "d":
                yield _Found(Entry(path, "d", _int(row[2]), _int(row[3])))
            elif kind == "h":
                yield _Found(Entry(path, "f", 0o600, 0, hard=os.fsencode(str(row[2]))))
            elif kind == "l":
                yield _Found(Entry(path, "l", _int(row[3]), _int(row[4]), target=os.fsencode(str(row[2]))))
            elif kind == "e":
                self.warn(f"{name} cannot be read: {os.strerror(_int(row[2]))}")
            else:
                self.warn(f"{name} was left out: {row[2]}")

    def file(self, path: bytes, descriptor: int) -> _Found | None:
        """Reads a file and closes it. None where it cannot be read, with a warning."""
        try:
            about = os.fstat(descriptor)
            if about.st_size <= SMALL_BYTES:
                part, size, digest = self._small(descriptor, about.st_size)
                parts = [part] if size else []
            else:
                parts, size, digest = self._large(descriptor, about)
        except OSError as error:
            self.warn(f"{os.fsdecode(path)} cannot be read: {error.strerror}")
            return None
        finally:
            os.close(descriptor)
        self.size += size
        return _Found(Entry(path, "f", stat.S_IMODE(about.st_mode), about.st_mtime_ns, size, digest=digest), parts)

    def warn(self, sentence: str) -> None:
        """Something that is not in the tree. Of many, the first are told."""
        self._warned += 1
        if self._warned <= _WARNINGS:
            self.warnings.append(sentence)
        elif self._warned == _WARNINGS + 1:
            self.warnings.append("more was left out, for reasons like these")

    def _small(self, descriptor: int, size: int, at: int = 0) -> tuple[_Part, int, str]:
        """Reads into the pack that is open."""
        if self._pack >= 0 and (self._packed + size > OBJECT_BYTES or len(self._contents) >= PACK_CONTENTS):
            self._flush()
        if self._pack < 0:
            self._pack = self._out.room()
            self._packed = 0
            self._pack_sent = _Sent()
            self._contents = {}
        room = self._out.view(self._pack)[self._packed : self._packed + size]
        size = _read(descriptor, room, at)
        digest = hashlib.sha256(room[:size])
        content = digest.digest()
        offset = self._contents.get(content)
        if offset is None:
            offset = self._contents[content] = self._packed
            self._packed += size
        return (self._pack_sent, offset, size), size, digest.hexdigest()

    def _flush(self) -> None:
        """Sends the pack that is open."""
        if self._pack >= 0:
            if self._packed:
                self._out.send(self._pack, self._packed, self._pack_sent)
            else:
                # Files that were empty when they were read.
                self._out.give_back(self._pack)
            self._pack = -1

    def _large(self, descriptor: int, about: os.stat_result) -> tuple[list[_Part], int, str]:
        """Reads what is data, in objects of its own; a file that became shorter meanwhile ends where it ends."""
        size = about.st_size
        one = size <= OBJECT_BYTES and about.st_blocks * 512 >= size
        digest = None if one else hashlib.sha256()
        parts: list[_Part] = []
        at = holes = 0
        for start, end in _data(descriptor, about):
            if start > at:
                parts.append((None, 0, start - at))
                holes += start - at
                digest = _hash_zeros(digest, start - at, holes)
                at = start
            while at < end:
                length = min(OBJECT_BYTES, end - at)
                if length <= SMALL_BYTES and not one:
                    part, got, _ = self._small(descriptor, length, at)
                    body = self._out.view(self._pack)[part[1] : part[1] + got]
                    if digest is not None:
                        digest.update(body)
                else:
                    slot = self._out.room()
                    body = self._out.view(slot)
                    got = _read(descriptor, body[:length], at)
                    if digest is not None:
                        digest.update(body[:got])
                    if got:
                        part = (self._out.send(slot, got), 0, got)
                    else:
                        self._out.give_back(slot)
                if got:
                    parts.append(part)
                at += got
                if got < length:
                    return parts, at, "" if digest is None else digest.hexdigest()
        if at < size:
            parts.append((None, 0, size - at))
            digest = _hash_zeros(digest, size - at, holes + size - at)
        return parts, size, "" if digest is None else digest.hexdigest()


def gather(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
    """One tree: a pattern below a folder, or some files by their paths."""
    gathering = Gathering(Outgoing(line, slots))
    if "files" in request:
        tree = gathering.tree(_listed(gathering, request["files"]))
        single = False
    else:
        found = _Pattern(gathering, request["base"], request["pattern"])
        tree = gathering.tree(found.found())
        single = found.single
    return {**tree, "single": single, "warnings": gathering.warnings}


class _Pattern:
    """What one pattern names. Nothing of it is found through a link."""

    def __init__(self, gathering: Gathering, base: str, pattern: str) -> None:
        self._gathering = gathering
        self._base = base
        self._parts = [part for part in pattern.split("/") if part not in {"", "."}]
        if pattern.startswith("/") or ".." in self._parts:
            raise AgentFault("agent", f"the pattern {pattern!r} leads out of the job's output folder")
        self._pattern = pattern
        self.single = False

    def found(self) -> Iterator[_Found]:
        """See Gathering.tree."""
        path = os.path.join(self._base, *self._parts)
        try:
            through = self._link_on_the_way()
            if through:
                self._gathering.warn(f"{self._pattern}: {through} is a link, which is kept and not followed")
                return
            if self._parts and os.path.islink(path):
                about = os.lstat(path)
                self.single = True
                target = os.fsencode(os.readlink(path))  # noqa: PTH115 - as above
                name = os.fsencode(self._parts[-1])
                yield _Found(Entry(name, "l", stat.S_IMODE(about.st_mode), about.st_mtime_ns, target=target))
                return
            walk = Walk(path)
            yield from self._gathering.rows(iter(walk))
            self.single = walk.single
        except OSError as error:
            if error.errno == errno.ENOENT:
                self._gathering.warn(f"{self._pattern} names nothing in the job's output folder")
            else:
                self._gathering.warn(f"{self._pattern} cannot be read: {error.strerror}")

    def _link_on_the_way(self) -> str:
        """The part before the last, and before any wildcard, that is a link; empty where there is none."""
        above = self._base
        for part in self._parts[:-1]:
            above = f"{above}/{part}"
            if os.path.islink(above):
                return part
            if is_pattern(part) and not os.path.lexists(above):
                break
        return ""


def _listed(gathering: Gathering, paths: Sequence[str]) -> Iterator[_Found]:
    """Files by their absolute paths; those that are not on this node are left out."""
    for path in paths:
        try:
            descriptor = os.open(path, _FILE)
        except FileNotFoundError:
            continue
        except OSError as error:
            gathering.warn(f"{path} cannot be read: {error.strerror}")
            continue
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            gathering.warn(f"{path} was left out: it is no file")
            continue
        one = gathering.file(os.fsencode(path.lstrip("/")), descriptor)
        if one is not None:
            yield one


def _data(descriptor: int, about: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where a file has data: (start, end). All of it where the file system does not tell."""
    size = about.st_size
    if about.st_blocks * 512 >= size:
        yield 0, size
        return
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            start, end = at, size
        yield start, min(end, size)
        at = end


def _read(descriptor: int, room: memoryview, at: int) -> int:
    got = 0
    while got < len(room):
        count = os.preadv(descriptor, [room[got:]], at + got)
        if not count:
            break
        got += count
    return got


def _hash_zeros(digest: hashlib._Hash | None, length: int, holes: int) -> hashlib._Hash | None:
    if digest is None or holes > _HOLES_HASHED:
        return None
    while length:
        digest.update(_ZEROS[: min(length, len(_ZEROS))])
        length -= min(length, len(_ZEROS))
    return digest


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - rows are ours
    return value
