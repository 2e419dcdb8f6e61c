"""burstd's side of ResumeProgram, SuspendProgram and ResumeFailProgram: takes calls at a socket, and from the spool.

What a call means is seen in the state of the nodes it names, so a call is a hint to look, and a line in the log.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from burstd.domain.errors import BurstdError
from burstd.slurm.hooks.hook_socket import accept_connections, allow_connect, listen_for_hooks, peer_uid
from burstd.slurm.hooks.power_client import ACKNOWLEDGED, POWER_CALLS

log = structlog.get_logger(__name__)

_MAX_CALL_BYTES = 32 * 1024 * 1024
_IO_TIMEOUT_S = 2.0
_SHOWN = 500
_LATEST = float(1 << 40)
"""Seconds since 1970: no call is later."""


class PowerSocketFailed(BurstdError):
    """The socket for Slurm's calls cannot be made."""


@dataclass(frozen=True, slots=True)
class PowerCall:
    """One call. ``nodes`` is a host list as Slurm wrote it, ``time`` the system's time in seconds since 1970."""

    kind: str
    nodes: str
    time: float
    resume_file: object = None
    """What SLURM_RESUME_FILE said of the jobs behind a resume; None where there was none."""


def parse_power_call(line: bytes) -> PowerCall | None:
    """One line as the client writes it; None where it is none of ours."""
    try:
        said = json.loads(line)
        kind, nodes = said["kind"], said["nodes"]
        time = float(said["time"])
        if kind not in POWER_CALLS or not isinstance(nodes, str) or not 0 <= time < _LATEST:
            return None
        return PowerCall(kind, nodes, time, said.get("resume_file"))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


class PowerServer:
    """``taken`` is called, in the server's thread, for each call from the socket and, at the start, from the spool."""

    def __init__(
        self, path: Path, spool: Path, on_call: Callable[[PowerCall], None], allowed: frozenset[int] = frozenset()
    ) -> None:
        """``allowed``: SlurmUser's uid, where it is known so far; root and burstd's own may always call."""
        self._path = path
        self._spool = spool
        self._on_call = on_call
        self._allowed = allowed | {0, os.geteuid()}
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def start(self) -> None:
        """Listens, then reads what was left while burstd was down. Raises PowerSocketFailed."""
        try:
            listener = listen_for_hooks(self._path, 128)
        except OSError as error:
            raise PowerSocketFailed(
                f"the socket {self._path} for Slurm's calls cannot be made: {error.strerror}; does its folder exist?"
            ) from error
        self._socket = listener
        for uid in self._allowed - {0, os.geteuid()}:
            allow_connect(self._path, uid)
        self._closing.clear()
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="power", daemon=True)
        self._thread.start()
        self.read_spool()

    def stop(self) -> None:
        """Ends the thread; calls go to the spool from now on."""
        self._closing.set()
        if self._socket is not None:
            self._path.unlink(missing_ok=True)
            self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
        if self._thread is not None:
            self._thread.join(_IO_TIMEOUT_S)

    def _serve(self, listener: socket.socket) -> None:
        for wire in accept_connections(listener, self._closing, "Slurm's power programs"):
            with wire:
                self._receive_call(wire)

    def _receive_call(self, wire: socket.socket) -> None:
        wire.settimeout(_IO_TIMEOUT_S)
        try:
            uid = peer_uid(wire)
            if uid not in self._allowed:
                log.warning("a power call was not taken: only Slurm may make it", uid=uid)
                return
            pieces: list[bytes] = []
            while sum(map(len, pieces)) < _MAX_CALL_BYTES and (piece := wire.recv(1 << 16)):
                pieces.append(piece)
            call = parse_power_call(b"".join(pieces))
            if call is None:
                log.warning("a power call was not understood", uid=uid)
                return
            self._handle(call)
            wire.sendall(ACKNOWLEDGED)
        except OSError as error:
            log.debug("a power call broke off; it is in the spool", error=str(error))

    def allow_caller(self, uid: int) -> None:
        """SlurmUser may call as well."""
        self._allowed |= {uid}
        allow_connect(self._path, uid)

    def read_spool(self) -> None:
        """Takes the calls that were left because nobody answered in time."""
        try:
            files = sorted(self._spool.glob("*.json"))
        except OSError as error:
            log.warning("the spool of Slurm's calls cannot be read", spool=str(self._spool), error=str(error))
            return
        for file in files:
            try:
                with file.open("rb") as opened:
                    call = parse_power_call(opened.read(_MAX_CALL_BYTES))
                file.unlink()
            except OSError as error:
                log.warning("a spooled call cannot be read", file=str(file), error=str(error))
                continue
            if call is not None:
                self._handle(call)

    def _handle(self, call: PowerCall) -> None:
        log.info("slurm called", kind=call.kind, nodes=call.nodes[:_SHOWN])
        self._on_call(call)
