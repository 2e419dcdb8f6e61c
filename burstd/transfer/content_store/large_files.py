"""Large files: cut into objects while they are read, holes left out; one that two transfers want is read once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.index import FileIdentity
from burstd.transfer.content_store.packs import Pack
from burstd.transfer.content_store.upload_pool import ReadInFlight, UploadPool
from burstd.transfer.trees.untrusted_read import (
    READ_TRIES,
    FileChanged,
    extents,
    file_identity,
    is_settled,
    now_ns,
    read_into,
)


@dataclass(slots=True, eq=False)
class SourceFile:
    """A regular file of a pass. While it has no ``pieces`` it waits for ``pack`` or for ``large``."""

    path: str
    stat_result: os.stat_result
    fd: int
    """Open while the message of the walk that brought it is worked on."""
    content: bytes = b""
    """Its name in the index."""
    data: bytes = b""
    pieces: tuple[ObjectRange, ...] | None = None
    pack: Pack | None = None
    owns_pack: bool = True
    """The pack is of this pass."""
    upload: LargeFileUpload | None = None
    object_row: list[Any] = field(default_factory=list)
    """Of an object, which is fetched where its content is not known."""

    def current_stat(self) -> os.stat_result:
        """What it is by now. The file that an object was fetched to is nobody else's."""
        return self.stat_result if self.object_row else os.fstat(self.fd)


@dataclass(slots=True, eq=False)
class LargeFileUpload:
    """A try to read a large file, whose objects are under way."""

    file: SourceFile
    read: ReadInFlight
    cacheable: bool
    """No change after it was begun can have stayed unseen."""
    parts: list[tuple[int, int, int]] = field(default_factory=list)
    """In the file's order: (the object's number or -1 for a hole, offset in the object, length)."""
    keys: list[str] = field(default_factory=list)
    pending_objects: int = 1
    """Objects under way, and one while it is being read."""
    failed: bool = False


class LargeFileUploader:
    """The large files of one pass. ``flush`` is called before it waits, ``look_up`` fills in pieces from the index."""

    def __init__(
        self, pool: UploadPool, flush: Callable[[], None], look_up: Callable[[list[SourceFile]], None]
    ) -> None:
        self.pool = pool
        self.shared = pool.shared
        self._flush = flush
        self._look_up = look_up
        self._reads: dict[ReadInFlight, tuple[str, int, FileIdentity]] = {}

    def upload_file(self, f: SourceFile) -> None:
        """Reads a file into objects, or waits for who is reading it. Raises FileChanged after some tries, OSError."""
        while True:
            # What an object is, its user's worker says: another user does not go by it.
            owner = self.pool.uid if f.object_row else -1
            identity_key = (self.pool.prefix, owner, file_identity(f.stat_result))
            with self.shared.lock:
                other = self.shared.reads_in_flight.get(identity_key)
                if other is None:
                    mine = self.shared.reads_in_flight[identity_key] = ReadInFlight()
                    self._reads[mine] = identity_key
                    break
            # Another file of this pass may have this identity too, and its last object waits for nobody.
            self._flush()
            self.pool.wait_for_event(other.finished)
            if other.content:
                f.content = other.content
                self._look_up([f])
                if f.pieces is not None:
                    if other.cacheable:
                        self.shared.index.record_contents(self.pool.uid, [(file_identity(f.stat_result), f.content)])
                    return
        for _ in range(READ_TRIES):
            f.upload = upload = LargeFileUpload(f, mine, is_settled(f.stat_result, now_ns()))
            try:
                self._upload_extents(upload)
            except FileChanged:
                upload.failed = True
                f.stat_result = f.current_stat()
            except OSError:
                upload.failed = True
                raise
            else:
                return
        raise FileChanged

    def close(self) -> None:
        """Nobody waits for this pass any more."""
        for reading in list(self._reads):
            self._end_read(reading)

    def _upload_extents(self, upload: LargeFileUpload) -> None:
        """Objects of data, one extent after the other; an object holds several where the file has holes."""
        f, shared = upload.file, self.shared
        buffer = shared.acquire_buffer()
        filled = 0
        for offset, length, is_data in extents(f.fd, f.stat_result.st_size):
            if not is_data:
                upload.parts.append((-1, 0, length))
                self.pool.progress.add_done(length, hit=False)
                continue
            at, end = offset, offset + length
            while at < end:
                count = min(end - at, OBJECT_BYTES - filled)
                read_into(f.fd, memoryview(buffer)[filled : filled + count], at)
                upload.parts.append((len(upload.keys), filled, count))
                at += count
                filled += count
                if filled == OBJECT_BYTES:
                    self._put_object(upload, buffer, filled)
                    buffer, filled = shared.acquire_buffer(), 0
        if file_identity(f.current_stat()) != file_identity(f.stat_result):
            raise FileChanged
        if filled:
            self._put_object(upload, buffer, filled)
        else:
            shared.release_buffer(buffer)
        self._object_done(upload)

    def _put_object(self, upload: LargeFileUpload, buffer: bytearray, size: int) -> None:
        number = len(upload.keys)
        upload.keys.append("")
        with self.shared.lock:
            upload.pending_objects += 1

        def on_done(key: str, there: bool, error: BaseException | None) -> None:
            self.shared.release_buffer(buffer)
            upload.keys[number] = key
            if error is None:
                self.pool.progress.add_done(size, hit=there)
            else:
                upload.failed = True
            self._object_done(upload)

        self.pool.submit_put(memoryview(buffer)[:size], on_done)

    def _object_done(self, upload: LargeFileUpload) -> None:
        """The last that ends notes the file, for others who wait for it."""
        with self.shared.lock:
            if upload.pending_objects > 1 or upload.failed:
                upload.pending_objects -= 1
                return
        f, pool = upload.file, self.pool
        pieces = tuple(
            ObjectRange(upload.keys[number] if number >= 0 else "", offset, length)
            for number, offset, length in upload.parts
        )
        text = ";".join(f"{p.key},{p.offset},{p.length}" for p in pieces)
        content = b"L" + hashlib.sha256(text.encode()).digest()
        try:
            self.shared.index.add_contents(pool.store, pool.prefix, {content: pieces})
            if upload.cacheable:
                self.shared.index.record_contents(pool.uid, [(file_identity(f.stat_result), content)])
            with self.shared.lock:
                identity_key = self._reads.get(upload.read)
            if identity_key is not None and identity_key[2] == file_identity(f.stat_result):
                # Else it has changed since the others looked.
                upload.read.content, upload.read.cacheable = content, upload.cacheable
            f.content, f.pieces = content, pieces
        except BaseException:
            upload.failed = True
            raise
        finally:
            self._end_read(upload.read)
            with self.shared.lock:
                upload.pending_objects = 0

    def _end_read(self, read: ReadInFlight) -> None:
        with self.shared.lock:
            identity_key = self._reads.pop(read, None)
            if identity_key is not None:
                self.shared.reads_in_flight.pop(identity_key, None)
        read.finished.set()
