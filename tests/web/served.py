"""The pages on a port of this machine, for browsers: who asks stands in a header."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from burstd.api.app import create_api_app
from burstd.api.auth import Authorizer
from burstd.runtime.sockets import PeerCredentials
from burstd.web.app import install_pages
from tests.api.fake_backend import FakeBackend

CHROMIUM = shutil.which("chromium") or ""
UID_HEADER = "x-test-uid"


class _PeerFromHeader:
    """In place of the kernel: who asks stands in a header of the browser's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            uid = int(dict(scope["headers"]).get(UID_HEADER.encode(), b"0"))
            scope.setdefault("state", {})["peer"] = PeerCredentials(uid, uid, os.getpid())
        await self._app(scope, receive, send)


@contextmanager
def serving(backend: FakeBackend, port: int = 0) -> Iterator[int]:
    """The pages on a port of 127.0.0.1."""
    app = create_api_app(backend, Authorizer(""), install_pages)
    # With the protocol named: asyncio switches Nagle's algorithm off for such sockets only.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    server = uvicorn.Server(
        uvicorn.Config(_PeerFromHeader(app), lifespan="off", log_config=None, ws="none", timeout_keep_alive=30)
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10.0)
        listener.close()
