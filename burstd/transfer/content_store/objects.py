"""Objects of a store, fetched ahead of their use and verified before any byte of them is used."""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from burstd.domain.plugins.stager import StagerError
from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestDamaged, object_key

FETCH_THREADS = 4
MAX_CACHED_OBJECTS = 8
"""Objects in memory at most: some ahead, some behind, since small files of several packs may alternate."""


class ObjectDamaged(StagerError):
    """An object's content is not what its name says. ``key``: its SHA-256."""

    def __init__(self, key: str, where: str) -> None:
        super().__init__(f"{where} has an object whose content is not what was put there: {key}")
        self.key = key


class ObjectFetcher:
    """Objects under one prefix, by their digest. For one thread; ``get`` is called in several. Use with ``with``."""

    def __init__(self, get: Callable[[str], bytes], prefix: str, where: str) -> None:
        self._get = get
        self._prefix = prefix
        self._where = where
        self._threads = ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="fetch")
        self._cached: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._requested: deque[str] = deque()
        self._ahead: deque[Future[bytes]] = deque()
        self.verified: dict[str, int] = {}
        """Objects whose content was found to be what their names say, with their sizes in bytes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def request(self, number: int, keys: Sequence[str]) -> None:  # noqa: ARG002 - as ObjectSource
        """Has some of these fetched ahead."""
        self._requested.extend(keys)
        self._fetch_ahead()

    def arrivals(self, number: int, keys: Sequence[str]) -> Iterator[tuple[str, memoryview]]:  # noqa: ARG002 - as ObjectSource
        """Yields the requested objects, in the order of the requests. Raises ObjectDamaged, StagerError."""
        for key in keys:
            body = self._ahead.popleft().result()
            self._fetch_ahead()
            yield key, memoryview(body)

    def read_pieces(self, pieces: Iterable[ObjectRange]) -> Iterator[memoryview]:
        """The bytes of these pieces, in order. Raises as ``arrivals``; ManifestDamaged: a piece is in no object."""
        listed = list(pieces)
        keys = [piece.key for piece in listed]
        self.request(0, keys)
        for piece, (key, body) in zip(listed, self.arrivals(0, keys), strict=True):
            if not 0 <= piece.offset <= piece.offset + piece.length <= len(body):
                raise ManifestDamaged(f"a manifest wants more of the object {key} than there is")
            yield body[piece.offset : piece.offset + piece.length]

    def _fetch_ahead(self) -> None:
        while self._requested and len(self._ahead) < FETCH_THREADS:
            key = self._requested.popleft()
            fetched = self._cached.pop(key, None) or self._threads.submit(self._fetch, key)
            self._cached[key] = fetched
            self._ahead.append(fetched)
            while len(self._cached) > MAX_CACHED_OBJECTS:
                self._cached.popitem(last=False)

    def _fetch(self, key: str) -> bytes:
        body = self._get(object_key(self._prefix, key))
        if hashlib.sha256(body).hexdigest() != key:
            raise ObjectDamaged(key, self._where)
        self.verified[key] = len(body)
        return body
