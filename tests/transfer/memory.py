"""A store in memory, which counts what it is asked."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from burstd.domain.plugins.stager import (
    OBJECT_BYTES,
    NodeAccess,
    NoSuchObject,
    StoredObject,
    UnfinishedUpload,
    object_too_large,
)


class MemoryStager:
    """``before_put`` is called with the key before each put: a test waits or raises in it."""

    def __init__(self, name: str = "memory", before_put: Callable[[str], None] | None = None) -> None:
        self.name = name
        self.stored: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.bytes_put = 0
        self.before_put = before_put
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes | memoryview) -> None:
        assert len(body) <= OBJECT_BYTES
        if self.before_put is not None:
            self.before_put(key)
        with self._lock:
            self.calls["put"] += 1
            self.bytes_put += len(body)
            self.stored[key] = bytes(body)

    def get(self, key: str) -> bytes:
        try:
            body = self.stored[key]
        except KeyError:
            raise NoSuchObject(key) from None
        if len(body) > OBJECT_BYTES:
            raise object_too_large(key)
        return body

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        with self._lock:
            self.calls["present"] += 1
            return {key: len(self.stored[key]) for key in keys if key in self.stored}

    def copy(self, source: str, target: str) -> None:
        self.stored[target] = self.get(source)

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self.stored.pop(key, None)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        for key, body in sorted(self.stored.items()):
            if key.startswith(prefix):
                yield StoredObject(key, len(body), time.time())

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        return iter(())

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:  # noqa: ARG002
        return

    def free_bytes(self) -> int | None:
        return None

    def node_access(self) -> NodeAccess:
        return NodeAccess("http")

    def sign(self, method: Literal["GET", "PUT"], keys: Sequence[str]) -> Mapping[str, str]:  # noqa: ARG002
        return {key: f"memory:{key}" for key in keys}

    def close(self) -> None:
        self.stored.clear()
