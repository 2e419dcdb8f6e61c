"""What stores have in common whose objects are kept by burstd's program elsewhere: calls over a few connections."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy

from burstd.domain.plugins.stager import StagerError, StoreBusy, StoredObject, Unfinished
from burstd.transfer.protocol.bundle import bundle
from burstd.transfer.protocol.client import WireClient


def serve_program() -> bytes:
    """The program that answers there (burstd.transfer.protocol.server), for its Python to run."""
    return bundle("burstd.transfer.protocol.server:main")


class ServedStager(ABC):
    """The calls of a Stager that such a program answers. Connections are opened when they are needed."""

    def __init__(self, name: str, where: str, connections: int) -> None:
        """``where`` begins each message; at most so many ``connections`` at a time."""
        self.name = name
        self._where = where
        self._connections = connections
        self._links: list[WireClient] = []
        self._opening = threading.Lock()
        self._preparing = threading.Lock()
        self._prepared = False
        """Set back where a connection says that the other end is to be made ready again."""
        self._failed: tuple[float, StagerError] | None = None
        self._closed = threading.Event()

    @abstractmethod
    def _open(self) -> WireClient:
        """A new connection. Raises StagerError."""

    @abstractmethod
    def _prepare_now(self) -> None:
        """Makes the other end fit for connections. Raises StagerError."""

    def put(self, key: str, body: bytes | memoryview) -> None:
        """See Stager."""
        self._link().put(key, body)

    def get(self, key: str) -> bytes:
        """See Stager."""
        return self._link().get(key)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """See Stager."""
        return self._link().present(keys)

    def copy(self, source: str, target: str) -> None:
        """See Stager; a hard link."""
        self._link().copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """See Stager."""
        self._link().delete(keys)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """See Stager."""
        return self._link().objects(prefix)

    def unfinished(self) -> Iterator[Unfinished]:
        """See Stager: temporary files."""
        return self._link().unfinished()

    def abort(self, unfinished: Sequence[Unfinished]) -> None:
        """See Stager."""
        self._link().abort(unfinished)

    def free_bytes(self) -> int:
        """Of the file system there, for the user that the program runs as."""
        return self._link().free_bytes()

    def close(self) -> None:
        """Ends the connections; what is under way fails."""
        self._closed.set()
        with self._opening:
            links, self._links = self._links, []
        for link in links:
            link.close()

    def _link(self) -> WireClient:
        """The connection with the least to do; a new one while all are busy and there may be more."""
        self._prepare()
        with self._opening:
            if self._closed.is_set():
                raise StoreBusy(f"{self._where}: the store {self.name} was closed")
            self._links = [link for link in self._links if not link.broken]
            idle = min(self._links, key=lambda link: link.under_way, default=None)
            if idle is not None and (not idle.under_way or len(self._links) >= self._connections):
                return idle
            link = self._open()
            self._links.append(link)
            return link

    def _prepare(self) -> None:
        """Once, until it is set back. Those who wait for another's try share what it came to."""
        if self._prepared:
            return
        asked = time.monotonic()
        with self._preparing:
            if self._prepared:
                return
            if self._failed and self._failed[0] >= asked:
                raise copy(self._failed[1])
            try:
                self._prepare_now()
            except StagerError as error:
                self._failed = (time.monotonic(), error)
                raise
            self._prepared = True
