"""Stands between a client and the lab's APIs: counts what is asked, and does wrong what it was ordered to, once.

The client's side is loopback of the network that this process is in, with one port for each API; the other side is the
lab's network. What the APIs say of their own addresses, in the catalogue and in links to further pages, is rewritten,
so that a client that was given ``auth_url`` speaks to no other place.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

from tests.lab.openstack import conf
from tests.node.conftest import on_network

APIS = {
    "keystone": conf.KEYSTONE,
    "glance": conf.GLANCE,
    "nova": conf.NOVA,
    "neutron": conf.NEUTRON,
    "cinder": conf.CINDER,
}
_PATIENCE_S = 120.0
_OWN = ("connection", "keep-alive", "transfer-encoding", "content-length", "accept-encoding", "date", "server")
"""Headers that are of one hop only, or that no test wants."""
_VERSION = re.compile(r"v\d+(\.\d+)?")
_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


@dataclass(frozen=True)
class Asked:
    """A request. ``kind``: API, method and path without version and project, ``ID`` for ids: ``nova POST /servers``."""

    api: str
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> str:
        """See above."""
        words = [word for word in urlsplit(self.target).path.split("/") if word]
        if words and _VERSION.fullmatch(words[0]):
            words = words[1:]
        if self.api == "cinder" and words and _ID.fullmatch(words[0]):
            words = words[1:]
        return f"{self.api} {self.method} /" + "/".join("ID" if _ID.fullmatch(word) else word for word in words)


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Forward = Callable[[Asked], Answer]
Act = Callable[[Asked, Forward], Answer | None]
"""What is done with a request; None: the connection ends without an answer."""


def says(status: int, message: str = "", **headers: str) -> Act:
    """It is not passed on."""
    body = json.dumps({"error": {"message": message, "code": status}}).encode() if message else b""
    return lambda _asked, _forward: Answer(status, body, {k.replace("_", "-"): v for k, v in headers.items()})


def answers(words: Any) -> Act:
    """It is not passed on; a good answer all the same."""
    return lambda _asked, _forward: Answer(200, json.dumps(words).encode(), {"Content-Type": "application/json"})


def cut(_asked: Asked, _forward: Forward) -> None:
    """It is not passed on, and not answered."""


def lost(asked: Asked, forward: Forward) -> None:
    """It is carried out; nobody hears the answer."""
    forward(asked)


def held(until: threading.Event, done: threading.Event) -> Act:
    """It is passed on only then, and its answer is for whoever still listens; ``done``: there is one."""

    def act(asked: Asked, forward: Forward) -> Answer:
        until.wait(_PATIENCE_S)
        answer = forward(asked)
        done.set()
        return answer

    return act


def changed(change: Callable[[Any], None]) -> Act:
    """It is passed on with other words: ``change`` works on its JSON."""

    def act(asked: Asked, forward: Forward) -> Answer:
        words = json.loads(asked.body)
        change(words)
        return forward(Asked(asked.api, asked.method, asked.target, asked.headers, json.dumps(words).encode()))

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
    """For the APIs in the network of ``namespace``."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._lock = threading.Lock()
        self._orders: list[_Order] = []
        self.asked: Counter[str] = Counter()
        """Requests so far, by kind; see ``Asked``."""
        self._servers = {api: _Server(self, api) for api in APIS}
        self.addresses = {
            f"http://{conf.HOST}:{port}".encode(): f"http://127.0.0.1:{self._servers[api].server_port}".encode()
            for api, port in APIS.items()
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

    def act_on(self, asked: Asked) -> Act | None:
        """Counts it; what was ordered for it, if anything."""
        with self._lock:
            self.asked[asked.kind] += 1
            for order in self._orders:
                if order.kind == asked.kind:
                    order.times -= 1
                    if not order.times:
                        self._orders.remove(order)
                    return order.act
        return None


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
        with on_network(self.proxy.namespace):
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
        text = server.proxy.rewritten(answer.body)
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _OWN:
                self.send_header(name, server.proxy.address(value))
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - http.server has these names

    def _forward(self, asked: Asked) -> Answer:
        connection = HTTPConnection(conf.HOST, APIS[asked.api], timeout=_PATIENCE_S)
        try:
            # As if it had come there by itself, so that all links are alike.
            headers = {**asked.headers, "Host": f"{conf.HOST}:{APIS[asked.api]}"}
            connection.request(asked.method, asked.target, asked.body or None, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), dict(response.getheaders()))
        finally:
            connection.close()

    def log_message(self, *_words: Any) -> None:
        """Nobody reads it."""
