"""Objects on their way from the process with the user's rights to the one that has the store.

Opening what its owner closed to himself: a job's output is its user's, whatever modes the job left it with.

Reading a job's output with the rights that this process has: the child's part of collecting.
"""

from __future__ import annotations

# ruff: noqa: PTH113, PTH114, PTH118, PTH120
import errno
import hashlib

# ruff: noqa: PTH101
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Sequence

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import Piece
from burstd.transfer.agent.user_process import LIMIT, SLOTS, STOPPED, TO_PACK, AgentFault, Line, Message, Slots
from burstd.transfer.content_store.manifest import ENTRIES, Entry, TreeTooLarge, encode
from burstd.transfer.content_store.packs import PACK_CONTENTS, SMALL_BYTES
from burstd.transfer.content_store.sparse import data, hash_zeros
from burstd.transfer.trees.walk import Row, Walk, fixed_part, is_pattern


class Sent:
    """An object on its way to the store; its key is told when it is there."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = ""


class Outgoing:
    """Slots that are filled here and put into the store by the other half."""

    def __init__(self, line: Line, slots: Slots) -> None:
        self._line = line
        self._slots = slots
        self._free = list(range(SLOTS))
        self._under_way: dict[int, Sent] = {}

    def room(self) -> int:
        """A slot to fill; waits for one. Raises AgentFault when the other half has given up."""
        while not self._free:
            self.wait()
        return self._free.pop()

    def view(self, slot: int) -> memoryview:
        """Its memory."""
        return self._slots.view(slot)

    def send(self, slot: int, length: int, sent: Sent | None = None) -> Sent:
        """Has it put."""
        sent = sent or Sent()
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


_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_directories(top: str) -> None:
    """Lets this user into each of his directories from ``top`` down. What cannot be had stays as it is: the walk tells.

    No link is followed, not even ``top``.
    """
    under_way = [_entered(top, None)]
    lists = [_directories(under_way[0])]
    while under_way:
        name = next(lists[-1], None)
        if name is None:
            lists.pop()
            done = under_way.pop()
            if done >= 0:
                os.close(done)
            continue
        child = _entered(name, under_way[-1])
        if child >= 0:
            under_way.append(child)
            lists.append(_directories(child))


def enter(path: str) -> None:
    """Lets this user into one directory, if it is his."""
    descriptor = _entered(path, None)
    if descriptor >= 0:
        os.close(descriptor)


def open_file(path: str) -> int:
    """A file that its owner, who this process is, cannot read by its mode; made readable. -1: it cannot be had."""
    try:
        way = os.open(path, _WAY)
        try:
            facts = os.fstat(way)
            if not stat.S_ISREG(facts.st_mode):
                return -1
            os.chmod(f"/proc/self/fd/{way}", stat.S_IMODE(facts.st_mode) | stat.S_IRUSR)
            return os.open(f"/proc/self/fd/{way}", _FILE)
        finally:
            os.close(way)
    except OSError:
        return -1


def _entered(name: str, above: int | None) -> int:
    """The directory, open to list; -1: it cannot be had."""
    try:
        way = os.open(name, _WAY | os.O_DIRECTORY, dir_fd=above)
        try:
            facts = os.fstat(way)
            if facts.st_uid == os.geteuid() and facts.st_mode & 0o500 != 0o500:
                os.chmod(f"/proc/self/fd/{way}", stat.S_IMODE(facts.st_mode) | 0o500)
        finally:
            os.close(way)
        return os.open(name, _LIST, dir_fd=above)
    except OSError:
        return -1


def _directories(descriptor: int) -> Iterator[str]:
    try:
        with os.scandir(descriptor) as entries:
            return iter([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
    except OSError:
        return iter(())


_WARNINGS = 100
_MISSING = 50
_SHOWN = 300
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_NOT_OURS = (errno.EACCES, errno.EPERM)
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


_Part = tuple[Sent | None, int, int]
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


class Gathering:
    """One tree on its way into the store."""

    def __init__(self, out: Outgoing) -> None:
        self._out = out
        self._waiting: deque[_Found] = deque()
        self._pack = -1
        self._packed = 0
        self._pack_sent = Sent()
        self._contents: dict[bytes, int] = {}
        self._warned = self._missed = 0
        self.warnings: list[str] = []
        self.missing: list[tuple[str, str]] = []
        """Paths that cannot be had, and why; of many, the first."""
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
            if self.entries > ENTRIES:
                raise TreeTooLarge(f"it has more than {ENTRIES} entries")
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

    def rows(self, rows: Iterator[tuple[Row, int]], base: str) -> Iterator[_Found]:
        """What a walk finds below ``base``."""
        for row, descriptor in rows:
            kind, name = row[0], str(row[1])
            path = os.fsencode(name)
            if kind == "f":
                yield self.file(path, descriptor)
            elif kind == "d":
                yield _Found(Entry(path, "d", _int(row[2]), _int(row[3])))
            elif kind == "h":
                yield _Found(Entry(path, "f", 0o600, 0, hard=os.fsencode(str(row[2]))))
            elif kind == "l":
                yield _Found(Entry(path, "l", _int(row[3]), _int(row[4]), target=os.fsencode(str(row[2]))))
            elif kind == "e":
                where, number = f"{base}/{name}", _int(row[2])
                if number not in _NOT_OURS:
                    raise _unread(where, number)
                opened = open_file(where)
                if opened >= 0:
                    yield self.file(path, opened)
                else:
                    self.miss(where, number)
            else:
                self.warn(f"{name} was left out: {row[2]}")

    def file(self, path: bytes, descriptor: int) -> _Found:
        """Reads a file and closes it. Raises AgentFault where that fails: it is there, and not to be lost."""
        try:
            about = os.fstat(descriptor)
            if about.st_size <= SMALL_BYTES:
                part, size, digest = self._small(descriptor, about.st_size)
                parts = [part] if size else []
            else:
                parts, size, digest = self._large(descriptor, about)
        except OSError as error:
            raise _unread(os.fsdecode(path), error.errno or errno.EIO) from None
        finally:
            os.close(descriptor)
        self.size += size
        return _Found(Entry(path, "f", stat.S_IMODE(about.st_mode), about.st_mtime_ns, size, digest=digest), parts)

    def miss(self, path: str, number: int) -> None:
        """Something that is there and that this user has no right to."""
        self._missed += 1
        if self._missed <= _MISSING:
            self.missing.append((path[:_SHOWN], os.strerror(number)))
        elif self._missed == _MISSING + 1:
            self.missing.append(("more", "of these the first are told"))

    def warn(self, sentence: str) -> None:
        """Something that is not in the tree. Of many, the first are told."""
        self._warned += 1
        if self._warned <= _WARNINGS:
            self.warnings.append(sentence[:_SHOWN])
        elif self._warned == _WARNINGS + 1:
            self.warnings.append("more was left out, for reasons like these")

    def _small(self, descriptor: int, size: int, at: int = 0) -> tuple[_Part, int, str]:
        """Reads into the pack that is open."""
        if self._pack >= 0 and (self._packed + size > OBJECT_BYTES or len(self._contents) >= PACK_CONTENTS):
            self._flush()
        if self._pack < 0:
            self._pack = self._out.room()
            self._packed = 0
            self._pack_sent = Sent()
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
        runs = data(descriptor, size)
        one = size <= OBJECT_BYTES and runs == [(0, size)]
        digest = None if one else hashlib.sha256()
        parts: list[_Part] = []
        at = holes = 0
        for start, end in runs:
            if start > at:
                parts.append((None, 0, start - at))
                holes += start - at
                digest = hash_zeros(digest, start - at, holes)
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
            digest = hash_zeros(digest, size - at, holes + size - at)
        return parts, size, "" if digest is None else digest.hexdigest()


def gather(line: Line, slots: Slots, request: Message, descriptors: list[int]) -> Message:  # noqa: ARG001 - a Work
    """One tree: a pattern below a folder, or one file by its path."""
    gathering = Gathering(Outgoing(line, slots))
    try:
        return _gathered(gathering, request)
    except TreeTooLarge as error:
        pattern, where = (request.get(key, "") for key in ("pattern", "base"))
        what = f"the output {pattern!r} in {where}" if where else f"the file {request.get('file')}"
        raise AgentFault(LIMIT, f"{what} cannot be brought home as it is: {error}. {TO_PACK}") from None


def _gathered(gathering: Gathering, request: Message) -> Message:
    single = False
    if "missing" in request:
        # What is kept for the manifest at the destination: paths, and why, for targets.
        rows = [Entry(os.fsencode(path), "l", 0, 0, target=os.fsencode(why)) for path, why in request["missing"]]
        tree = gathering.tree(_Found(row) for row in rows)
    elif "file" in request:
        tree = gathering.tree(_named(gathering, request["file"]))
        single = True
    else:
        found = _Pattern(gathering, request["base"], request["pattern"])
        tree = gathering.tree(found.found())
        single = found.single
    return {**tree, "single": single, "warnings": gathering.warnings, "missing": gathering.missing}


def _unread(path: str, number: int) -> AgentFault:
    if number == errno.EFBIG:
        return AgentFault(LIMIT, f"{path} has more data than one file can be staged with. {TO_PACK}")
    remedy = "see what its disk is about (dmesg), mend or remove the file there, then: burstctl stage retry"
    return AgentFault("agent", f"{path} cannot be read: {os.strerror(number)}; {remedy}")


_ESCAPED = re.compile(r"\[([*?\[$])\]")
"""A quoted character (see burstd.staging.directives.lexer)."""


class _Pattern:
    """What one pattern names. Nothing of it is found through a link."""

    def __init__(self, gathering: Gathering, base: str, pattern: str) -> None:
        self._gathering = gathering
        self._base = base
        # A name with quoted wildcards and no others is that name.
        self._exact = bool(_ESCAPED.search(pattern)) and not is_pattern(_ESCAPED.sub("", pattern))
        if self._exact:
            pattern = _ESCAPED.sub(r"\1", pattern)
        self._parts = [part for part in pattern.split("/") if part not in {"", "."}]
        if pattern.startswith("/") or ".." in self._parts:
            raise AgentFault("agent", f"the pattern {pattern!r} leads out of the job's output folder")
        self._pattern = pattern
        self.single = False

    def found(self) -> Iterator[_Found]:
        """See Gathering.tree."""
        path = os.path.join(self._base, *self._parts)
        enter(os.path.dirname(self._base))
        open_directories(self._base)
        try:
            if self._exact:
                os.lstat(path)
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
            if os.path.isfile(path) and not os.access(path, os.R_OK):
                descriptor = open_file(path)
                if descriptor >= 0:
                    os.close(descriptor)
            walk = Walk(path)
            base = path if os.path.lexists(path) else fixed_part(path)
            yield from self._gathering.rows(iter(walk), base)
            self.single = walk.single
        except OSError as error:
            number = error.errno or errno.EIO
            if number in _NOT_THERE:
                self._gathering.warn(f"{self._pattern} names nothing in the job's output folder")
            elif number in _NOT_OURS:
                self._gathering.miss(path, number)
            elif number == errno.EINVAL:
                self._gathering.warn(f"{self._pattern} was left out: {error.strerror}")
            else:
                raise _unread(path, number) from None

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


def _named(gathering: Gathering, path: str) -> Iterator[_Found]:
    """A file by its absolute path, if it is on this node."""
    try:
        descriptor = os.open(path, _FILE)
    except OSError as error:
        number = error.errno or errno.EIO
        if number in _NOT_THERE:
            return
        if number not in _NOT_OURS:
            raise _unread(path, number) from None
        descriptor = open_file(path)
        if descriptor < 0:
            gathering.miss(path, number)
            return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        gathering.warn(f"{path} was left out: it is no file")
        return
    yield gathering.file(os.fsencode(path.rpartition("/")[2]), descriptor)


def _read(descriptor: int, room: memoryview, at: int) -> int:
    got = 0
    while got < len(room):
        count = os.preadv(descriptor, [room[got:]], at + got)
        if not count:
            break
        got += count
    return got


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - rows are ours
    return value
