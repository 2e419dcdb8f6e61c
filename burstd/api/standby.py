"""The sockets of a head that waits: the control socket says who leads, and nothing else is answered."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from burstd.api.answers.base import ErrorView
from burstd.api.answers.standby import StandbyView
from burstd.runtime.sockets import SocketFailed
from burstd.slurm.hooks.hook_socket import accept_connections, listen_for_hooks
from burstd.transfer.protocol.relay import shutdown_socket

_CLIENT_TIMEOUT_S = 1.0
_LONGEST_REQUEST = 1 << 16


def refusal_text(view: StandbyView) -> str:
    """What is said to who asks for anything else."""
    return f"{view.host} is the standby: " + (f"the leader is {view.leader}" if view.leader else "no head leads now")


def create_standby_app(view: Callable[[], StandbyView]) -> Starlette:
    """The control interface of a standby."""

    async def standby(_: Request) -> JSONResponse:
        return JSONResponse(view().model_dump(mode="json"))

    async def refuse(_: Request) -> JSONResponse:
        return JSONResponse(
            ErrorView(error=refusal_text(view())).model_dump(mode="json"), HTTPStatus.MISDIRECTED_REQUEST
        )

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/v1/standby", standby), Route("/{path:path}", refuse, methods=methods)])


class JobRefusals:
    """Refuses connections into jobs, as JobConnectionServer does, with the name of the leader."""

    def __init__(self, path: Path, view: Callable[[], StandbyView]) -> None:
        self._path, self._view = path, view
        self._listener: socket.socket | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Listens. Raises SocketFailed."""
        try:
            self._listener = listen_for_hooks(self._path, 128, 0o666)
        except OSError as error:
            raise SocketFailed(f"the socket {self._path} cannot be made: {error.strerror}") from error
        threading.Thread(target=self._serve, args=(self._listener,), name="jobs", daemon=True).start()

    def close(self) -> None:
        """Leaves the socket to who leads."""
        self._closing.set()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            shutdown_socket(self._listener)
            self._listener.close()

    def _serve(self, listener: socket.socket) -> None:
        for client in accept_connections(listener, self._closing, "jobs"):
            no = {"ok": False, "status": HTTPStatus.MISDIRECTED_REQUEST, "error": refusal_text(self._view())}
            with client, contextlib.suppress(OSError):
                client.settimeout(_CLIENT_TIMEOUT_S)
                # Read first: what is left unread takes the answer along when the socket is closed.
                client.recv(_LONGEST_REQUEST)
                client.sendall(json.dumps(no).encode() + b"\n")
