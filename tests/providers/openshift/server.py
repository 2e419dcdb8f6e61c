"""An HTTP server on the loopback whose answers a test says; it keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE_S = 10.0


class Asked(NamedTuple):
    """``body`` as JSON."""

    method: str
    path: str
    token: str
    body: Any


class Said(NamedTuple):
    """``cut``: the connection is closed instead of an answer. ``stream``: chunks, one after another; None cuts it."""

    status: int = 200
    body: Any = None
    cut: bool = False
    stream: Iterator[bytes | None] | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 - of a tuple: never changed


class Server:
    """``answers`` are given one after another."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.answers: list[Said | Callable[[Asked], Said]] = []
        self.lock = threading.Lock()
        self.http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        assert self.http is not None
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def says(self, *answers: Said | Callable[[Asked], Said]) -> None:
        self.answers += answers

    def next(self, asked: Asked) -> Said:
        with self.lock:
            self.asked.append(asked)
            answer = self.answers.pop(0) if self.answers else Said(500, {"message": "the test says nothing of this"})
        return answer if isinstance(answer, Said) else answer(asked)

    def kubeconfig(self, file: Path, **user: Any) -> Path:
        words = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": user}],
        }
        file.write_text(json.dumps(words), encoding="utf-8")
        return file


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE_S
    mine: Server

    def _any(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        said = self.mine.next(Asked(self.command, self.path, self.headers.get("authorization") or "", body))
        if said.cut:
            self.close_connection = True
            return
        self.send_response(said.status)
        for key, value in said.headers.items():
            self.send_header(key, value)
        if said.stream is not None:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self._pour(said.stream)
            return
        text = said.body if isinstance(said.body, str) else json.dumps(said.body)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _pour(self, pieces: Iterator[bytes | None]) -> None:
        self.wfile.flush()
        for piece in pieces:
            if piece is None:
                self.close_connection = True
                return
            try:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            except OSError:
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _any  # noqa: N815 - names of http.server

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Server]:
    made = Server()
    handler = type("Handler", (_Handler,), {"mine": made})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        made.http = http
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            http.shutdown()
            thread.join()
