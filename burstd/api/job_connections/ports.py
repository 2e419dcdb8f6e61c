"""Ports of jobs' nodes: connections to them are carried on to the node.

The request has ``port`` and, if wanted, ``node``; the answer ``job`` and ``node``. After a good one the client's bytes
are the port's, both ways. With ``"hold": true`` nothing is carried: the answer is followed by one more line, with
``error``, when the job has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.job_connections.job_nodes import find_job_machine
from burstd.api.job_connections.server import JobConnection
from burstd.api.job_connections.shell_pool import IDLE_SHELL_TIMEOUT_S, ShellPool
from burstd.domain.claim import Claim
from burstd.domain.plugins.shell import Shell
from burstd.transfer.protocol.relay import relay

log = structlog.get_logger(__name__)


def requested_port(request: Mapping[str, Any]) -> int:
    """The port that is asked for. Raises ApiError."""
    port = request.get("port", 0)
    if type(port) is not int or not (request.get("hold") is True or 0 < port < 65536):
        raise ApiError(422, f"{str(port)[:20]} is no port: they are 1 to 65535.")
    return port


class PortService:
    """Implements ``JobService``."""

    def __init__(self, backend: Backend, open_shell: Callable[[Claim], Shell]) -> None:
        """``open_shell`` opens a shell on the machine of a claim; raises NodeNotReady, NodeRefused."""
        self._backend = backend
        self._shells = ShellPool(open_shell)

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        """Carries until either side or the job ends."""
        hold, port = request.get("hold") is True, requested_port(request)
        machine = find_job_machine(request["job"], str(request.get("node", "")), caller, self._backend)
        answer = {"ok": True, "job": machine.job.id, "node": machine.claim.slot}

        def tell_end(why: str) -> None:
            with contextlib.suppress(OSError):
                client.send_line({"error": why})

        if hold:
            client.send_line(answer)
            client.socket.settimeout(None)
            with client.cut_off_with(machine, tell_end):
                # Nothing is expected; this returns when either side hangs up.
                client.socket.recv(1)
            return
        with self._shells.dial(machine.claim, port, caller.user) as wire:
            log.info("a port is carried", job=machine.job.id, node=machine.claim.slot, port=port, user=caller.user)
            client.send_line(answer)
            client.socket.settimeout(None)
            with client.cut_off_with(machine, lambda _: wire.close()):
                relay(client.socket, wire)

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        """Closes shells that nobody has used for so long."""
        self._shells.close_idle(IDLE_SHELL_TIMEOUT_S if idle_timeout_s is None else idle_timeout_s)
