"""An HTTP server on loopback whose answers are any bytes, for any time: what a hostile cloud or store sends."""

from __future__ import annotations

import gzip
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class HttpLie(NamedTuple):
    """An answer. Without a Content-Length in ``headers`` the connection's end is the body's."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - of a tuple: never changed
    body: Iterable[bytes] = ()


class LyingServer:
    """``asked``: method and path of each request; ``tokens``: all headers that may hold credentials."""

    def __init__(self, answer: Callable[[str], HttpLie]) -> None:
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.sent = 0
        """Bytes of bodies that somebody took, or the kernel did."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _any(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.asked.append(f"{self.command} {self.path}")
                outer.tokens += [
                    value
                    for name, value in self.headers.items()
                    if name.lower() in ("x-auth-token", "authorization", "x-subject-token")
                ]
                lie = answer(self.path)
                self.send_response(lie.status)
                for name, value in lie.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    for piece in lie.body:
                        self.wfile.write(piece)
                        outer.sent += len(piece)
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815 - http.server's

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(10)


@contextmanager
def lying_server(answer: Callable[[str], HttpLie]) -> Iterator[LyingServer]:
    """One for a while."""
    made = LyingServer(answer)
    try:
        yield made
    finally:
        made.close()


def endless(piece: bytes = b" " * 65536) -> HttpLie:
    """A body without an end."""
    return HttpLie(headers={"Content-Type": "application/json"}, body=itertools.repeat(piece))


def bomb(size: int = 1 << 30) -> HttpLie:
    """A body that unpacks to so many bytes."""
    packed = gzip.compress(b" " * (1 << 20), 9)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    return HttpLie(headers=headers, body=itertools.repeat(packed, size >> 20))


def deep(depth: int = 1_000_000) -> HttpLie:
    """JSON of nothing but beginnings."""
    return HttpLie(headers={"Content-Type": "application/json"}, body=[b"[" * depth])
