"""Shells in running jobs, through the provider's way into the node: for where srun cannot be used.

The request has ``node``, ``command`` (words; none: the user's shell), ``term``, ``rows``, ``columns`` and ``raw`` (the
client has no terminal). With ``"look": true`` the answer only tells ``job`` (as srun takes it), ``user`` and ``node``.
After a good answer frames go both ways, see burstd/transfer/protocol/terminal.py.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import structlog

from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.job_connections.job_nodes import find_job_machine, owned_jobs, running_part
from burstd.api.job_connections.server import JobConnection
from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady
from burstd.domain.plugins.shell import ConnectionLost, RemoteTerminal, Shell, TerminalSize
from burstd.slurm.commands.job_facts import JobFacts
from burstd.transfer.protocol import terminal as frames
from burstd.transfer.protocol.relay import shutdown_socket

log = structlog.get_logger(__name__)

_MAX_COMMAND_BYTES = 8192
_TERM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SEND_LOCK_S = 1.0
_END_TIMEOUT_S = 20.0
# Standard input is the token of enter.sh; as an argument it would be that of this script as well.
_END = """for one in $(grep -lzsxF -f - /proc/[0-9]*/cmdline); do
    pid=${one#/proc/} pid=${pid%/cmdline}
    [ "$(stat -c %u "/proc/$pid")" != "$(id -u)" ] || kill "$pid"
done"""
_SNAPSHOT_S = 10.0
"""The next snapshot is there by then."""
_SNAPSHOT_CHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class _ShellRequest:
    job: str
    node: str
    command: tuple[str, ...]
    term: str
    size: TerminalSize
    raw: bool


class ShellService:
    """Implements ``JobService``."""

    def __init__(
        self, backend: Backend, open_shell: Callable[[Claim], Shell], read_facts: Callable[[str], JobFacts | None]
    ) -> None:
        """``open_shell`` as for ports, ``read_facts`` as for logs."""
        self._backend = backend
        self._open_shell = open_shell
        self._read_facts = read_facts
        self._script = files("burstd.node").joinpath("scripts", "enter.sh").read_text(encoding="utf-8")

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        """Nothing is kept."""

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        """Carries a terminal until either side or the job ends."""
        asked = _shell_request(request)
        self._await_snapshot(asked.job, caller, client)
        if request.get("look") is True:
            self._look(asked, caller, client)
            return
        machine = find_job_machine(asked.job, asked.node, caller, self._backend)
        facts = self._facts(machine.job.id, caller)
        node = machine.claim.slot
        token = secrets.token_hex(16)
        argv = ["sh", "-c", self._script, "sh", str(facts.uid), str(facts.gid), facts.job_id, asked.term]
        with (
            self._open_shell(machine.claim) as shell,
            contextlib.closing(
                shell.open_terminal([*argv, "raw" if asked.raw else "", token, *asked.command], asked.size)
            ) as remote,
        ):
            log.info("a shell in a job is opened", job=facts.queue_id, node=node, user=caller.user, owner=facts.user)
            client.send_line({"ok": True, "job": facts.job_id, "node": node})
            client.socket.settimeout(None)
            carrying = _Carrying(client, remote, f"job {facts.queue_id} on {node}")
            with client.cut_off_with(machine, carrying.cut_off):
                carrying.run()
            if not carrying.ended:
                _end_on_node(shell, token, node)
        log.info("a shell in a job is closed", job=facts.queue_id, node=node, user=caller.user)

    def _await_snapshot(self, job_id: str, caller: Caller, client: JobConnection) -> None:
        """Waits a while where a job runs that the last snapshot does not have running."""
        if self._is_in_snapshot(job_id, caller):
            return
        facts = self._read_facts(job_id)
        if facts is None or facts.state != "RUNNING" or not caller.can_see_user(facts.user):
            return
        self._backend.wake()
        deadline = time.monotonic() + _SNAPSHOT_S
        while time.monotonic() < deadline and not client.is_over() and not self._is_in_snapshot(job_id, caller):
            client.pause(_SNAPSHOT_CHECK_S)

    def _is_in_snapshot(self, job_id: str, caller: Caller) -> bool:
        try:
            return running_part(job_id, owned_jobs(job_id, caller, self._backend)) is not None
        except ApiError as error:
            if error.status != 404:
                raise
            return False

    def _look(self, asked: _ShellRequest, caller: Caller, client: JobConnection) -> None:
        row = running_part(asked.job, owned_jobs(asked.job, caller, self._backend))
        if row is None:
            # It says why.
            find_job_machine(asked.job, asked.node, caller, self._backend)
            raise ApiError(409, f"Job {asked.job} does not run.")
        facts = self._facts(row.id, caller)
        nodes = row.node_list
        if asked.node and asked.node not in nodes:
            raise ApiError(404, f"Job {row.id} has no node {asked.node!r}; it runs on {', '.join(nodes)}.", nodes)
        node = asked.node or (facts.nodes or nodes)[0]
        client.send_line({"ok": True, "job": facts.job_id, "user": facts.user, "node": node})

    def _facts(self, job_id: str, caller: Caller) -> JobFacts:
        facts = self._read_facts(job_id)
        if facts is None or facts.state != "RUNNING":
            state = f": it is {facts.state.lower()}" if facts is not None else " any more"
            raise ApiError(409, f"Job {job_id} does not run{state}.")
        if not caller.can_see_user(facts.user):
            raise ApiError(403, f"You are {caller.user}, and job {job_id} is not yours.")
        return facts


def _end_on_node(shell: Shell, token: str, node: str) -> None:
    """Ends what goes on where the client has gone; with ssh, the end of the terminal does so too."""
    try:
        shell.script(_END, input=token.encode(), timeout_s=_END_TIMEOUT_S)
    except NodeNotReady as error:
        log.warning("a shell in a job may go on until its node is told", node=node, error=str(error))


class _Carrying:
    """Bytes between a client and a terminal; two threads send to the client, and the one that cuts off."""

    def __init__(self, client: JobConnection, remote: RemoteTerminal, where: str) -> None:
        self._client = client
        self._remote = remote
        self._where = where
        self._lock = threading.Lock()
        self._over = False
        self.ended = False
        """Whether the command has ended by itself."""

    def run(self) -> None:
        """Returns when either side has ended."""
        back = threading.Thread(target=self._copy_back, name="job shell", daemon=True)
        back.start()
        try:
            while (got := frames.read_frame(self._client.socket.recv)) is not None:
                kind, payload = got
                if kind == frames.DATA:
                    self._remote.sendall(payload)
                elif kind == frames.SIZE:
                    self._remote.resize(TerminalSize(*frames.unpack_size(payload)))
        except OSError as error:
            log.debug("a shell in a job broke off", error=str(error))
        finally:
            self._remote.close()
            back.join()

    def cut_off(self, why: str) -> None:
        """Tells the client why, unless it reads nothing."""
        if self._lock.acquire(timeout=_SEND_LOCK_S):
            try:
                self._send_last(frames.LOST, f"{why[:1].upper()}{why[1:]}.".encode())
            finally:
                self._lock.release()
        self._remote.close()

    def _copy_back(self) -> None:
        try:
            while piece := self._remote.recv(frames.MAX_FRAME_BYTES):
                with self._lock:
                    self._client.send(frames.frame(frames.DATA, piece))
            last = frames.STATUS, frames.pack_status(self._remote.exit_status())
            self.ended = True
        except (ConnectionLost, OSError) as error:
            last = frames.LOST, f"The shell in {self._where} was lost: {error}.".encode()
        with self._lock:
            self._send_last(*last)
        # The thread that reads has nothing more to wait for.
        shutdown_socket(self._client.socket)

    def _send_last(self, kind: bytes, payload: bytes) -> None:
        if not self._over:
            self._over = True
            with contextlib.suppress(OSError):
                self._client.send(frames.frame(kind, payload[: frames.MAX_FRAME_BYTES]))


def _shell_request(request: Mapping[str, Any]) -> _ShellRequest:
    command, term = request.get("command", []), str(request.get("term", "dumb"))
    rows, columns = request.get("rows", 24), request.get("columns", 80)
    if not isinstance(command, list) or not all(isinstance(word, str) and "\0" not in word for word in command):
        raise ApiError(422, "The command is a list of words.")
    if sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in command) > _MAX_COMMAND_BYTES:
        raise ApiError(422, f"The command has more than {_MAX_COMMAND_BYTES} bytes: put it into a file.")
    if not _TERM.fullmatch(term):
        term = "dumb"
    if type(rows) is not int or type(columns) is not int or not (0 <= rows < 65536 and 0 <= columns < 65536):
        raise ApiError(422, "Rows and columns are 0 to 65535.")
    node, raw = str(request.get("node", "")), request.get("raw") is True
    return _ShellRequest(request["job"], node, tuple(command), term, TerminalSize(rows, columns), raw)
