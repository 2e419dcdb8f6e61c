"""What a stager's contract is played in: a store that the tests have to themselves, and a line to it that breaks."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from burstd.domain.plugins.stager import Stager
from burstd.transfer.protocol.transports import ObjectTransport, open_transport

CLUSTER = "ours"
OTHER_CLUSTER = "ours-too"
"""Another cluster in the same store, whose name begins as ours does."""


class StoreWorld:
    """A store for the tests, empty at first; each test leaves it so."""

    def stager(self, cluster: str) -> Stager:
        """A new one for this store."""
        raise NotImplementedError

    def stagers_refused(self) -> Mapping[str, tuple[Stager, str]]:
        """Stagers whose settings are wrong in a way each (a key, a missing bucket), and the secret in them."""
        raise NotImplementedError

    def begin_put(self, key: str) -> bool:
        """Begins a put of our cluster that never ends, as an id of ``unfinished``; False: the store keeps none such."""
        raise NotImplementedError


class ProxiedStoreWorld(StoreWorld):
    """A store at an address."""

    address: tuple[str, int]
    """Host and port."""
    timeout_s: float
    """Of the stagers of ``through``."""

    def stager_through(self, proxy: FaultyProxy) -> Stager:
        """A stager of our cluster that reaches the store by this line, and gives up within ``timeout_s``."""
        raise NotImplementedError


@contextmanager
def node_transport(stager: Stager) -> Iterator[ObjectTransport]:
    """What an agent on a node has of the store, its questions and answers as they go over the line."""

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        if "sign" in question:
            return {"urls": dict(stager.sign(question["sign"]["method"], question["sign"]["keys"]))}
        return {"present": dict(stager.present(question["present"]))}

    reach = stager.node_access()
    transport = open_transport(json.loads(json.dumps({"kind": reach.kind, "facts": dict(reach.facts)})), ask)
    try:
        yield transport
    finally:
        transport.close()


@dataclass(slots=True)
class _ProxiedConnection:
    """One connection's two ends."""

    near: socket.socket
    far: socket.socket

    def close(self) -> None:
        for end in (self.near, self.far):
            # Closing alone would not wake a thread that reads.
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class FaultyProxy:
    """A TCP proxy on a port of its own of 127.0.0.1, that can be cut. Use it with ``with``."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections: list[_ProxiedConnection] = []
        self._cut_after: int | None = None
        self._silent = False
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.accept_again()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def cut(self) -> None:
        """Breaks all connections and refuses new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections, self._connections = self._connections, []
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in connections:
            connection.close()

    def cut_after(self, count: int) -> None:
        """From now on each new connection breaks once so many bytes have gone to the store over it."""
        self.cut()
        self._cut_after = count
        self.accept_again()

    def accept_again(self) -> None:
        """Takes connections again, at the same port."""
        self._silent = False
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._run(self._accept, listener)

    def go_silent(self) -> None:
        """From now on new connections are taken, and nothing comes of them; until ``mend``."""
        self.cut()
        self.accept_again()
        self._silent = True

    def stop_cutting(self) -> None:
        """No new connection breaks any more."""
        self._cut_after = None

    def _run(self, what: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._address, 10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            connection = _ProxiedConnection(near, far)
            with self._lock:
                if self._listener is not listener:
                    connection.close()
                    return
                self._connections.append(connection)
            if self._silent:
                continue
            self._run(self._copy_bytes, connection, near, far, self._cut_after)
            self._run(self._copy_bytes, connection, far, near, None)

    def _copy_bytes(
        self, connection: _ProxiedConnection, source: socket.socket, target: socket.socket, left: int | None
    ) -> None:
        with suppress(OSError):
            while part := source.recv(1 << 16 if left is None else min(1 << 16, left)):
                target.sendall(part)
                if left is not None:
                    left -= len(part)
                    if not left:
                        break
        connection.close()
