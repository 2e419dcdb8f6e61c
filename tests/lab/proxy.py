"""Stands between a client and a lab's APIs: counts what is asked, and does wrong what it was ordered to, once.

The client's side is loopback of the network that this process is in, with one port for each API; the other side may be
in the network of a lab. What the APIs say of their own addresses is rewritten, so that a client that was given one of
the proxy's addresses speaks to no other place.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

from tests.node.conftest import on_network

_PATIENCE_S = 120.0
_PIECE = 1 << 16
_OWN = ("connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding", "server")
"""Headers that are of one hop only, or that no test wants."""


@dataclass(frozen=True)
class Api:
    """Where one listens. ``tls``: how its certificate is verified; None: it speaks plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """Without a path."""
        return f"{'http' if self.tls is None else 'https'}://{self.host}:{self.port}"

    def connect(self) -> HTTPConnection:
        """A connection of its own for each request: nothing is sent again behind the tests' back."""
        if self.tls is None:
            return HTTPConnection(self.host, self.port, timeout=_PATIENCE_S)
        return HTTPSConnection(self.host, self.port, timeout=_PATIENCE_S, context=self.tls)


@dataclass(frozen=True)
class Asked:
    """A request."""

    api: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is answered. ``stream``: the pieces of a body without an end that is known."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: Iterator[bytes] | None = None


Forward = Callable[[Asked], Answer]
Act = Callable[[Asked, Forward], Answer | None]
"""What is done with a request; None: the connection ends without an answer."""


def respond(words: Any, status: int = 200, **headers: str) -> Act:
    """It is not passed on. ``words``: JSON; None: no body."""
    said = {name.replace("_", "-"): value for name, value in headers.items()}
    if words is None:
        return lambda _asked, _forward: Answer(status, b"", said)
    return lambda _asked, _forward: Answer(
        status, json.dumps(words).encode(), {"Content-Type": "application/json", **said}
    )


def drop_connection(_asked: Asked, _forward: Forward) -> None:
    """It is not passed on, and not answered."""


def lose_answer(asked: Asked, forward: Forward) -> None:
    """It is carried out; nobody hears the answer."""
    forward(asked)


def delay_until(until: threading.Event, done: threading.Event) -> Act:
    """It is passed on only then, and its answer is for whoever still listens; ``done``: there is one."""

    def act(asked: Asked, forward: Forward) -> Answer:
        until.wait(_PATIENCE_S)
        answer = forward(asked)
        done.set()
        return answer

    return act


def muffled(until: threading.Event) -> Act:
    """It is passed on at once; of the stream that comes of it nothing is heard until then."""

    def act(asked: Asked, forward: Forward) -> Answer:
        answer = forward(asked)

        def pieces() -> Iterator[bytes]:
            until.wait(_PATIENCE_S)
            yield from answer.stream or ()

        return replace(answer, stream=pieces())

    return act


def changed(change: Callable[[Any], None]) -> Act:
    """It is passed on with other words: ``change`` works on its JSON."""

    def act(asked: Asked, forward: Forward) -> Answer:
        words = json.loads(asked.body)
        change(words)
        return forward(replace(asked, body=json.dumps(words).encode()))

    return act


def followed(then: Callable[[], None]) -> Act:
    """It is carried out, and then, before it is answered, something else is done."""

    def act(asked: Asked, forward: Forward) -> Answer:
        answer = forward(asked)
        then()
        return answer

    return act


@dataclass
class _Order:
    kind: str
    act: Act
    times: int


class Proxy:
    """For the APIs, by name, in the network of ``namespace``; empty: in that of this process.

    ``kind_of`` says what orders and counts call a request; ``streams``, whether its answer has no end that is known.
    With ``tls`` it is served with that.
    """

    def __init__(
        self,
        namespace: str,
        apis: Mapping[str, Api],
        kind_of: Callable[[Asked], str],
        *,
        streams: Callable[[Asked], bool] = lambda _asked: False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.namespace = namespace
        self.apis = dict(apis)
        self.is_stream = streams
        self.tls = tls
        self._kind_of = kind_of
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self._open: set[socket.socket] = set()
        self.asked: Counter[str] = Counter()
        """Requests so far, by kind."""
        self._servers = {name: _Server(self, name) for name in self.apis}
        scheme = "http" if tls is None else "https"
        self.addresses = {
            api.url.encode(): f"{scheme}://127.0.0.1:{self._servers[name].server_port}".encode()
            for name, api in self.apis.items()
        }

    def __enter__(self) -> Self:
        for server in self._servers.values():
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.shutdown()
            server.server_close()
        self.cut_streams()

    def address(self, url: str) -> str:
        """The proxy's, for one of an API."""
        return self.rewritten(url.encode()).decode()

    def rewritten(self, text: bytes) -> bytes:
        """With the proxy's addresses."""
        for theirs, ours in self.addresses.items():
            text = text.replace(theirs, ours)
        return text

    def order(self, kind: str, act: Act, times: int = 1) -> None:
        """To be done with the next requests of this kind. Orders for one kind are carried out in turn."""
        with self._lock:
            self._orders.append(_Order(kind, act, times))

    @property
    def outstanding(self) -> list[str]:
        """Kinds of the orders that no request has met yet."""
        with self._lock:
            return [order.kind for order in self._orders]

    def forget(self) -> list[str]:
        """Takes back those orders; what ``outstanding`` was."""
        with self._lock:
            unmet, self._orders = [order.kind for order in self._orders], []
        return unmet

    def act_on(self, asked: Asked) -> Act | None:
        """Counts it; what was ordered for it, if anything."""
        kind = self._kind_of(asked)
        with self._lock:
            self.asked[kind] += 1
            for order in self._orders:
                if order.kind == kind:
                    order.times -= 1
                    if not order.times:
                        self._orders.remove(order)
                    return order.act
        return None

    @property
    def streams_open(self) -> int:
        """Answers that have not ended."""
        with self._lock:
            return len(self._open)

    def cut_streams(self) -> int:
        """Breaks all answers that have not ended, in the middle; how many there were."""
        with self._lock:
            broken = len(self._open)
            for one in self._open:
                with suppress(OSError):
                    # TLS's own would have its reader take what is still under way for plain text.
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
        return broken

    @contextmanager
    def streaming(self, upstream: socket.socket) -> Iterator[None]:
        """Meanwhile ``cut_streams`` breaks it."""
        with self._lock:
            self._open.add(upstream)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(upstream)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, proxy: Proxy, api: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.api = api

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The listening socket stays where it was made; the thread of a connection goes over."""
        with on_network(self.proxy.namespace) if self.proxy.namespace else nullcontext():
            if self.proxy.tls is not None:
                try:
                    request = self.proxy.tls.wrap_socket(request, server_side=True)
                except OSError:
                    request.close()
                    return
            super().process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has given up is none."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _any(self) -> None:
        server = cast("_Server", self.server)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        asked = Asked(server.api, self.command, self.path, headers, body)
        act = server.proxy.act_on(asked)
        answer = self._forward(asked) if act is None else act(asked, self._forward)
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OWN:
                self.send_header(name, server.proxy.address(value))
        if answer.stream is not None:
            self._stream(answer.stream)
            return
        text = server.proxy.rewritten(answer.body)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server has these names

    def _stream(self, pieces: Iterator[bytes]) -> None:
        """A stream that breaks upstream breaks here: without its end."""
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in pieces:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, HTTPException):
            self.close_connection = True

    def _forward(self, asked: Asked) -> Answer:
        proxy = cast("_Server", self.server).proxy
        api = proxy.apis[asked.api]
        with ExitStack() as open_:
            connection = open_.enter_context(closing(api.connect()))
            # As if it had come there by itself, so that all links are alike.
            headers = {**asked.headers, "Host": f"{api.host}:{api.port}"}
            connection.request(asked.method, asked.target, asked.body or None, headers)
            upstream = connection.sock
            response = connection.getresponse()
            heads = dict(response.getheaders())
            if response.status != 200 or not proxy.is_stream(asked):
                return Answer(response.status, response.read(), heads)
            open_.enter_context(proxy.streaming(upstream))
            return Answer(response.status, headers=heads, stream=_pieces(response, open_.pop_all()))

    def log_message(self, *_words: Any) -> None:
        """Nobody reads it."""


def _pieces(response: HTTPResponse, open_: ExitStack) -> Iterator[bytes]:
    with open_:
        while piece := response.read1(_PIECE):
            yield piece
