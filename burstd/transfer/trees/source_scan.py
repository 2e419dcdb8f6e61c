"""One pass over a source: its entries in order, each with the pieces of objects that hold its content."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from burstd.domain.staging import Piece
from burstd.transfer.content_store.index import Identity
from burstd.transfer.content_store.large_files import File, LargeFiles
from burstd.transfer.content_store.manifest import Entry
from burstd.transfer.content_store.packs import SMALL_BYTES, Pack
from burstd.transfer.content_store.upload_pool import Lanes
from burstd.transfer.privsep.client import Hand, HandError, Rows, printable
from burstd.transfer.privsep.descriptor_channel import FDS_AT_ONCE
from burstd.transfer.trees.untrusted_read import (
    Changed,
    identity,
    now_ns,
    object_facts,
    read_object,
    read_small,
    readable_facts,
    settled,
)
from burstd.transfer.trees.walk import fixed_part

_WAITING = 40_000
"""Entries that may wait for the end of a pack: about 30 MB."""
_SEEN_AT_ONCE = 10_000
_FETCHED_BYTES = 256 << 20
"""Objects are fetched together up to this size, a larger one alone: so much room is needed on the disk."""


CHANGES = "changes while it is read; see that nothing writes it while it is staged"


class Again(Exception):
    """What another transfer was to send did not come: another pass sends it."""


class Pass:
    """Reads a source once and hands what is not in the store to the lanes. For one thread, once."""

    def __init__(self, lanes: Lanes, hand: Hand, source: str) -> None:
        self.lanes = lanes
        self.shared = lanes.shared
        self.hand = hand
        self.source = source
        self.single = False
        self.count = 0
        self.size = 0
        self.keys: set[str] = set()
        """Objects that the entries name."""
        self._pack = Pack()
        self._queue: deque[File | Entry] = deque()
        self._saw: list[tuple[Identity, bytes]] = []
        self._hard: dict[str, tuple[os.stat_result, int]] = {}
        self._base = ""
        self._large = LargeFiles(lanes, self._flush, self._look_up)
        self._lock = lanes.shared.lock

    def entries(self) -> Iterator[Entry]:
        """The entries, in the order of the walk. Raises HandError, StagerError kinds, TransferCancelled, Again."""
        walk = self.hand.walk(self.source)
        try:
            while True:
                try:
                    rows = next(walk)
                except StopIteration as end:
                    self.single = bool(end.value)
                    break
                self.lanes.check()
                self._take(rows)
                yield from self._ready(wait=len(self._queue) > _WAITING)
            self._flush()
            yield from self._ready(wait=True, all_of_them=True)
        finally:
            walk.close()
            self._drop()

    def _ready(self, *, wait: bool, all_of_them: bool = False) -> Iterator[Entry]:
        """Entries from the head of the queue, as far as their keys are known."""
        queue = self._queue
        if wait:
            self._flush()
        while queue:
            head = queue[0]
            if isinstance(head, File):
                if head.pieces is None and not self._resolved(head, wait=wait):
                    return
                wait = wait and (all_of_them or len(queue) > _WAITING // 2)
                entry = self._entry(head)
            else:
                entry = head
            queue.popleft()
            self.count += 1
            yield entry

    def _resolved(self, file: File, *, wait: bool) -> bool:
        if file.large is not None:
            large = file.large
            while large.left and wait:
                self.lanes.check()
                self.lanes.settle()
            if large.left:
                return False
            if large.failed:
                self.lanes.check()
                raise Again
            return True
        pack = file.pack
        assert pack is not None  # noqa: S101 - a small file has pieces or a pack
        if not pack.ended.is_set():
            if not wait:
                return False
            self.lanes.wait_for(pack.ended)
        if pack.error is not None:
            if file.ours:
                raise pack.error
            raise Again
        if not file.ours and self.lanes.rely_on({pack.key}):
            raise Again
        offset, length = pack.contents[file.content]
        file.pieces = (Piece(pack.key, offset, length),)
        if not file.ours:
            self.lanes.progress.done(length, hit=True)
        return True

    def _entry(self, file: File) -> Entry:
        facts = file.facts
        self.size += facts.st_size
        self.keys.update([p.key for p in file.pieces or () if p.key])
        digest = file.content.hex() if len(file.content) == 32 else ""
        return Entry(
            os.fsencode(file.path), "f", facts.st_mode & 0o7777, facts.st_mtime_ns, facts.st_size,
            pieces=file.pieces or (), digest=digest,
        )  # fmt: skip

    def _take(self, message: Rows) -> None:
        """One message of the walk: its directories and links as they are, its files together."""
        files: list[File] = []
        order: list[File | Entry] = []
        fds = iter(message.fds)
        for row in message.rows:
            try:
                item = self._row(row, fds)
            except (TypeError, ValueError, LookupError, AttributeError):
                raise HandError("", 0, "the hand tells of entries that it cannot have seen") from None
            if item is None:
                continue
            order.append(item)
            if isinstance(item, File):
                files.append(item)
                if item.facts.st_nlink > 1:
                    self._hard[item.path] = (item.facts, item.facts.st_nlink - 1)
        self.lanes.progress.walked(len(files), sum(f.facts.st_size for f in files))
        self._contents(files)
        self._queue.extend(order)

    def _row(self, row: list[Any], fds: Iterator[int]) -> File | Entry | None:
        kind, path = row[0], row[1]
        if path.startswith("/") or "/../" in f"/{path}/":
            raise ValueError(path)
        if kind == "f":
            fd = next(fds, -1)
            try:
                return File(path, readable_facts(fd), fd)
            except OSError as error:
                raise self._error(path, error.errno or 0, error.strerror or str(error)) from None
        if kind == "o":
            return File(path, object_facts(row), -1, row=row)
        if kind == "d":
            if not path:
                self._base = fixed_part(self.source)
            return Entry(os.fsencode(path), "d", int(row[2]), int(row[3]))
        if kind == "l":
            return Entry(os.fsencode(path), "l", int(row[3]), int(row[4]), target=os.fsencode(row[2]))
        if kind == "h":
            return self._hard_link(path, row[2])
        if kind == "e":
            raise self._error(path, int(row[2]), os.strerror(int(row[2])))
        self.lanes.progress.leave_out(f"{printable(path)} was left out: {row[2]}")
        return None

    def _hard_link(self, path: str, earlier: str) -> Entry:
        """The other names of a file are remembered until all have come."""
        facts, left = self._hard.pop(earlier)
        if left > 1:
            self._hard[earlier] = (facts, left - 1)
        return Entry(
            os.fsencode(path), "f", facts.st_mode & 0o7777, facts.st_mtime_ns, facts.st_size, hard=os.fsencode(earlier)
        )

    def _error(self, path: str, number: int, what: str) -> HandError:
        whole = f"{self._base}/{path}" if self._base and path else self.source
        return HandError(whole, number, f"{printable(whole)}: {what}")

    def _contents(self, files: list[File]) -> None:
        """Finds, reads and packs what these files hold."""
        if not files:
            return
        index, lanes = self.shared.index, self.lanes
        known = index.seen(lanes.uid, [identity(f.facts) for f in files])
        for f in files:
            f.content = known.get((f.facts.st_dev, f.facts.st_ino), b"")
        self._look_up([f for f in files if f.content])
        for fresh in _together([f for f in files if f.pieces is None]):
            with self._fetched([f for f in fresh if f.row]):
                for f in fresh:
                    if f.facts.st_size <= SMALL_BYTES:
                        self._read(f)
                # One that has grown meanwhile is no small file any more.
                self._pack_all([f for f in fresh if f.facts.st_size <= SMALL_BYTES and f.pieces is None])
                for f in fresh:
                    if f.facts.st_size > SMALL_BYTES:
                        self._send_large(f)
        if len(self._saw) >= _SEEN_AT_ONCE:
            self._note_seen()

    @contextmanager
    def _fetched(self, objects: list[File]) -> Iterator[None]:
        """Their content is there to read, on this machine's disk."""
        self.lanes.check()
        fds = self.hand.fetch(self.source, [f.row for f in objects]) if objects else []
        try:
            for f, fd in zip(objects, fds, strict=True):
                f.fd = fd
            yield
        finally:
            for fd in fds:
                os.close(fd)

    def _look_up(self, files: list[File]) -> None:
        """Fills in the pieces of files whose content lies in the store."""
        lanes = self.lanes
        while files:
            known = self.shared.index.pieces(lanes.store, lanes.prefix, list({f.content for f in files}))
            if not known:
                return
            missing = lanes.rely_on({p.key for pieces in known.values() for p in pieces if p.key})
            for f in files:
                pieces = known.get(f.content)
                if pieces is not None and not any(p.key in missing for p in pieces):
                    f.pieces = pieces
                    lanes.progress.done(f.facts.st_size, hit=True)
            if not missing:
                return
            files = [f for f in files if f.pieces is None and f.content in known]

    def _read(self, f: File) -> None:
        now = now_ns()
        try:
            f.data, f.facts = (read_object(f.fd, f.facts), f.facts) if f.row else read_small(f.fd, f.facts)
        except Changed:
            raise self._error(f.path, 0, CHANGES) from None
        except OSError as error:
            raise self._error(f.path, error.errno or 0, error.strerror or str(error)) from None
        if not f.data:
            f.pieces = ()
        f.content = hashlib.sha256(f.data).digest()
        if settled(f.facts, now):
            self._saw.append((identity(f.facts), f.content))

    def _pack_all(self, files: list[File]) -> None:
        """Packs what is neither in the store nor in anybody's pack.

        A content is in ``packing`` until it is in the index; so that none slips through between the two looks, they are
        repeated where a pack has ended meanwhile.
        """
        full: list[Pack] = []
        while files:
            with self._lock:
                ended = self.shared.packs_ended
            self._look_up(files)
            files = [f for f in files if f.pieces is None]
            with self._lock:
                if ended != self.shared.packs_ended:
                    continue
                for f in files:
                    self._place(f, full)
            break
        for pack in full:
            self._put_pack(pack)

    def _place(self, f: File, full: list[Pack]) -> None:
        """Joins the pack that has this content, or adds it to ours. The lock is held."""
        name = (self.lanes.prefix, f.content)
        pack = self.shared.packing.get(name)
        if pack is not None:
            f.pack, f.ours = pack, pack is self._pack or pack in full
            if f.ours:
                self.lanes.progress.done(len(f.data), hit=True)
        else:
            if not self._pack.has_room(len(f.data)):
                full.append(self._pack)
                self._pack = Pack()
            self._pack.add(f.content, f.data)
            self.shared.packing[name] = f.pack = self._pack
        f.data = b""

    def _flush(self) -> None:
        """Whoever waits for another must leave no pack open that the other may be waiting for."""
        pack, self._pack = self._pack, Pack()
        if pack.contents:
            self._put_pack(pack)
        self._note_seen()

    def _put_pack(self, pack: Pack) -> None:
        lanes = self.lanes

        def ended(key: str, there: bool, error: BaseException | None) -> None:
            try:
                if error is None:
                    contents = {c: (Piece(key, offset, length),) for c, (offset, length) in pack.contents.items()}
                    self.shared.index.add_contents(lanes.store, lanes.prefix, contents)
                    lanes.progress.done(pack.size, hit=there)
            except BaseException as caught:
                error = caught
                raise
            finally:
                self._end_pack(pack, key, error)

        try:
            lanes.put(pack.body(), ended)
        except BaseException as error:
            self._end_pack(pack, "", error)
            raise

    def _end_pack(self, pack: Pack, key: str, error: BaseException | None) -> None:
        with self._lock:
            for content in pack.contents:
                self.shared.packing.pop((self.lanes.prefix, content), None)
            self.shared.packs_ended += 1
        pack.end(key, error)

    def _send_large(self, f: File) -> None:
        try:
            self._large.send(f)
        except Changed:
            raise self._error(f.path, 0, CHANGES) from None
        except OSError as error:
            raise self._error(f.path, error.errno or 0, error.strerror or str(error)) from None

    def _note_seen(self) -> None:
        saw, self._saw = self._saw, []
        if saw:
            self.shared.index.saw(self.lanes.uid, saw)

    def _drop(self) -> None:
        """At the end, however it came: nobody waits for this pass any more."""
        self._note_seen()
        pack, self._pack = self._pack, Pack()
        if pack.contents:
            self._end_pack(pack, "", Again())
        self.lanes.settle()
        self._large.close()


def _together(files: list[File]) -> Iterator[list[File]]:
    """Files, whose descriptors are here, all at once; objects in groups that have room on the disk."""
    if not any(f.row for f in files):
        yield files
        return
    group: list[File] = []
    size = 0
    for f in files:
        if group and (size + f.facts.st_size > _FETCHED_BYTES or len(group) == FDS_AT_ONCE):
            yield group
            group, size = [], 0
        group.append(f)
        size += f.facts.st_size
    if group:
        yield group
