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
from burstd.transfer.content_store.index import Identity, Index
from burstd.transfer.content_store.manifest import object_key
from burstd.transfer.content_store.packs import Pack
from burstd.transfer.trees.progress import Progress
from burstd.transfer.trees.rate_limit import Limits

_T = TypeVar("_T")
LOOK_S = 0.5
"""How often whoever waits for another transfer looks whether he is cancelled."""
_BACKOFF_S = 30.0
PATIENCE_S = 180.0
"""How long a busy store is asked for the same thing: then others have their turn, and people are told."""
Ended = Callable[[str, bool, BaseException | None], None]
"""Called with the object's key, whether it was there already, and what went wrong."""


class TransferCancelled(BurstdError):
    """It was told to stop. What it has put stays and is not sent again."""


@dataclass(slots=True, eq=False)
class Reading:
    """A large file that a transfer is reading: others that come upon the same file wait for it."""

    ended: threading.Event = field(default_factory=threading.Event)
    content: bytes = b""
    """Its name in the index, where all went well."""
    whole: bool = False
    """Its identity tells of this content for good."""


@dataclass(slots=True)
class Shared:
    """What the transfers of a process to one store have in common. ``lock`` guards the mappings."""

    index: Index
    stager: Stager
    limits: Limits
    patience_s: float = PATIENCE_S
    lock: threading.Lock = field(default_factory=threading.Lock)
    flights: dict[tuple[str, str], threading.Event] = field(default_factory=dict)
    """Objects that are being put, by prefix and key."""
    packing: dict[tuple[str, bytes], Pack] = field(default_factory=dict)
    """Small contents that lie in a pack which has not ended, by prefix and content."""
    packs_ended: int = 0
    reading: dict[tuple[str, Identity], Reading] = field(default_factory=dict)
    """Large files that are being read, by prefix. Whoever asks has the file open: the numbers are this file's."""
    spare: list[bytearray] = field(default_factory=list)

    def buffer(self) -> bytearray:
        """Room for an object."""
        with self.lock:
            return self.spare.pop() if self.spare else bytearray(OBJECT_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """It is used no more; a few are kept, because fresh memory costs as much as reading."""
        with self.lock:
            if len(self.spare) < 4:
                self.spare.append(buffer)


@dataclass(frozen=True, slots=True)
class _Order:
    body: bytes | memoryview
    ended: Ended


class Lanes:
    """The lanes of one transfer. ``keys``: object -> size in bytes, of all that it relies on, held in the index.

    ``trusted``: of them, those that the index says are in the store, and that nobody has looked for yet.
    """

    def __init__(self, shared: Shared, prefix: str, uid: int, progress: Progress, cancelled: threading.Event) -> None:
        self.shared = shared
        self.prefix = prefix
        self.uid = uid
        self.progress = progress
        self.cancelled = cancelled
        self.keys: dict[str, int] = {}
        self.trusted: set[str] = set()
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(shared.limits.lanes)
        self._under_way = 0
        self._idle = threading.Condition(self._lock)
        self._threads: list[threading.Thread] = []

    @property
    def store(self) -> str:
        """The store's name."""
        return self.shared.stager.name

    def put(self, body: bytes | memoryview, ended: Ended) -> None:
        """Hands an object over; waits while all lanes are busy, which bounds memory. ``ended`` is called in a lane."""
        while not self._room.acquire(timeout=LOOK_S):
            self.check()
        with self._lock:
            self._under_way += 1
            if self._under_way > len(self._threads):
                thread = threading.Thread(target=self._serve, name="lane", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._orders.put(_Order(body, ended))

    def settle(self) -> None:
        """Waits until nothing is under way."""
        with self._idle:
            self._idle.wait_for(lambda: not self._under_way)

    def close(self) -> None:
        """Ends the lanes, and lets go of the objects."""
        self.settle()
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()
        self.shared.index.release(self.store, self.prefix, self.keys)
        self.keys.clear()

    def check(self) -> None:
        """Raises what a lane came upon, and TransferCancelled."""
        if self.error is not None:
            raise self.error
        if self.cancelled.is_set():
            raise TransferCancelled("the transfer was cancelled")

    def wait_for(self, event: threading.Event) -> None:
        """Waits for another transfer."""
        while not event.wait(LOOK_S):
            self.check()

    def rely_on(self, keys: set[str]) -> set[str]:
        """Holds objects that the index knows; returns those that are not there after all."""
        fresh = [key for key in keys if key not in self.keys]
        if not fresh:
            return set()
        self.shared.index.hold(self.store, self.prefix, fresh)
        there = self.shared.index.there(self.store, self.prefix, fresh)
        missing = set(fresh) - there.keys()
        self.shared.index.release(self.store, self.prefix, missing)
        with self._lock:
            # A lane may have held one of them meanwhile.
            twice = [key for key in there if key in self.keys]
            self.keys.update(there)
            self.trusted.update(there.keys() - set(twice))
        self.shared.index.release(self.store, self.prefix, twice)
        return missing

    def lost(self) -> set[str]:
        """Asks the store once for all that was taken on trust; what it lacks is forgotten, and returned."""
        trusted = sorted(self.trusted)
        if not trusted:
            return set()
        names = {object_key(self.prefix, key): key for key in trusted}
        there = self._patiently(lambda: self.shared.stager.present(list(names)))
        lost = {key for name, key in names.items() if there.get(name) != self.keys[key]}
        self.trusted.clear()
        if lost:
            self.shared.index.forget_keys(self.store, self.prefix, lost)
            self.shared.index.release(self.store, self.prefix, lost)
            for key in lost:
                del self.keys[key]
        return lost

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            key, there, error = "", False, None
            try:
                key, there = self._put(order.body)
            except BaseException as caught:  # noqa: BLE001 - raised again in the thread of the transfer
                error = caught
            try:
                order.ended(key, there, error)
            except BaseException as caught:  # noqa: BLE001 - likewise
                error = error or caught
            finally:
                del order
                self._room.release()
                with self._idle:
                    self.error = self.error or error
                    self._under_way -= 1
                    self._idle.notify_all()

    def _put(self, body: bytes | memoryview) -> tuple[str, bool]:
        self.check()
        index, store, prefix, size = self.shared.index, self.store, self.prefix, len(body)
        key = hashlib.sha256(body).hexdigest()
        index.hold(store, prefix, [key])
        with self._lock:
            twice = key in self.keys
            self.keys[key] = size
        if twice:
            index.release(store, prefix, [key])
        while True:
            with self.shared.lock:
                other = self.shared.flights.get((prefix, key))
                if other is None:
                    mine = self.shared.flights[prefix, key] = threading.Event()
                    break
            self.wait_for(other)
        try:
            if index.there(store, prefix, [key]):
                if not twice:
                    with self._lock:
                        self.trusted.add(key)
                return key, True
            name = object_key(prefix, key)
            # Put by a transfer that was killed before it was noted, or noted in an index that was lost.
            there = self._patiently(lambda: self.shared.stager.present([name])).get(name) == size
            if not there:
                index.sending(store, prefix, key, size)
                if not self.shared.limits.wait(self.uid, size, self.cancelled):
                    raise TransferCancelled("the transfer was cancelled")
                self._patiently(lambda: self.shared.stager.put(name, body))
                self.progress.sent(size)
            index.put(store, prefix, {key: size})
            return key, there
        finally:
            with self.shared.lock:
                del self.shared.flights[prefix, key]
            mine.set()

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Asks a busy store again and again, until the transfer is cancelled. Raises StoreBusy after a while."""
        pause = 0.25
        end = time.monotonic() + self.shared.patience_s
        while True:
            self.check()
            try:
                return call()
            except StoreBusy as busy:
                pause = min(_BACKOFF_S, pause * 2)
                wait = max(busy.retry_after_s, pause * random.uniform(0.5, 1.0))  # noqa: S311
                if time.monotonic() + wait > end and not self.cancelled.is_set():
                    raise
                if self.cancelled.wait(wait):
                    raise TransferCancelled(f"the transfer was cancelled while the store was busy: {busy}") from None
