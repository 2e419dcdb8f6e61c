"""Large files: cut into objects while they are read, holes left out; one that two transfers want is read once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import Piece
from burstd.transfer.content_store.index import Identity
from burstd.transfer.content_store.packs import Pack
from burstd.transfer.content_store.upload_pool import Lanes, Reading
from burstd.transfer.trees.untrusted_read import TRIES, Changed, extents, identity, now_ns, read_into, settled


@dataclass(slots=True, eq=False)
class File:
    """A regular file of a pass. While it has no ``pieces`` it waits for ``pack`` or for ``large``."""

    path: str
    facts: os.stat_result
    fd: int
    """Open while the message of the walk that brought it is worked on."""
    content: bytes = b""
    """Its name in the index."""
    data: bytes = b""
    pieces: tuple[Piece, ...] | None = None
    pack: Pack | None = None
    ours: bool = True
    """The pack is of this pass."""
    large: Large | None = None
    row: list[Any] = field(default_factory=list)
    """Of an object, which is fetched where its content is not known."""

    def now(self) -> os.stat_result:
        """What it is by now. The file that an object was fetched to is nobody else's."""
        return self.facts if self.row else os.fstat(self.fd)


@dataclass(slots=True, eq=False)
class Large:
    """A try to read a large file, whose objects are under way."""

    file: File
    reading: Reading
    whole: bool
    """No change after it was begun can have stayed unseen."""
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """In the file's order: (the object's number or -1 for a hole, offset in the object, length)."""
    keys: list[str] = field(default_factory=list)
    left: int = 1
    """Objects under way, and one while it is being read."""
    failed: bool = False


class LargeFiles:
    """The large files of one pass. ``flush`` is called before it waits, ``look_up`` fills in pieces from the index."""

    def __init__(self, lanes: Lanes, flush: Callable[[], None], look_up: Callable[[list[File]], None]) -> None:
        self.lanes = lanes
        self.shared = lanes.shared
        self._flush = flush
        self._look_up = look_up
        self._readings: dict[Reading, tuple[str, Identity]] = {}

    def send(self, f: File) -> None:
        """Reads a file into objects, or waits for who is reading it. Raises Changed after some tries, OSError."""
        while True:
            who = (self.lanes.prefix, identity(f.facts))
            with self.shared.lock:
                other = self.shared.reading.get(who)
                if other is None:
                    mine = self.shared.reading[who] = Reading()
                    self._readings[mine] = who
                    break
            # Another file of this pass may have this identity too, and its last object waits for nobody.
            self._flush()
            self.lanes.wait_for(other.ended)
            if other.content:
                f.content = other.content
                self._look_up([f])
                if f.pieces is not None:
                    if other.whole:
                        self.shared.index.saw(self.lanes.uid, [(identity(f.facts), f.content)])
                    return
        for _ in range(TRIES):
            f.large = large = Large(f, mine, settled(f.facts, now_ns()))
            try:
                self._cut(large)
            except Changed:
                large.failed = True
                f.facts = f.now()
            except OSError:
                large.failed = True
                raise
            else:
                return
        raise Changed

    def close(self) -> None:
        """Nobody waits for this pass any more."""
        for reading in list(self._readings):
            self._end(reading)

    def _cut(self, large: Large) -> None:
        """Objects of data, one extent after the other; an object holds several where the file has holes."""
        f, shared = large.file, self.shared
        buffer = shared.buffer()
        filled = 0
        for offset, length, is_data in extents(f.fd, f.facts.st_size):
            if not is_data:
                large.parts.append((-1, 0, length))
                self.lanes.progress.done(length, hit=False)
                continue
            at, end = offset, offset + length
            while at < end:
                count = min(end - at, OBJECT_BYTES - filled)
                read_into(f.fd, memoryview(buffer)[filled : filled + count], at)
                large.parts.append((len(large.keys), filled, count))
                at += count
                filled += count
                if filled == OBJECT_BYTES:
                    self._put(large, buffer, filled)
                    buffer, filled = shared.buffer(), 0
        if identity(f.now()) != identity(f.facts):
            raise Changed
        if filled:
            self._put(large, buffer, filled)
        else:
            shared.give_back(buffer)
        self._one_ended(large)

    def _put(self, large: Large, buffer: bytearray, size: int) -> None:
        number = len(large.keys)
        large.keys.append("")
        with self.shared.lock:
            large.left += 1

        def ended(key: str, there: bool, error: BaseException | None) -> None:
            self.shared.give_back(buffer)
            large.keys[number] = key
            if error is None:
                self.lanes.progress.done(size, hit=there)
            else:
                large.failed = True
            self._one_ended(large)

        self.lanes.put(memoryview(buffer)[:size], ended)

    def _one_ended(self, large: Large) -> None:
        """The last that ends notes the file, for others who wait for it."""
        with self.shared.lock:
            if large.left > 1 or large.failed:
                large.left -= 1
                return
        f, lanes = large.file, self.lanes
        pieces = tuple(
            Piece(large.keys[number] if number >= 0 else "", offset, length) for number, offset, length in large.parts
        )
        text = ";".join(f"{p.key},{p.offset},{p.length}" for p in pieces)
        content = b"L" + hashlib.sha256(text.encode()).digest()
        try:
            self.shared.index.add_contents(lanes.store, lanes.prefix, {content: pieces})
            if large.whole:
                self.shared.index.saw(lanes.uid, [(identity(f.facts), content)])
            with self.shared.lock:
                who = self._readings.get(large.reading)
            if who is not None and who[1] == identity(f.facts):
                # Else it has changed since the others looked.
                large.reading.content, large.reading.whole = content, large.whole
            f.content, f.pieces = content, pieces
        except BaseException:
            large.failed = True
            raise
        finally:
            self._end(large.reading)
            with self.shared.lock:
                large.left = 0

    def _end(self, reading: Reading) -> None:
        with self.shared.lock:
            who = self._readings.pop(reading, None)
            if who is not None:
                self.shared.reading.pop(who, None)
        reading.ended.set()
