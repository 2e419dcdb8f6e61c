"""One pass over a source: its entries in order, each with the pieces of objects that hold its content."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.index import FileIdentity
from burstd.transfer.content_store.large_files import LargeFileUploader, SourceFile
from burstd.transfer.content_store.manifest import ManifestEntry
from burstd.transfer.content_store.packs import MAX_PACKED_FILE_BYTES, Pack
from burstd.transfer.content_store.upload_pool import UploadPool
from burstd.transfer.privsep.client import UserWorker, UserWorkerError, WalkBatch, printable
from burstd.transfer.privsep.descriptor_channel import FDS_AT_ONCE
from burstd.transfer.trees.ignore import IgnoreRow
from burstd.transfer.trees.untrusted_read import (
    FileChanged,
    file_identity,
    is_settled,
    now_ns,
    object_facts,
    read_object,
    read_small,
    readable_file_facts,
)
from burstd.transfer.trees.walk import fixed_part

_MAX_WAITING = 40_000
"""Entries that may wait for the end of a pack: about 30 MB."""
_SEEN_AT_ONCE = 10_000
_FETCHED_BYTES = 256 << 20
"""Objects are fetched together up to this size, a larger one alone: so much space is needed on the disk."""


CHANGES = "changes while it is read; see that nothing writes it while it is staged"


class RescanNeeded(Exception):
    """What another transfer was to send did not come: another pass sends it."""


class SourceScan:
    """Reads a source once and queues what is not in the store for upload. For one thread, once."""

    def __init__(
        self, upload_pool: UploadPool, worker: UserWorker, source: str, ignore: Sequence[IgnoreRow] = ()
    ) -> None:
        """``ignore``: what of a directory is left out."""
        self._ignore = ignore
        self.upload_pool = upload_pool
        self.shared = upload_pool.shared
        self.worker = worker
        self.source = source
        self.single = False
        self.count = 0
        self.size = 0
        self.keys: set[str] = set()
        """Objects that the entries name."""
        self._pack = Pack()
        self._queue: deque[SourceFile | ManifestEntry] = deque()
        self._newly_hashed: list[tuple[FileIdentity, bytes]] = []
        self._hard_links: dict[str, tuple[os.stat_result, int]] = {}
        self._base = ""
        self._large = LargeFileUploader(upload_pool, self._flush, self._look_up)
        self._lock = upload_pool.shared.lock

    def entries(self) -> Iterator[ManifestEntry]:
        """Yields entries in walk order. Raises UserWorkerError, StagerError kinds, TransferCancelled, RescanNeeded."""
        walk = self.worker.walk(self.source, self._ignore)
        try:
            while True:
                try:
                    rows = next(walk)
                except StopIteration as end:
                    self.single = bool(end.value)
                    break
                self.upload_pool.raise_if_failed()
                self._take_batch(rows)
                yield from self._ready_entries(wait=len(self._queue) > _MAX_WAITING)
            self._flush()
            yield from self._ready_entries(wait=True, all_of_them=True)
        finally:
            walk.close()
            self._close()

    def _ready_entries(self, *, wait: bool, all_of_them: bool = False) -> Iterator[ManifestEntry]:
        """Entries from the head of the queue, as far as their keys are known."""
        queue = self._queue
        if wait:
            self._flush()
        while queue:
            head = queue[0]
            if isinstance(head, SourceFile):
                if head.pieces is None and not self._resolved(head, wait=wait):
                    return
                wait = wait and (all_of_them or len(queue) > _MAX_WAITING // 2)
                entry = self._entry(head)
            else:
                entry = head
            queue.popleft()
            self.count += 1
            yield entry

    def _resolved(self, file: SourceFile, *, wait: bool) -> bool:
        if file.upload is not None:
            large = file.upload
            while large.pending_objects and wait:
                self.upload_pool.raise_if_failed()
                self.upload_pool.wait_idle()
            if large.pending_objects:
                return False
            if large.failed:
                self.upload_pool.raise_if_failed()
                raise RescanNeeded
            return True
        pack = file.pack
        assert pack is not None  # noqa: S101 - a small file has pieces or a pack
        if not pack.finished.is_set():
            if not wait:
                return False
            self.upload_pool.wait_for_event(pack.finished)
        if pack.error is not None:
            if file.owns_pack:
                raise pack.error
            raise RescanNeeded
        if not file.owns_pack and self.upload_pool.pin_known({pack.key}):
            raise RescanNeeded
        offset, length = pack.contents[file.content]
        file.pieces = (ObjectRange(pack.key, offset, length),)
        if not file.owns_pack:
            self.upload_pool.progress.add_done(length, hit=True)
        return True

    def _entry(self, file: SourceFile) -> ManifestEntry:
        facts = file.stat_result
        self.size += facts.st_size
        self.keys.update([p.key for p in file.pieces or () if p.key])
        digest = file.content.hex() if len(file.content) == 32 else ""
        return ManifestEntry(
            os.fsencode(file.path), "f", facts.st_mode & 0o7777, facts.st_mtime_ns, facts.st_size,
            pieces=file.pieces or (), digest=digest,
        )  # fmt: skip

    def _take_batch(self, message: WalkBatch) -> None:
        """One message of the walk: its directories and links as they are, its files together."""
        files: list[SourceFile] = []
        order: list[SourceFile | ManifestEntry] = []
        fds = iter(message.fds)
        for row in message.rows:
            try:
                item = self._parse_row(row, fds)
            except (TypeError, ValueError, LookupError, AttributeError):
                raise UserWorkerError("", 0, "the user worker reports entries that it cannot have seen") from None
            if item is None:
                continue
            order.append(item)
            if isinstance(item, SourceFile):
                files.append(item)
                if item.stat_result.st_nlink > 1:
                    self._hard_links[item.path] = (item.stat_result, item.stat_result.st_nlink - 1)
        self.upload_pool.progress.add_walked(len(files), sum(f.stat_result.st_size for f in files))
        self._find_contents(files)
        self._queue.extend(order)

    def _parse_row(self, row: list[Any], fds: Iterator[int]) -> SourceFile | ManifestEntry | None:
        kind, path = row[0], row[1]
        if path.startswith("/") or "/../" in f"/{path}/":
            raise ValueError(path)
        if kind == "f":
            fd = next(fds, -1)
            with self._named_errors(path):
                return SourceFile(path, readable_file_facts(fd), fd)
        if kind == "o":
            return SourceFile(path, object_facts(row), -1, object_row=row)
        if kind == "d":
            if not path:
                self._base = fixed_part(self.source)
            return ManifestEntry(os.fsencode(path), "d", int(row[2]), int(row[3]))
        if kind == "l":
            return ManifestEntry(os.fsencode(path), "l", int(row[3]), int(row[4]), link_target=os.fsencode(row[2]))
        if kind == "h":
            return self._hard_link(path, row[2])
        if kind == "e":
            raise self._error(path, int(row[2]), os.strerror(int(row[2])))
        self.upload_pool.progress.leave_out(f"{printable(path)} was left out: {row[2]}")
        return None

    def _hard_link(self, path: str, earlier: str) -> ManifestEntry:
        """The other names of a file are remembered until all have come."""
        facts, left = self._hard_links.pop(earlier)
        if left > 1:
            self._hard_links[earlier] = (facts, left - 1)
        return ManifestEntry(
            os.fsencode(path),
            "f",
            facts.st_mode & 0o7777,
            facts.st_mtime_ns,
            facts.st_size,
            hardlink_to=os.fsencode(earlier),
        )

    def _error(self, path: str, number: int, what: str) -> UserWorkerError:
        whole = f"{self._base}/{path}" if self._base and path else self.source
        return UserWorkerError(whole, number, f"{printable(whole)}: {what}")

    @contextmanager
    def _named_errors(self, path: str) -> Iterator[None]:
        """An error of a file is a UserWorkerError with its path."""
        try:
            yield
        except FileChanged:
            raise self._error(path, 0, CHANGES) from None
        except OSError as error:
            raise self._error(path, error.errno or 0, error.strerror or str(error)) from None

    def _find_contents(self, files: list[SourceFile]) -> None:
        """Finds, reads and packs what these files hold."""
        if not files:
            return
        index, upload_pool = self.shared.index, self.upload_pool
        known = index.known_contents(upload_pool.uid, [file_identity(f.stat_result) for f in files])
        for f in files:
            f.content = known.get((f.stat_result.st_dev, f.stat_result.st_ino), b"")
        self._look_up([f for f in files if f.content])
        for fresh in _read_groups([f for f in files if f.pieces is None]):
            with self._fetched([f for f in fresh if f.object_row]):
                for f in fresh:
                    if f.stat_result.st_size <= MAX_PACKED_FILE_BYTES:
                        self._read(f)
                # One that has grown meanwhile is no small file any more.
                self._pack_new(
                    [f for f in fresh if f.stat_result.st_size <= MAX_PACKED_FILE_BYTES and f.pieces is None]
                )
                for f in fresh:
                    if f.stat_result.st_size > MAX_PACKED_FILE_BYTES:
                        self._send_large(f)
        if len(self._newly_hashed) >= _SEEN_AT_ONCE:
            self._note_seen()

    @contextmanager
    def _fetched(self, objects: list[SourceFile]) -> Iterator[None]:
        """Their content is there to read, on this machine's disk."""
        self.upload_pool.raise_if_failed()
        fds = self.worker.fetch_objects(self.source, [f.object_row for f in objects]) if objects else []
        try:
            for f, fd in zip(objects, fds, strict=True):
                f.fd = fd
            yield
        finally:
            for fd in fds:
                os.close(fd)

    def _look_up(self, files: list[SourceFile]) -> None:
        """Fills in the pieces of files whose content lies in the store."""
        upload_pool = self.upload_pool
        while files:
            known = self.shared.index.content_pieces(
                upload_pool.store, upload_pool.prefix, list({f.content for f in files})
            )
            if not known:
                return
            missing = upload_pool.pin_known({p.key for pieces in known.values() for p in pieces if p.key})
            for f in files:
                pieces = known.get(f.content)
                if pieces is not None and not any(p.key in missing for p in pieces):
                    f.pieces = pieces
                    upload_pool.progress.add_done(f.stat_result.st_size, hit=True)
            if not missing:
                return
            files = [f for f in files if f.pieces is None and f.content in known]

    def _read(self, f: SourceFile) -> None:
        now = now_ns()
        with self._named_errors(f.path):
            f.data, f.stat_result = (
                (read_object(f.fd, f.stat_result), f.stat_result) if f.object_row else read_small(f.fd, f.stat_result)
            )
        if not f.data:
            f.pieces = ()
        f.content = hashlib.sha256(f.data).digest()
        if is_settled(f.stat_result, now):
            self._newly_hashed.append((file_identity(f.stat_result), f.content))

    def _pack_new(self, files: list[SourceFile]) -> None:
        """Packs what is neither in the store nor in anybody's pack.

        A content is in ``packs_in_flight`` until it is in the index; so that none slips through between the two looks,
        they are repeated where a pack has ended meanwhile.
        """
        full: list[Pack] = []
        while files:
            with self._lock:
                ended = self.shared.packs_finished
            self._look_up(files)
            files = [f for f in files if f.pieces is None]
            with self._lock:
                if ended != self.shared.packs_finished:
                    continue
                for f in files:
                    self._add_to_pack(f, full)
            break
        for pack in full:
            self._put_pack(pack)

    def _add_to_pack(self, f: SourceFile, full: list[Pack]) -> None:
        """Joins the pack that has this content, or adds it to ours. The lock is held."""
        content_key = (self.upload_pool.prefix, f.content)
        pack = self.shared.packs_in_flight.get(content_key)
        if pack is not None:
            f.pack, f.owns_pack = pack, pack is self._pack or pack in full
            if f.owns_pack:
                self.upload_pool.progress.add_done(len(f.data), hit=True)
        else:
            if not self._pack.has_room(len(f.data)):
                full.append(self._pack)
                self._pack = Pack()
            self._pack.add(f.content, f.data)
            self.shared.packs_in_flight[content_key] = f.pack = self._pack
        f.data = b""

    def _flush(self) -> None:
        """Whoever waits for another must leave no pack open that the other may be waiting for."""
        pack, self._pack = self._pack, Pack()
        if pack.contents:
            self._put_pack(pack)
        self._note_seen()

    def _put_pack(self, pack: Pack) -> None:
        upload_pool = self.upload_pool

        def ended(key: str, there: bool, error: BaseException | None) -> None:
            try:
                if error is None:
                    contents = {c: (ObjectRange(key, offset, length),) for c, (offset, length) in pack.contents.items()}
                    self.shared.index.add_contents(upload_pool.store, upload_pool.prefix, contents)
                    upload_pool.progress.add_done(pack.size, hit=there)
            except BaseException as caught:
                error = caught
                raise
            finally:
                self._end_pack(pack, key, error)

        try:
            upload_pool.submit_put(pack.take_body(), ended)
        except BaseException as error:
            self._end_pack(pack, "", error)
            raise

    def _end_pack(self, pack: Pack, key: str, error: BaseException | None) -> None:
        with self._lock:
            for content in pack.contents:
                self.shared.packs_in_flight.pop((self.upload_pool.prefix, content), None)
            self.shared.packs_finished += 1
        pack.finish(key, error)

    def _send_large(self, f: SourceFile) -> None:
        with self._named_errors(f.path):
            self._large.upload_file(f)

    def _note_seen(self) -> None:
        newly_hashed, self._newly_hashed = self._newly_hashed, []
        if newly_hashed:
            self.shared.index.record_contents(self.upload_pool.uid, newly_hashed)

    def _close(self) -> None:
        """At the end, however it came: nobody waits for this pass any more."""
        self._note_seen()
        pack, self._pack = self._pack, Pack()
        if pack.contents:
            self._end_pack(pack, "", RescanNeeded())
        self.upload_pool.wait_idle()
        self._large.close()


def _read_groups(files: list[SourceFile]) -> Iterator[list[SourceFile]]:
    """Files, whose descriptors are here, all at once; objects in groups that fit on the disk."""
    if not any(f.object_row for f in files):
        yield files
        return
    group: list[SourceFile] = []
    size = 0
    for f in files:
        if group and (size + f.stat_result.st_size > _FETCHED_BYTES or len(group) == FDS_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(f)
        size += f.stat_result.st_size
    if group:
        yield group
