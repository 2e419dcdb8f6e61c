"""The control interface: HTTP on a unix socket, in a thread of its own. The caller is who the kernel says."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from burstd.domain.errors import BurstdError
from burstd.runtime.sockets import ConnectionLimiter, peer_credentials

MAX_API_CONNECTIONS = 256
"""Of all users but root and burstd's own; see ConnectionLimiter."""
ACCEPT_BACKLOG = 32
"""asyncio takes up to as many connections of one socket as its queue is long before it does anything else."""
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
RETRY_S = 5.0
"""Between two tries of an OptionalServer to listen."""

log = structlog.get_logger(__name__)


class ApiServerFailed(BurstdError):
    """An interface that answers by HTTP could not be started."""


class HttpServerThread:
    """Serves an application on listening sockets between ``start`` and ``stop``, in a thread of its own; once."""

    def __init__(
        self,
        app: ASGIApp,
        protocol: type[H11Protocol],
        name: str,
        *listeners: socket.socket,
        backlog: int = ACCEPT_BACKLOG,
    ) -> None:
        """``name``: of the thread, and in messages. ``backlog``: connections that may wait to be accepted."""
        self._name = name
        self._listeners = listeners
        for listener in listeners:
            listener.setblocking(False)
        config = uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            backlog=backlog,
        )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Returns once requests are answered. Raises ApiServerFailed."""
        self._thread.start()
        if not self._server.up.wait(START_TIMEOUT_S) or not self._server.started:
            raise ApiServerFailed(f"the {self._name} interface did not start; the log says why.")

    def stop(self) -> None:
        """Closes the sockets, ends idle connections, gives answers under way two seconds. Harmless when repeated."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)
        for listener in self._listeners:
            listener.close()

    def _run(self) -> None:
        try:
            # Outside the main thread uvicorn leaves signals alone.
            asyncio.run(self._server.serve(sockets=[*self._listeners]))
        except (OSError, RuntimeError) as error:
            log.exception("an interface ended", interface=self._name, error=str(error))
        finally:
            self._server.up.set()


class OptionalServer:
    """A server that burstd can do without: where it cannot listen there is an alarm, and it is tried again."""

    def __init__(self, name: str, make: Callable[[], HttpServerThread]) -> None:
        """``name``: of the server, in the log. ``make``: one that listens and is not started; raises BurstdError."""
        self._name, self._make = name, make
        self._server: HttpServerThread | None = None
        self._ending = threading.Event()
        self._retries = threading.Thread(target=self._try_again, name=f"{name} retry", daemon=True)
        self.alarm = ""
        """Why it does not listen; empty: it does. From any thread."""

    def start(self) -> None:
        """Returns once requests are answered, or ``alarm`` says why they are not."""
        if not self._listens():
            self._retries.start()

    def stop(self) -> None:
        """As HttpServerThread's."""
        self._ending.set()
        if self._retries.is_alive():
            self._retries.join(STOP_TIMEOUT_S)
        if self._server is not None:
            self._server.stop()

    def _try_again(self) -> None:
        while not self._ending.wait(RETRY_S) and not self._listens():
            pass

    def _listens(self) -> bool:
        try:
            server = self._make()
            try:
                server.start()
            except ApiServerFailed:
                server.stop()
                raise
        except BurstdError as error:
            alarm = f"{error}; burstd goes on without it, and tries again every {RETRY_S:g} s"
            if alarm != self.alarm:
                log.warning("a server cannot listen", server=self._name, error=str(error))
            self.alarm = alarm
            return False
        if self.alarm:
            log.info("a server listens by now", server=self._name)
        self._server, self.alarm = server, ""
        return True


class ApiServer(HttpServerThread):
    """An application on unix sockets, which learns who is at the other end."""

    def __init__(
        self,
        app: ASGIApp,
        *listeners: socket.socket,
        name: str = "control",
        max_connections: int = MAX_API_CONNECTIONS,
    ) -> None:
        super().__init__(app, _protocol(max_connections), name, *listeners)


class _Server(uvicorn.Server):
    """Says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def _protocol(max_connections: int) -> type[H11Protocol]:
    """A protocol class with a count of connections of its own."""
    shares = ConnectionLimiter(max_connections)

    class PeerProtocol(H11Protocol):
        """HTTP/1.1 that hands the application the Peer of each connection, as ``scope["state"]["peer"]``."""

        uid: int | None = None
        """Whose share it has."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            # The kernel's answer is of the moment of connecting, whatever the process became since.
            who = peer_credentials(cast("socket.socket", transport.get_extra_info("socket")))
            super().connection_made(transport)
            self.app_state: dict[str, Any] = {**self.app_state, "peer": who}
            if shares.acquire(who.uid):
                self.uid = who.uid
            else:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.uid is not None:
                shares.release(self.uid)
            super().connection_lost(exc)

    return PeerProtocol
