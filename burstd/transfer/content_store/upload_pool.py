"""Putting objects, several side by side, each only once however many transfers want it."""

from __future__ import annotations

import hashlib
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from burstd.domain.errors import BurstdError
from burstd.domain.plugins.stager import OBJECT_BYTES, Stager, StoreBusy
from burstd.transfer.content_store.index import ContentIndex, FileIdentity
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.content_store.packs import Pack
from burstd.transfer.trees.rate_limit import BandwidthLimits

_T = TypeVar("_T")
CANCEL_POLL_S = 0.5
"""How often whoever waits for another transfer looks whether he is cancelled."""
_MAX_BACKOFF_S = 30.0
STORE_BUSY_TIMEOUT_S = 180.0
"""How long a busy store is asked for the same thing: then others have their turn, and the delay is reported."""
UploadCallback = Callable[[str, bool, BaseException | None], None]
"""Called with the object's key, whether it was there already, and what went wrong."""


class TransferCancelled(BurstdError):
    """The transfer was cancelled. What it has put stays and is not sent again."""


class UploadProgress:
    """Counters of one transfer, for all threads. Sizes in bytes.

    ``bytes_walked`` is what is known of the source so far; ``bytes_done`` is what is in the store; of it,
    ``bytes_hits`` was there before or was sent by another transfer. ``bytes_sent`` is what this one put on the wire,
    the list of files included.
    """

    def __init__(self) -> None:
        self.bytes_walked = 0
        self.bytes_done = 0
        self.bytes_sent = 0
        self.bytes_hits = 0
        self.files = 0
        self.warnings: list[str] = []
        """What was left out of the transfer: twenty sentences at most."""
        self._lock = threading.Lock()

    def add_walked(self, files: int, size: int) -> None:
        """Adds what was found in the source."""
        self.files += files
        self.bytes_walked += size

    def add_done(self, size: int, *, hit: bool) -> None:
        """Adds bytes of files that are in the store."""
        with self._lock:
            self.bytes_done += size
            if hit:
                self.bytes_hits += size

    def add_sent(self, size: int) -> None:
        """Adds bytes that went over the wire."""
        with self._lock:
            self.bytes_sent += size

    def leave_out(self, sentence: str) -> None:
        """Reports something that is no data."""
        if len(self.warnings) < 20:
            self.warnings.append(sentence)

    def restart(self) -> None:
        """The source is read once more from its beginning; what was sent stays sent."""
        with self._lock:
            self.bytes_walked = self.bytes_done = self.bytes_hits = self.files = 0
            self.warnings.clear()


@dataclass(slots=True, eq=False)
class ReadInFlight:
    """A large file that a transfer is reading: others that come upon the same file wait for it."""

    finished: threading.Event = field(default_factory=threading.Event)
    content: bytes = b""
    """Its name in the index, where all went well."""
    cacheable: bool = False
    """Its identity tells of this content for good."""


@dataclass(slots=True)
class SharedUploadState:
    """What the transfers of a process to one store have in common. ``lock`` guards the mappings."""

    index: ContentIndex
    stager: Stager
    limits: BandwidthLimits
    busy_timeout_s: float = STORE_BUSY_TIMEOUT_S
    lock: threading.Lock = field(default_factory=threading.Lock)
    puts_in_flight: dict[tuple[str, str], threading.Event] = field(default_factory=dict)
    """Objects that are being put, by prefix and key."""
    packs_in_flight: dict[tuple[str, bytes], Pack] = field(default_factory=dict)
    """Small contents that lie in a pack which has not ended, by prefix and content."""
    packs_finished: int = 0
    reads_in_flight: dict[tuple[str, int, FileIdentity], ReadInFlight] = field(default_factory=dict)
    """Large files that are being read, by prefix. Whoever asks has the file open: the numbers are this file's."""
    spare_buffers: list[bytearray] = field(default_factory=list)

    def acquire_buffer(self) -> bytearray:
        """A buffer for an object."""
        with self.lock:
            return self.spare_buffers.pop() if self.spare_buffers else bytearray(OBJECT_BYTES)

    def release_buffer(self, buffer: bytearray) -> None:
        """It is used no more; a few are kept, because fresh memory costs as much as reading."""
        with self.lock:
            if len(self.spare_buffers) < 4:
                self.spare_buffers.append(buffer)


@dataclass(frozen=True, slots=True)
class _PutRequest:
    body: bytes | memoryview
    on_done: UploadCallback


class UploadPool:
    """The threads that upload for one transfer. ``pinned``: object -> size in bytes, of all that it needs.

    ``unverified``: of them, those that the index says are in the store, and that nobody has looked for yet.
    """

    def __init__(
        self, shared: SharedUploadState, prefix: str, uid: int, progress: UploadProgress, cancelled: threading.Event
    ) -> None:
        self.shared = shared
        self.prefix = prefix
        self.uid = uid
        self.progress = progress
        self.cancelled = cancelled
        self.pinned: dict[str, int] = {}
        self.unverified: set[str] = set()
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[_PutRequest | None] = queue.SimpleQueue()
        self._capacity = threading.Semaphore(shared.limits.parallel_uploads)
        self._in_flight = 0
        self._idle = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []

    @property
    def store(self) -> str:
        """The store's name."""
        return self.shared.stager.name

    def submit_put(self, body: bytes | memoryview, on_done: UploadCallback) -> None:
        """Queues an object; waits while all threads are busy, which bounds memory. Calls ``on_done`` in one."""
        while not self._capacity.acquire(timeout=CANCEL_POLL_S):
            self.raise_if_failed()
        with self._lock:
            self._in_flight += 1
            if self._in_flight > len(self._threads):
                thread = threading.Thread(target=self._run_thread, name="upload", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._requests.put(_PutRequest(body, on_done))

    def wait_idle(self) -> None:
        """Waits until nothing is under way."""
        with self._idle:
            self._idle.wait_for(lambda: not self._in_flight)

    def close(self) -> None:
        """Ends the threads, and lets go of the objects."""
        self.wait_idle()
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join()
        self.shared.index.unpin_objects(self.store, self.prefix, self.pinned)
        self.pinned.clear()

    def raise_if_failed(self) -> None:
        """Raises what a thread came upon, and TransferCancelled."""
        if self.error is not None:
            raise self.error
        if self.cancelled.is_set():
            raise TransferCancelled("the transfer was cancelled")

    def wait_for_event(self, event: threading.Event) -> None:
        """Waits for another transfer."""
        while not event.wait(CANCEL_POLL_S):
            self.raise_if_failed()

    def pin_known(self, keys: set[str]) -> set[str]:
        """Holds objects that the index knows; returns those that are not there after all."""
        fresh = [key for key in keys if key not in self.pinned]
        if not fresh:
            return set()
        self.shared.index.pin_objects(self.store, self.prefix, fresh)
        there = self.shared.index.present_objects(self.store, self.prefix, fresh)
        missing = set(fresh) - there.keys()
        self.shared.index.unpin_objects(self.store, self.prefix, missing)
        with self._lock:
            # A thread may have held one of them meanwhile.
            already_pinned = [key for key in there if key in self.pinned]
            self.pinned.update(there)
            self.unverified.update(there.keys() - set(already_pinned))
        self.shared.index.unpin_objects(self.store, self.prefix, already_pinned)
        return missing

    def verify_with_store(self) -> set[str]:
        """Asks the store once for all that was taken for present; what it lacks is forgotten, and returned."""
        unverified = sorted(self.unverified)
        if not unverified:
            return set()
        names = {object_key(self.prefix, key): key for key in unverified}
        there = self._retry_while_busy(lambda: self.shared.stager.present(list(names)))
        lost = {key for name, key in names.items() if there.get(name) != self.pinned[key]}
        self.unverified.clear()
        if lost:
            self.shared.index.forget_lost_objects(self.store, self.prefix, lost)
            self.shared.index.unpin_objects(self.store, self.prefix, lost)
            for key in lost:
                del self.pinned[key]
        return lost

    def _run_thread(self) -> None:
        while (request := self._requests.get()) is not None:
            key, there, error = "", False, None
            try:
                key, there = self._put_object(request.body)
            except BaseException as caught:  # noqa: BLE001 - raised again in the thread of the transfer
                error = caught
            try:
                request.on_done(key, there, error)
            except BaseException as caught:  # noqa: BLE001 - likewise
                error = error or caught
            finally:
                del request
                self._capacity.release()
                with self._idle:
                    self.error = self.error or error
                    self._in_flight -= 1
                    self._idle.notify_all()

    def _put_object(self, body: bytes | memoryview) -> tuple[str, bool]:
        self.raise_if_failed()
        index, store, prefix, size = self.shared.index, self.store, self.prefix, len(body)
        key = hashlib.sha256(body).hexdigest()
        index.pin_objects(store, prefix, [key])
        with self._lock:
            already_pinned = key in self.pinned
            self.pinned[key] = size
        if already_pinned:
            index.unpin_objects(store, prefix, [key])
        while True:
            with self.shared.lock:
                other = self.shared.puts_in_flight.get((prefix, key))
                if other is None:
                    mine = self.shared.puts_in_flight[prefix, key] = threading.Event()
                    break
            self.wait_for_event(other)
        try:
            if index.present_objects(store, prefix, [key]):
                if not already_pinned:
                    with self._lock:
                        self.unverified.add(key)
                return key, True
            name = object_key(prefix, key)
            # Put by a transfer that was killed before it was noted, or noted in an index that was lost.
            there = self._retry_while_busy(lambda: self.shared.stager.present([name])).get(name) == size
            if not there:
                index.record_put_begun(store, prefix, key, size)
                if not self.shared.limits.wait(self.uid, size, self.cancelled):
                    raise TransferCancelled("the transfer was cancelled")
                self._retry_while_busy(lambda: self.shared.stager.put(name, body))
                self.progress.add_sent(size)
            index.record_put(store, prefix, {key: size})
            return key, there
        finally:
            with self.shared.lock:
                del self.shared.puts_in_flight[prefix, key]
            mine.set()

    def _retry_while_busy(self, call: Callable[[], _T]) -> _T:
        """Asks a busy store again and again, until the transfer is cancelled. Raises StoreBusy after a while."""
        pause = 0.25
        end = time.monotonic() + self.shared.busy_timeout_s
        while True:
            self.raise_if_failed()
            try:
                return call()
            except StoreBusy as busy:
                pause = min(_MAX_BACKOFF_S, pause * 2)
                wait = max(busy.retry_after_s, pause * random.uniform(0.5, 1.0))  # noqa: S311
                if time.monotonic() + wait > end and not self.cancelled.is_set():
                    raise
                if self.cancelled.wait(wait):
                    raise TransferCancelled(f"the transfer was cancelled while the store was busy: {busy}") from None
