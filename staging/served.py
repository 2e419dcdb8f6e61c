"""What stores have in common whose objects are kept by burstd's program elsewhere: calls over a few connections."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import copy

from burstd.domain.plugins.stager import StagerError, StoreBusy, StoredObject, UnfinishedUpload
from burstd.transfer.protocol.bundle import build_zipapp
from burstd.transfer.protocol.client import ObjectServerClient


def server_zipapp() -> bytes:
    """The program that answers there (burstd.transfer.protocol.server), for its Python to run."""
    return build_zipapp("burstd.transfer.protocol.server:main")


class ServerStager(ABC):
    """The calls of a Stager that such a program answers. Connections are opened when they are needed."""

    def __init__(self, name: str, where: str, connections: int) -> None:
        """``where`` begins each message; at most so many ``connections`` at a time."""
        self.name = name
        self._where = where
        self._max_connections = connections
        self._clients: list[ObjectServerClient] = []
        self._open_lock = threading.Lock()
        self._prepare_lock = threading.Lock()
        self._prepared = False
        """Set back where a connection says that the other end is to be made ready again."""
        self._failed: tuple[float, StagerError] | None = None
        self._closed = threading.Event()

    @abstractmethod
    def _connect(self) -> ObjectServerClient:
        """A new connection. Raises StagerError."""

    @abstractmethod
    def _prepare_server(self) -> None:
        """Makes the other end fit for connections. Raises StagerError."""

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Writes an object."""
        self._client().put(key, body)

    def get(self, key: str) -> bytes:
        """Returns an object's content."""
        return self._client().get(key)

    def present(self, keys: Sequence[str]) -> Mapping[str, int]:
        """Returns the sizes of those that are there."""
        return self._client().present(keys)

    def copy(self, source: str, target: str) -> None:
        """Makes a hard link."""
        self._client().copy(source, target)

    def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; a missing one is no error."""
        self._client().delete(keys)

    def objects(self, prefix: str) -> Iterator[StoredObject]:
        """Lists the objects whose key begins so, page by page."""
        return self._client().objects(prefix)

    def unfinished(self) -> Iterator[UnfinishedUpload]:
        """Lists temporary files."""
        return self._client().unfinished()

    def abort(self, unfinished: Sequence[UnfinishedUpload]) -> None:
        """Removes unfinished puts; a missing one is no error."""
        self._client().abort(unfinished)

    def free_bytes(self) -> int:
        """Of the file system there, for the user that the program runs as."""
        return self._client().free_bytes()

    def close(self) -> None:
        """Ends the connections; what is under way fails."""
        self._closed.set()
        with self._open_lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()

    def _client(self) -> ObjectServerClient:
        """The connection with the least to do; a new one while all are busy and there may be more."""
        self._prepare()
        with self._open_lock:
            if self._closed.is_set():
                raise StoreBusy(f"{self._where}: the store {self.name} was closed")
            self._clients = [link for link in self._clients if not link.broken]
            idle = min(self._clients, key=lambda link: link.requests_in_flight, default=None)
            if idle is not None and (not idle.requests_in_flight or len(self._clients) >= self._max_connections):
                return idle
            client = self._connect()
            self._clients.append(client)
            return client

    def _prepare(self) -> None:
        """Once, until it is set back. Those who wait for another's try share what it came to."""
        if self._prepared:
            return
        asked = time.monotonic()
        with self._prepare_lock:
            if self._prepared:
                return
            if self._failed and self._failed[0] >= asked:
                raise copy(self._failed[1])
            try:
                self._prepare_server()
            except StagerError as error:
                self._failed = (time.monotonic(), error)
                raise
            self._prepared = True
