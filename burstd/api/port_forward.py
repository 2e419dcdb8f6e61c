"""Ports of jobs' nodes, for the jobs' owners: a unix socket from which connections are carried on to the node.

The client sends a line of JSON, ``{"job": "123", "port": 8888, "node": ""}``, and gets a line back: ``{"ok": true,
"node": "gpu1", "job": "123"}`` or ``{"ok": false, "status": 403, "error": "a sentence"}``, with the codes of the
control interface. After a good one its bytes are the port's, both ways. With ``"hold": true`` nothing is carried: the
answer is followed by one more line, with ``error``, when the job has ended. Who the client is the kernel says.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from burstd.api.auth import Authorizer
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.job_nodes import JobMachine, ended_because, find_job_machine
from burstd.api.shell_pool import ShellPool
from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import NotListening, PortConnection, Shell
from burstd.runtime.sockets import ConnectionLimiter, PeerCredentials, peer_credentials
from burstd.slurm.hooks.hook_socket import accept_connections, listen_for_hooks
from burstd.transfer.protocol.relay import relay, shutdown_socket

log = structlog.get_logger(__name__)

MAX_FORWARD_CONNECTIONS = 256
"""Of all users but root and burstd's own; see ConnectionLimiter."""
_CLIENT_TIMEOUT_S = 5.0
JOB_CHECK_INTERVAL_S = 1.0
"""How often it is seen whether jobs still run."""
_MAX_REQUEST_BYTES = 4096


class PortForwardFailed(BurstdError):
    """The socket for jobs' ports cannot be made."""


@dataclass(frozen=True, slots=True)
class _ForwardRequest:
    job: str
    port: int
    node: str
    hold: bool


@dataclass(eq=False, slots=True)
class _ForwardedConnection:
    """A connection that was let through."""

    connection: socket.socket
    job_machine: JobMachine
    wire: PortConnection | None = None


class PortForwardServer:
    """Carries connections between ``start`` and ``close``; those of a job end with it."""

    def __init__(
        self,
        path: Path,
        backend: Backend,
        authorizer: Authorizer,
        open_shell: Callable[[Claim], Shell],
        *,
        max_connections: int = MAX_FORWARD_CONNECTIONS,
        check_interval_s: float = JOB_CHECK_INTERVAL_S,
    ) -> None:
        """``open_shell`` opens a shell on the machine of a claim; raises NodeNotReady, NodeRefused."""
        self._path = path
        self._backend = backend
        self._authorizer = authorizer
        self._shells = ShellPool(open_shell)
        self._shares = ConnectionLimiter(max_connections)
        self._check_interval_s = check_interval_s
        self._lock = threading.Lock()
        self._forwarded: set[_ForwardedConnection] = set()
        self._listener: socket.socket | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listens. Raises ForwardFailed."""
        try:
            self._listener = listen_for_hooks(self._path, 128, 0o666)
        except OSError as error:
            raise PortForwardFailed(
                f"the socket {self._path} for jobs' ports cannot be made: {error.strerror}; does its folder exist?"
            ) from error
        for name, work in (("forward", self._serve), ("forward watch", self._close_ended)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Takes no more connections and cuts those that there are. Harmless when repeated."""
        self._stop.set()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            shutdown_socket(self._listener)
            self._listener.close()
            self._listener = None
        self._close_connections(lambda _: "burstd is stopping")
        for thread in self._threads:
            thread.join(_CLIENT_TIMEOUT_S)
        self._shells.close_idle(0.0)

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101  # start made it
        for connection in accept_connections(listener, self._stop, "jobs' ports"):
            with contextlib.suppress(OSError):
                who = peer_credentials(connection)
                if self._shares.acquire(who.uid):
                    if self._start_connection_thread(connection, who):
                        continue
                    _send_line(connection, _refusal(503, "burstd can start no more threads; try again later."))
                else:
                    _send_line(connection, _refusal(503, "Too many connections to jobs' ports are open; close some."))
            connection.close()

    def _start_connection_thread(self, connection: socket.socket, who: PeerCredentials) -> bool:
        try:
            threading.Thread(target=self._handle_connection, args=(connection, who), name="port", daemon=True).start()
        except RuntimeError as error:
            log.warning("a connection to a job's port could not be taken", error=str(error))
            self._shares.release(who.uid)
            return False
        return True

    def _close_ended(self) -> None:
        while not self._stop.wait(self._check_interval_s):
            latest = self._backend.latest_loop()
            if latest is not None:
                self._close_connections(partial(ended_because, snapshot=latest[0]))
            self._shells.close_idle()

    def _close_connections(self, end_reason_of: Callable[[JobMachine], str]) -> None:
        with self._lock:
            to_check = list(self._forwarded)
        for one in to_check:
            why = end_reason_of(one.job_machine)
            if not why:
                continue
            if one.wire is None:
                with contextlib.suppress(OSError):
                    _send_line(one.connection, {"error": why})
            else:
                one.wire.close()
            shutdown_socket(one.connection)

    def _handle_connection(self, connection: socket.socket, who: PeerCredentials) -> None:
        try:
            with connection:
                self._forward_or_refuse(connection, who)
        except OSError as error:
            log.debug("a connection to a job's port broke off", error=str(error))
        finally:
            self._shares.release(who.uid)

    def _forward_or_refuse(self, connection: socket.socket, who: PeerCredentials) -> None:
        connection.settimeout(_CLIENT_TIMEOUT_S)
        try:
            self._forward(connection, who)
        except ApiError as denied:
            _send_line(connection, _refusal(denied.status, denied.text))
        except BurstdError as error:
            _send_line(connection, _refusal(409 if isinstance(error, NotListening) else 503, str(error)))

    def _forward(self, connection: socket.socket, who: PeerCredentials) -> None:
        request = _read_request(connection)
        caller = self._authorizer.caller(who)
        machine = find_job_machine(request.job, request.node, caller, self._backend)
        answer = {"ok": True, "job": machine.job.id, "node": machine.claim.slot}
        if request.hold:
            _send_line(connection, answer)
            connection.settimeout(None)
            # Nothing is expected; this returns when either side hangs up.
            self._track_while(_ForwardedConnection(connection, machine), partial(connection.recv, 1))
            return
        with self._shells.dial(machine.claim, request.port, caller.user) as wire:
            log.info(
                "a port is carried", job=machine.job.id, node=machine.claim.slot, port=request.port, user=caller.user
            )
            _send_line(connection, answer)
            connection.settimeout(None)
            self._track_while(_ForwardedConnection(connection, machine, wire), partial(relay, connection, wire))

    def _track_while(self, forwarded: _ForwardedConnection, work: Callable[[], object]) -> None:
        with self._lock:
            self._forwarded.add(forwarded)
        try:
            # ``close`` may have cut the others just before.
            if not self._stop.is_set():
                work()
        finally:
            with self._lock:
                self._forwarded.discard(forwarded)


def _refusal(status: int, text: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "error": text}


def _send_line(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _read_request(connection: socket.socket) -> _ForwardRequest:
    """The client says nothing after its line until it has its answer."""
    line = b""
    while (
        not line.endswith(b"\n") and len(line) <= _MAX_REQUEST_BYTES and (piece := connection.recv(_MAX_REQUEST_BYTES))
    ):
        line += piece
    try:
        fields = json.loads(line)
        request = _ForwardRequest(
            str(fields["job"]), fields.get("port", 0), str(fields.get("node", "")), fields.get("hold") is True
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ApiError(422, "burstd does not understand this burstctl: are both of one version?") from None
    if not request.job:
        raise ApiError(422, "No job was named.")
    if type(request.port) is not int or not (request.hold or 0 < request.port < 65536):
        raise ApiError(422, f"{str(request.port)[:20]} is no port: they are 1 to 65535.")
    return request
