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

from burstd.api.auth import Rights
from burstd.api.backend import Office
from burstd.api.dependencies import Denied
from burstd.api.job_nodes import JobNode, job_node, over
from burstd.api.shell_pool import Ways
from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import NotListening, Shell, Wire
from burstd.runtime.sockets import Peer, Shares, peer
from burstd.slurm.hooks.hook_socket import connections, listen
from burstd.transfer.protocol.relay import hang_up, relay

log = structlog.get_logger(__name__)

CONNECTIONS = 256
"""Of all users but root and burstd's own; see Shares."""
_PATIENCE_S = 5.0
LOOK_S = 1.0
"""How often it is seen whether jobs still run."""
_LARGEST = 4096


class ForwardFailed(BurstdError):
    """The socket for jobs' ports cannot be made."""


@dataclass(frozen=True, slots=True)
class _Wish:
    job: str
    port: int
    node: str
    hold: bool


@dataclass(eq=False, slots=True)
class _Carried:
    """A connection that was let through."""

    connection: socket.socket
    was: JobNode
    wire: Wire | None = None


class ForwardServer:
    """Carries connections between ``start`` and ``close``; those of a job end with it."""

    def __init__(
        self,
        path: Path,
        office: Office,
        rights: Rights,
        enter: Callable[[Claim], Shell],
        *,
        most: int = CONNECTIONS,
        look_s: float = LOOK_S,
    ) -> None:
        """``enter``: a way into the machine of a claim; raises NodeNotReady, NodeRefused."""
        self._path = path
        self._office = office
        self._rights = rights
        self._ways = Ways(enter)
        self._shares = Shares(most)
        self._look_s = look_s
        self._lock = threading.Lock()
        self._carried: set[_Carried] = set()
        self._listener: socket.socket | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Listens. Raises ForwardFailed."""
        try:
            self._listener = listen(self._path, 128, 0o666)
        except OSError as error:
            raise ForwardFailed(
                f"the socket {self._path} for jobs' ports cannot be made: {error.strerror}; does its folder exist?"
            ) from error
        for name, work in (("forward", self._serve), ("forward watch", self._watch)):
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Takes no more connections and cuts those that there are. Harmless when repeated."""
        self._stop.set()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            hang_up(self._listener)
            self._listener.close()
            self._listener = None
        self._cut(lambda _: "burstd is stopping")
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        self._ways.tidy(0.0)

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101  # start made it
        for connection in connections(listener, self._stop, "jobs' ports"):
            with contextlib.suppress(OSError):
                who = peer(connection)
                if self._shares.take(who.uid):
                    if self._given_a_thread(connection, who):
                        continue
                    _say(connection, _no(503, "burstd can start no more threads; try again later."))
                else:
                    _say(connection, _no(503, "Too many connections to jobs' ports are open; close some."))
            connection.close()

    def _given_a_thread(self, connection: socket.socket, who: Peer) -> bool:
        try:
            threading.Thread(target=self._take, args=(connection, who), name="port", daemon=True).start()
        except RuntimeError as error:
            log.warning("a connection to a job's port could not be taken", error=str(error))
            self._shares.give_back(who.uid)
            return False
        return True

    def _watch(self) -> None:
        while not self._stop.wait(self._look_s):
            latest = self._office.latest()
            if latest is not None:
                self._cut(partial(over, snapshot=latest[0]))
            self._ways.tidy()

    def _cut(self, why_of: Callable[[JobNode], str]) -> None:
        with self._lock:
            carried = list(self._carried)
        for one in carried:
            why = why_of(one.was)
            if not why:
                continue
            if one.wire is None:
                with contextlib.suppress(OSError):
                    _say(one.connection, {"error": why})
            else:
                one.wire.close()
            hang_up(one.connection)

    def _take(self, connection: socket.socket, who: Peer) -> None:
        try:
            with connection:
                self._answer(connection, who)
        except OSError as error:
            log.debug("a connection to a job's port broke off", error=str(error))
        finally:
            self._shares.give_back(who.uid)

    def _answer(self, connection: socket.socket, who: Peer) -> None:
        connection.settimeout(_PATIENCE_S)
        try:
            self._let_through(connection, who)
        except Denied as denied:
            _say(connection, _no(denied.status, denied.text))
        except BurstdError as error:
            _say(connection, _no(409 if isinstance(error, NotListening) else 503, str(error)))

    def _let_through(self, connection: socket.socket, who: Peer) -> None:
        wish = _read(connection)
        you = self._rights.caller(who)
        was = job_node(wish.job, wish.node, you, self._office)
        answer = {"ok": True, "job": was.job.id, "node": was.claim.slot}
        if wish.hold:
            _say(connection, answer)
            connection.settimeout(None)
            # Nothing is expected; this returns when either side hangs up.
            self._carry(_Carried(connection, was), partial(connection.recv, 1))
            return
        with self._ways.wire(was.claim, wish.port, you.user) as wire:
            log.info("a port is carried", job=was.job.id, node=was.claim.slot, port=wish.port, user=you.user)
            _say(connection, answer)
            connection.settimeout(None)
            self._carry(_Carried(connection, was, wire), partial(relay, connection, wire))

    def _carry(self, carried: _Carried, work: Callable[[], object]) -> None:
        with self._lock:
            self._carried.add(carried)
        try:
            # ``close`` may have cut the others just before.
            if not self._stop.is_set():
                work()
        finally:
            with self._lock:
                self._carried.discard(carried)


def _no(status: int, text: str) -> dict[str, Any]:
    return {"ok": False, "status": status, "error": text}


def _say(connection: socket.socket, answer: dict[str, Any]) -> None:
    connection.sendall(json.dumps(answer).encode() + b"\n")


def _read(connection: socket.socket) -> _Wish:
    """The client says nothing after its line until it has its answer."""
    line = b""
    while not line.endswith(b"\n") and len(line) <= _LARGEST and (piece := connection.recv(_LARGEST)):
        line += piece
    try:
        said = json.loads(line)
        wish = _Wish(str(said["job"]), said.get("port", 0), str(said.get("node", "")), said.get("hold") is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Denied(422, "burstd does not understand this burstctl: are both of one version?") from None
    if not wish.job:
        raise Denied(422, "No job was named.")
    if type(wish.port) is not int or not (wish.hold or 0 < wish.port < 65536):
        raise Denied(422, f"{str(wish.port)[:20]} is no port: they are 1 to 65535.")
    return wish
