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
from burstd.domain.staging import ObjectRange
from burstd.transfer.agent.changes import changed_rows
from burstd.transfer.agent.user_process import (
    BUFFER_COUNT,
    FAULT_LIMIT,
    FAULT_STOPPED,
    LIMIT_REMEDY,
    AgentFault,
    JsonObject,
    PacketChannel,
    SharedBuffers,
)
from burstd.transfer.content_store.manifest import MAX_ENTRIES, ManifestEntry, TreeTooLarge, encode_manifest
from burstd.transfer.content_store.packs import MAX_PACK_CONTENTS, MAX_PACKED_FILE_BYTES
from burstd.transfer.content_store.sparse import data_extents, hash_zeros
from burstd.transfer.trees.walk import Walk, WalkRow, fixed_part, is_pattern


class PendingObject:
    """An object on its way to the store; its key is reported when it is there."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key = ""


class OutgoingBuffers:
    """Slots that are filled here and put into the store by the other half."""

    def __init__(self, channel: PacketChannel, buffers: SharedBuffers) -> None:
        self._channel = channel
        self._buffers = buffers
        self._free = list(range(BUFFER_COUNT))
        self._in_flight: dict[int, PendingObject] = {}

    def acquire_buffer(self) -> int:
        """A slot to fill; waits for one. Raises AgentFault when the other half has given up."""
        while not self._free:
            self.wait_for_one()
        return self._free.pop()

    def view(self, buffer: int) -> memoryview:
        """Its memory."""
        return self._buffers.view(buffer)

    def submit_buffer(self, buffer: int, length: int, pending: PendingObject | None = None) -> PendingObject:
        """Has it put."""
        pending = pending or PendingObject()
        self._in_flight[buffer] = pending
        self._channel.send({"object": buffer, "length": length})
        return pending

    def release_buffer(self, buffer: int) -> None:
        """It was not needed."""
        self._free.append(buffer)

    def wait_for_one(self) -> None:
        """Until one more is in the store."""
        message, _ = self._channel.receive()
        if "stop" in message:
            raise AgentFault(FAULT_STOPPED, "stopped")
        self._in_flight.pop(message["slot"]).key = message["key"]
        self._free.append(message["slot"])


_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def make_directories_readable(top: str) -> None:
    """Lets this user into each of his directories from ``top`` down. What cannot be had stays as it is: the walk tells.

    No link is followed, not even ``top``.
    """
    under_way = [_open_made_readable(top, None)]
    lists = [_directories(under_way[0])]
    while under_way:
        name = next(lists[-1], None)
        if name is None:
            lists.pop()
            done = under_way.pop()
            if done >= 0:
                os.close(done)
            continue
        child = _open_made_readable(name, under_way[-1])
        if child >= 0:
            under_way.append(child)
            lists.append(_directories(child))


def make_directory_readable(path: str) -> None:
    """Lets this user into one directory, if it is his."""
    descriptor = _open_made_readable(path, None)
    if descriptor >= 0:
        os.close(descriptor)


def open_made_readable(path: str) -> int:
    """A file that its owner, who this process is, cannot read by its mode; made readable. -1: it cannot be had."""
    try:
        handle = os.open(path, _PATH_ONLY)
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                return -1
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(facts.st_mode) | stat.S_IRUSR)
            return os.open(f"/proc/self/fd/{handle}", _FILE)
        finally:
            os.close(handle)
    except OSError:
        return -1


def _open_made_readable(name: str, above: int | None) -> int:
    """The directory, open to list; -1: it cannot be had."""
    try:
        handle = os.open(name, _PATH_ONLY | os.O_DIRECTORY, dir_fd=above)
        try:
            facts = os.fstat(handle)
            if facts.st_uid == os.geteuid() and facts.st_mode & 0o500 != 0o500:
                os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(facts.st_mode) | 0o500)
        finally:
            os.close(handle)
        return os.open(name, _LIST, dir_fd=above)
    except OSError:
        return -1


def _directories(descriptor: int) -> Iterator[str]:
    try:
        with os.scandir(descriptor) as entries:
            return iter([entry.name for entry in entries if entry.is_dir(follow_symlinks=False)])
    except OSError:
        return iter(())


_MAX_WARNINGS = 100
_MAX_MISSING = 50
_SHOWN = 300
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_NO_PERMISSION = (errno.EACCES, errno.EPERM)


_PendingPiece = tuple[PendingObject | None, int, int]
"""What will be a piece: its object (None: a hole), offset, length."""


class _PendingEntry:
    """What will be an entry, when all its objects have keys."""

    __slots__ = ("entry", "pieces")

    def __init__(self, entry: ManifestEntry, parts: Sequence[_PendingPiece] = ()) -> None:
        self.entry = entry
        self.pieces = parts

    @property
    def ready(self) -> bool:
        return all(sent is None or sent.key for sent, _, _ in self.pieces)

    def finished_entry(self) -> ManifestEntry:
        """The entry, with its pieces."""
        entry = self.entry
        if entry.kind != "f" or entry.hardlink_to:
            return entry
        pieces = tuple(ObjectRange(sent.key if sent else "", offset, length) for sent, offset, length in self.pieces)
        # One object of its own: the digest of the file is the object's.
        digest = entry.digest or (pieces[0].key if len(pieces) == 1 and entry.size > MAX_PACKED_FILE_BYTES else "")
        return ManifestEntry(entry.path, "f", entry.mode, entry.mtime_ns, entry.size, pieces=pieces, digest=digest)


class TreePacker:
    """One tree on its way into the store."""

    def __init__(self, out: OutgoingBuffers) -> None:
        self._outgoing = out
        self._waiting: deque[_PendingEntry] = deque()
        self._pack = -1
        self._packed = 0
        self._pack_object = PendingObject()
        self._contents: dict[bytes, int] = {}
        self._warned = self._missed = 0
        self.warnings: list[str] = []
        self.missing: list[tuple[str, str]] = []
        """Paths that cannot be had, and why; of many, the first."""
        self.entries = 0
        self.size = 0

    def pack_tree(self, found: Iterator[_PendingEntry]) -> JsonObject:
        """Sends all of it, and the manifest; returns what the tree is."""
        digest, manifest = hashlib.sha256(), []
        for body in encode_manifest(self._finished_entries(found)):
            digest.update(body)
            buffer = self._outgoing.acquire_buffer()
            self._outgoing.view(buffer)[: len(body)] = body
            manifest.append((self._outgoing.submit_buffer(buffer, len(body)), len(body)))
        while not all(sent.key for sent, _ in manifest):
            self._outgoing.wait_for_one()
        return {
            "digest": digest.hexdigest(), "manifest": [[sent.key, 0, length] for sent, length in manifest],
            "entries": self.entries, "size": self.size,
        }  # fmt: skip

    def _finished_entries(self, found: Iterator[_PendingEntry]) -> Iterator[ManifestEntry]:
        """In the order in which they were found, each when its objects are in the store."""
        for each in found:
            self.entries += 1
            if self.entries > MAX_ENTRIES:
                raise TreeTooLarge(f"it has more than {MAX_ENTRIES} entries")
            self._waiting.append(each)
            if len(self._waiting) >= MAX_PACK_CONTENTS:
                self._submit_pack()
                while not self._waiting[0].ready:
                    self._outgoing.wait_for_one()
            while self._waiting and self._waiting[0].ready:
                yield self._waiting.popleft().finished_entry()
        self._submit_pack()
        while self._waiting:
            while not self._waiting[0].ready:
                self._outgoing.wait_for_one()
            yield self._waiting.popleft().finished_entry()

    def pending_entries(self, rows: Iterator[tuple[WalkRow, int]], base: str) -> Iterator[_PendingEntry]:
        """What a walk finds in ``base``."""
        for row, descriptor in rows:
            kind, name = row[0], str(row[1])
            path = os.fsencode(name)
            if kind == "f":
                yield self.pack_file(path, descriptor)
            elif kind == "d":
                yield _PendingEntry(ManifestEntry(path, "d", _int(row[2]), _int(row[3])))
            elif kind == "h":
                yield _PendingEntry(ManifestEntry(path, "f", 0o600, 0, hardlink_to=os.fsencode(str(row[2]))))
            elif kind == "l":
                yield _PendingEntry(
                    ManifestEntry(path, "l", _int(row[3]), _int(row[4]), link_target=os.fsencode(str(row[2])))
                )
            elif kind == "e":
                where, number = f"{base}/{name}", _int(row[2])
                if number not in _NO_PERMISSION:
                    raise _read_fault(where, number)
                opened = open_made_readable(where)
                if opened >= 0:
                    yield self.pack_file(path, opened)
                else:
                    self.record_missing(where, number)
            else:
                self.record_warning(f"{name} was left out: {row[2]}")

    def pack_file(self, path: bytes, descriptor: int) -> _PendingEntry:
        """Reads a file and closes it. Raises AgentFault where that fails: it is there, and not to be lost."""
        try:
            about = os.fstat(descriptor)
            if about.st_size <= MAX_PACKED_FILE_BYTES:
                part, size, digest = self._read_into_pack(descriptor, about.st_size)
                parts = [part] if size else []
            else:
                parts, size, digest = self._read_extents(descriptor, about)
        except OSError as error:
            raise _read_fault(os.fsdecode(path), error.errno or errno.EIO) from None
        finally:
            os.close(descriptor)
        self.size += size
        return _PendingEntry(
            ManifestEntry(path, "f", stat.S_IMODE(about.st_mode), about.st_mtime_ns, size, digest=digest), parts
        )

    def record_missing(self, path: str, number: int) -> None:
        """Something that is there and that this user has no right to."""
        self._missed += 1
        if self._missed <= _MAX_MISSING:
            self.missing.append((path[:_SHOWN], os.strerror(number)))
        elif self._missed == _MAX_MISSING + 1:
            self.missing.append(("more", "of these the first are told"))

    def record_warning(self, sentence: str) -> None:
        """Something that is not in the tree. Of many, the first are reported."""
        self._warned += 1
        if self._warned <= _MAX_WARNINGS:
            self.warnings.append(sentence[:_SHOWN])
        elif self._warned == _MAX_WARNINGS + 1:
            self.warnings.append("more was left out, for reasons like these")

    def _read_into_pack(self, descriptor: int, size: int, at: int = 0) -> tuple[_PendingPiece, int, str]:
        """Reads into the pack that is open."""
        if self._pack >= 0 and (self._packed + size > OBJECT_BYTES or len(self._contents) >= MAX_PACK_CONTENTS):
            self._submit_pack()
        if self._pack < 0:
            self._pack = self._outgoing.acquire_buffer()
            self._packed = 0
            self._pack_object = PendingObject()
            self._contents = {}
        buffer = self._outgoing.view(self._pack)[self._packed : self._packed + size]
        size = _read(descriptor, buffer, at)
        digest = hashlib.sha256(buffer[:size])
        content = digest.digest()
        offset = self._contents.get(content)
        if offset is None:
            offset = self._contents[content] = self._packed
            self._packed += size
        return (self._pack_object, offset, size), size, digest.hexdigest()

    def _submit_pack(self) -> None:
        """Sends the pack that is open."""
        if self._pack >= 0:
            if self._packed:
                self._outgoing.submit_buffer(self._pack, self._packed, self._pack_object)
            else:
                # Files that were empty when they were read.
                self._outgoing.release_buffer(self._pack)
            self._pack = -1

    def _read_extents(self, descriptor: int, about: os.stat_result) -> tuple[list[_PendingPiece], int, str]:
        """Reads what is data, in objects of its own; a file that became shorter meanwhile ends where it ends."""
        size = about.st_size
        extents = data_extents(descriptor, size)
        single_object = size <= OBJECT_BYTES and extents == [(0, size)]
        digest = None if single_object else hashlib.sha256()
        parts: list[_PendingPiece] = []
        at = holes = 0
        for start, end in extents:
            if start > at:
                parts.append((None, 0, start - at))
                holes += start - at
                digest = hash_zeros(digest, start - at, holes)
                at = start
            while at < end:
                length = min(OBJECT_BYTES, end - at)
                if length <= MAX_PACKED_FILE_BYTES and not single_object:
                    part, got, _ = self._read_into_pack(descriptor, length, at)
                    body = self._outgoing.view(self._pack)[part[1] : part[1] + got]
                    if digest is not None:
                        digest.update(body)
                else:
                    buffer = self._outgoing.acquire_buffer()
                    body = self._outgoing.view(buffer)
                    got = _read(descriptor, body[:length], at)
                    if digest is not None:
                        digest.update(body[:got])
                    if got:
                        part = (self._outgoing.submit_buffer(buffer, got), 0, got)
                    else:
                        self._outgoing.release_buffer(buffer)
                if got:
                    parts.append(part)
                at += got
                if got < length:
                    return parts, at, "" if digest is None else digest.hexdigest()
        if at < size:
            parts.append((None, 0, size - at))
            digest = hash_zeros(digest, size - at, holes + size - at)
        return parts, size, "" if digest is None else digest.hexdigest()


def pack_output(
    channel: PacketChannel, buffers: SharedBuffers, request: JsonObject, descriptors: list[int]
) -> JsonObject:
    """One tree: a pattern in a folder, one file by its path, or what has changed in the working directory.

    Descriptors: of the last, the manifest of what it was.
    """
    packer = TreePacker(OutgoingBuffers(channel, buffers))
    try:
        return _pack_request(packer, request, descriptors)
    except TreeTooLarge as error:
        pattern, where = (request.get(key, "") for key in ("pattern", "base"))
        what = f"the output {pattern!r} in {where}" if where else f"the file {request.get('file')}"
        what = f"the working directory {request['workdir']['path']}" if "workdir" in request else what
        raise AgentFault(FAULT_LIMIT, f"{what} cannot be brought home as it is: {error}. {LIMIT_REMEDY}") from None


def _pack_request(packer: TreePacker, request: JsonObject, descriptors: list[int]) -> JsonObject:
    single = False
    if "missing" in request:
        # What is kept for the manifest at the destination: paths, and why, for targets.
        rows = [
            ManifestEntry(os.fsencode(path), "l", 0, 0, link_target=os.fsencode(why))
            for path, why in request["missing"]
        ]
        tree = packer.pack_tree(_PendingEntry(row) for row in rows)
    elif "workdir" in request:
        path = request["workdir"]["path"]
        make_directories_readable(path)
        tree = packer.pack_tree(packer.pending_entries(changed_rows(request["workdir"], descriptors[0]), path))
    elif "file" in request:
        tree = packer.pack_tree(_entry_of_path(packer, request["file"]))
        single = True
    else:
        found = _OutputPattern(packer, request["base"], request["pattern"])
        tree = packer.pack_tree(found.pending_entries())
        single = found.single
    return {**tree, "single": single, "warnings": packer.warnings, "missing": packer.missing}


def _read_fault(path: str, number: int) -> AgentFault:
    if number == errno.EFBIG:
        return AgentFault(FAULT_LIMIT, f"{path} has more data than one file can be staged with. {LIMIT_REMEDY}")
    remedy = "see what its disk is about (dmesg), mend or remove the file there, then: burstctl stage retry"
    return AgentFault("agent", f"{path} cannot be read: {os.strerror(number)}; {remedy}")


_ESCAPED = re.compile(r"\[([*?\[$])\]")
"""A quoted character (see burstd.staging.directives.lexer)."""


def literal_pattern(pattern: str) -> str | None:
    """The name that a pattern without wildcards means: quoted ones are characters. None: it has some."""
    return None if is_pattern(_ESCAPED.sub("", pattern)) else _ESCAPED.sub(r"\1", pattern)


class _OutputPattern:
    """What one pattern names. Nothing of it is found through a link."""

    def __init__(self, packer: TreePacker, base: str, pattern: str) -> None:
        self._packer = packer
        self._base = base
        literal = literal_pattern(pattern)
        self._exact = literal is not None and literal != pattern
        pattern = pattern if literal is None else literal
        self._parts = [part for part in pattern.split("/") if part not in {"", "."}]
        if pattern.startswith("/") or ".." in self._parts:
            raise AgentFault("agent", f"the pattern {pattern!r} leads out of the job's output folder")
        self._pattern = pattern
        self.single = False

    def pending_entries(self) -> Iterator[_PendingEntry]:
        """Yields the matching entries that are not packed yet."""
        path = os.path.join(self._base, *self._parts)
        make_directory_readable(os.path.dirname(self._base))
        make_directories_readable(self._base)
        try:
            if self._exact:
                os.lstat(path)
            through = self._link_in_path()
            if through:
                self._packer.record_warning(f"{self._pattern}: {through} is a link, which is kept and not followed")
                return
            if self._parts and os.path.islink(path):
                about = os.lstat(path)
                self.single = True
                target = os.fsencode(os.readlink(path))  # noqa: PTH115 - as above
                name = os.fsencode(self._parts[-1])
                yield _PendingEntry(
                    ManifestEntry(name, "l", stat.S_IMODE(about.st_mode), about.st_mtime_ns, link_target=target)
                )
                return
            if os.path.isfile(path) and not os.access(path, os.R_OK):
                descriptor = open_made_readable(path)
                if descriptor >= 0:
                    os.close(descriptor)
            walk = Walk(path)
            base = path if os.path.lexists(path) else fixed_part(path)
            yield from self._packer.pending_entries(iter(walk), base)
            self.single = walk.single
        except OSError as error:
            number = error.errno or errno.EIO
            if number in _NOT_THERE:
                self._packer.record_warning(f"{self._pattern} names nothing in the job's output folder")
            elif number in _NO_PERMISSION:
                self._packer.record_missing(path, number)
            elif number == errno.EINVAL:
                self._packer.record_warning(f"{self._pattern} was left out: {error.strerror}")
            else:
                raise _read_fault(path, number) from None

    def _link_in_path(self) -> str:
        """The part before the last, and before any wildcard, that is a link; empty where there is none."""
        above = self._base
        for part in self._parts[:-1]:
            above = f"{above}/{part}"
            if os.path.islink(above):
                return part
            if is_pattern(part) and not os.path.lexists(above):
                break
        return ""


def _entry_of_path(packer: TreePacker, path: str) -> Iterator[_PendingEntry]:
    """A file by its absolute path, if it is on this node."""
    try:
        descriptor = os.open(path, _FILE)
    except OSError as error:
        number = error.errno or errno.EIO
        if number in _NOT_THERE:
            return
        if number not in _NO_PERMISSION:
            raise _read_fault(path, number) from None
        descriptor = open_made_readable(path)
        if descriptor < 0:
            packer.record_missing(path, number)
            return
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        packer.record_warning(f"{path} was left out: it is no file")
        return
    yield packer.pack_file(os.fsencode(path.rpartition("/")[2]), descriptor)


def _read(descriptor: int, buffer: memoryview, at: int) -> int:
    got = 0
    while got < len(buffer):
        count = os.preadv(descriptor, [buffer[got:]], at + got)
        if not count:
            break
        got += count
    return got


def _int(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - rows are ours
    return value
