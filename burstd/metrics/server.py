"""GET /metrics, over TCP. It answers from bytes that are there, and asks nothing of anybody."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from uvicorn.protocols.http.h11_impl import H11Protocol

from burstd.domain.errors import BurstdError

MAX_CONNECTIONS = 256
CONNECTION_S = 10.0
"""How long a connection may last, in seconds: one request, one answer."""
BETWEEN_REQUESTS_S = 0.003
"""A request is read so long after the one before. An answer takes a tenth of it; the deciding thread has the rest."""

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]


class MetricsAddressUnusable(BurstdError):
    """The address of [metrics] listen cannot be had."""


def listen(address: str) -> socket.socket:
    """A socket that listens on ``HOST:PORT``. Raises MetricsAddressUnusable."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, where = found[0]
        return socket.create_server(where[:2], family=family, backlog=MAX_CONNECTIONS)
    except (OSError, UnicodeError) as error:
        if isinstance(error, UnicodeError):
            why = "that is no name of a host"
        else:
            why = str(error.strerror) if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise MetricsAddressUnusable(
            f"cannot listen on {address} ([metrics] listen): {why}; 'ss -ltnp' shows who has which "
            "port, 'ip address' the addresses of this host"
        ) from None


class MetricsApp:
    """The ASGI application. ``body``: the text, compressed or not."""

    def __init__(self, body: Callable[[bool], bytes]) -> None:
        self._body = body

    async def __call__(self, scope: _Message, _receive: object, send: _Send) -> None:
        """Answers one request."""
        if scope["path"] != "/metrics":
            await _answer(send, 404, b"The metrics of burstd are at /metrics.\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"Only GET.\n", [(b"allow", b"GET, HEAD")])
        else:
            compress = _takes_gzip(scope["headers"])
            headers = [(b"content-encoding", b"gzip")] if compress else []
            kind = CONTENT_TYPE_PLAIN_0_0_4.encode()
            await _answer(send, 200, self._body(compress), headers, kind)


async def _answer(
    send: _Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    kind: bytes = b"text/plain; charset=utf-8",
) -> None:
    every = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": every})
    await send({"type": "http.response.body", "body": body})


def _takes_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    accepted = b",".join(value for name, value in headers if name == b"accept-encoding").lower()
    words = [word.replace(b" ", b"").split(b";") for word in accepted.split(b",")]
    return any(word[0] == b"gzip" and b"q=0" not in word[1:] for word in words)


def metrics_protocol() -> type[H11Protocol]:
    """A protocol class with a count of connections of its own, which end after a while whatever the client does."""
    open_connections: set[asyncio.BaseTransport] = set()
    turns = [0.0]
    """When the next request may be read, in the event loop's time."""

    class BoundedProtocol(H11Protocol):
        """HTTP/1.1."""

        end: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(open_connections) >= MAX_CONNECTIONS:
                transport.abort()
                return
            open_connections.add(transport)
            self.end = self.loop.call_later(CONNECTION_S, transport.abort)
            now = self.loop.time()
            turn = max(now, turns[0])
            turns[0] = turn + BETWEEN_REQUESTS_S
            if turn > now:
                transport.pause_reading()
                self.loop.call_at(turn, transport.resume_reading)

        def connection_lost(self, exc: Exception | None) -> None:
            open_connections.discard(self.transport)
            if self.end is not None:
                self.end.cancel()
            super().connection_lost(exc)

    return BoundedProtocol
