"""Users' connections into their running jobs: a unix socket at which ports, output and shells of jobs are had.

The client sends a line of JSON, ``{"kind": "port", "job": "123", ...}``, and gets a line back: ``{"ok": true, ...}`` or
``{"ok": false, "status": 403, "error": "a sentence"}``, with the codes of the control interface. What follows is the
service's own of that kind. Who the client is the kernel says.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from burstd.api.auth import Authorizer, Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.job_connections.job_nodes import JobMachine, ended_because
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import NotListening
from burstd.runtime.sockets import ConnectionLimiter, PeerCredentials, peer_credentials
from burstd.slurm.hooks.hook_socket import accept_connections, listen_for_hooks
from burstd.transfer.protocol.relay import shutdown_socket

log = structlog.get_logger(__name__)

MAX_JOB_CONNECTIONS = 256
"""Of all users but root and burstd's own; see ConnectionLimiter."""
CLIENT_TIMEOUT_S = 5.0
JOB_CHECK_INTERVAL_S = 1.0
"""How often it is seen whether jobs still run."""
_MAX_REQUEST_BYTES = 16384
_STOP_CHECK_S = 0.5


class JobConnectionsFailed(BurstdError):
    """The socket for connections into jobs cannot be made."""


class JobConnection:
    """A client's connection, in its own thread. The server may cut it off at any time."""

    def __init__(self, client: socket.socket, stopping: threading.Event) -> None:
        self.socket = client
        self._stopping = stopping
        self._cut_offs: set[_CutOff] = set()
        self._lock = threading.Lock()

    def send_line(self, answer: Mapping[str, Any]) -> None:
        """Sends one line of JSON, as ``send`` does."""
        self.send(json.dumps(answer).encode() + b"\n")

    def send(self, data: bytes) -> None:
        """Sends all, as slowly as the client reads. Raises OSError, also where burstd stops meanwhile."""
        left = memoryview(data)
        poller = select.poll()
        poller.register(self.socket, select.POLLOUT)
        while left:
            if poller.poll(_STOP_CHECK_S * 1000):
                with contextlib.suppress(BlockingIOError):
                    left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]
            elif self._stopping.is_set():
                raise ConnectionAbortedError("burstd is stopping")

    def is_over(self) -> bool:
        """Whether burstd stops, or the client has hung up or said its last."""
        if self._stopping.is_set():
            return True
        poller = select.poll()
        poller.register(self.socket, select.POLLIN | select.POLLRDHUP)
        return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))

    def pause(self, seconds: float) -> None:
        """Waits, and no longer where burstd stops."""
        self._stopping.wait(seconds)

    @contextlib.contextmanager
    def cut_off_with(self, machine: JobMachine, cut_off: Callable[[str], None]) -> Iterator[None]:
        """Has ``cut_off`` called once, in another thread and with the reason, when this run has its machine no more."""
        entry = _CutOff(machine, cut_off)
        with self._lock:
            self._cut_offs.add(entry)
        try:
            if self._stopping.is_set():
                # The others were cut off just before.
                self.cut_off(lambda _: "burstd is stopping")
            yield
        finally:
            with self._lock:
                self._cut_offs.discard(entry)

    def cut_off(self, end_reason_of: Callable[[JobMachine], str]) -> None:
        """Cuts off what has a reason to end."""
        with self._lock:
            ending = [(entry, why) for entry in self._cut_offs if (why := end_reason_of(entry.machine))]
            self._cut_offs.difference_update(entry for entry, _ in ending)
        for entry, why in ending:
            entry.cut_off(why)
            shutdown_socket(self.socket)


@dataclass(frozen=True, eq=False, slots=True)
class _CutOff:
    machine: JobMachine
    cut_off: Callable[[str], None]


class JobService(Protocol):
    """Serves one kind of request."""

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        """Answers, and returns when the connection is over. Raises ApiError, BurstdError, OSError.

        Of ``request`` only ``job`` was looked at: it is not empty.
        """
        ...

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        """Closes what has not been used for so long; None: for as long as the service keeps it."""
        ...


class JobConnectionServer:
    """Serves connections between ``start`` and ``close``."""

    def __init__(
        self,
        path: Path,
        backend: Backend,
        authorizer: Authorizer,
        services: Mapping[str, JobService],
        *,
        max_connections: int = MAX_JOB_CONNECTIONS,
        check_interval_s: float = JOB_CHECK_INTERVAL_S,
    ) -> None:
        """``services``: by the kind of request."""
        self._path = path
        self._backend = backend
        self._authorizer = authorizer
        self._services = services
        self._shares = ConnectionLimiter(max_connections)
        self._check_interval_s = check_interval_s
        self._lock = threading.Lock()
        self._connections: set[JobConnection] = set()
        self._listener: socket.socket | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listens. Raises JobConnectionsFailed."""
        try:
            self._listener = listen_for_hooks(self._path, 128, 0o666)
        except OSError as error:
            raise JobConnectionsFailed(
                f"the socket {self._path} for connections into jobs cannot be made: {error.strerror}; does its folder "
                "exist?"
            ) from error
        for name, work in (("jobs' connections", self._serve), ("jobs' ends", self._close_ended)):
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
        self._cut_off(lambda _: "burstd is stopping")
        for thread in self._threads:
            thread.join(CLIENT_TIMEOUT_S)
        for service in self._services.values():
            service.close_idle(0.0)

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101  # start made it
        for client in accept_connections(listener, self._stop, "jobs"):
            with contextlib.suppress(OSError):
                who = peer_credentials(client)
                connection = JobConnection(client, self._stop)
                if self._shares.acquire(who.uid):
                    if self._start_connection_thread(connection, who):
                        continue
                    connection.send_line(_refusal(503, "burstd can start no more threads; try again later."))
                else:
                    connection.send_line(_refusal(503, "Too many connections to jobs are open; close some."))
            client.close()

    def _start_connection_thread(self, connection: JobConnection, who: PeerCredentials) -> bool:
        try:
            threading.Thread(target=self._handle_connection, args=(connection, who), name="job", daemon=True).start()
        except RuntimeError as error:
            log.warning("a connection to a job could not be taken", error=str(error))
            self._shares.release(who.uid)
            return False
        return True

    def _close_ended(self) -> None:
        while not self._stop.wait(self._check_interval_s):
            latest = self._backend.latest_loop()
            if latest is not None:
                self._cut_off(partial(ended_because, snapshot=latest[0]))
            for service in self._services.values():
                service.close_idle()

    def _cut_off(self, end_reason_of: Callable[[JobMachine], str]) -> None:
        with self._lock:
            to_check = list(self._connections)
        for one in to_check:
            one.cut_off(end_reason_of)

    def _handle_connection(self, connection: JobConnection, who: PeerCredentials) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            with connection.socket:
                self._serve_or_refuse(connection, who)
        except OSError as error:
            log.debug("a connection to a job broke off", error=str(error))
        finally:
            with self._lock:
                self._connections.discard(connection)
            self._shares.release(who.uid)

    def _serve_or_refuse(self, connection: JobConnection, who: PeerCredentials) -> None:
        connection.socket.settimeout(CLIENT_TIMEOUT_S)
        try:
            request = read_request(connection.socket)
            service = self._services.get(str(request.get("kind")))
            if service is None:
                raise _not_understood()
            service.serve(request, self._authorizer.caller(who), connection)
        except ApiError as denied:
            connection.send_line(_refusal(denied.status, denied.text))
        except BurstdError as error:
            connection.send_line(_refusal(409 if isinstance(error, NotListening) else 503, str(error)))


def _refusal(status: int, text: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "error": text}


def _not_understood() -> ApiError:
    return ApiError(422, "burstd does not understand this burstctl: are both of one version?")


def read_request(connection: socket.socket) -> dict[str, Any]:
    """One line, whose ``job`` is a text. The client says nothing after it until it has its answer. Raises ApiError."""
    line = b""
    while (
        not line.endswith(b"\n") and len(line) <= _MAX_REQUEST_BYTES and (piece := connection.recv(_MAX_REQUEST_BYTES))
    ):
        line += piece
    try:
        fields = json.loads(line)
        request: dict[str, Any] = {**fields, "job": str(fields["job"])}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _not_understood() from None
    if not request["job"]:
        raise ApiError(422, "No job was named.")
    return request
