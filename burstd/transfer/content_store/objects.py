"""Objects of a store, fetched ahead of their use and verified before any byte of them is used."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
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
        self.verified: dict[str, int] = {}
        """Objects whose content was found to be what their names say, with their sizes in bytes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def read_pieces(self, pieces: Iterable[ObjectRange]) -> Iterator[tuple[ObjectRange, memoryview]]:
        """The bytes of these pieces, in order; an empty view for a hole.

        Raises ObjectDamaged, StagerError, and ManifestDamaged where a piece is no part of its object.
        """
        listed = list(pieces)
        ahead = 0
        needed: Counter[str] = Counter()
        """Keys of the pieces from the present one up to ``ahead``."""
        for piece in listed:
            while ahead < len(listed):
                key = listed[ahead].key
                if key and key not in needed and len(needed) == FETCH_THREADS:
                    break
                if key:
                    self._submit_fetch(key)
                    needed[key] += 1
                ahead += 1
            if not piece.key:
                yield piece, memoryview(b"")
                continue
            body = self._submit_fetch(piece.key).result()
            needed[piece.key] -= 1
            if not needed[piece.key]:
                del needed[piece.key]
            if not 0 <= piece.offset <= piece.offset + piece.length <= len(body):
                raise ManifestDamaged(f"a manifest wants more of the object {piece.key} than there is")
            yield piece, memoryview(body)[piece.offset : piece.offset + piece.length]

    def _submit_fetch(self, key: str) -> Future[bytes]:
        cached = self._cached.get(key)
        if cached is None:
            while len(self._cached) >= MAX_CACHED_OBJECTS:
                self._cached.popitem(last=False)
            cached = self._cached[key] = self._threads.submit(self._fetch, key)
        else:
            self._cached.move_to_end(key)
        return cached

    def _fetch(self, key: str) -> bytes:
        body = self._get(object_key(self._prefix, key))
        if hashlib.sha256(body).hexdigest() != key:
            raise ObjectDamaged(key, self._where)
        self.verified[key] = len(body)
        return body
