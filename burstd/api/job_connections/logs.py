"""What running jobs write to their standard output and error, read on the node of each job's batch script.

The request has ``stream`` (``stdout`` or ``stderr``), ``lines`` (how many of the last to begin with, -1: all),
``follow``, and ``at`` where a client goes on after a connection that broke: what the last ``data`` had. After a good
answer each line of JSON is one of

- ``{"data": BASE64, "at": {"file": ..., "offset": ...}}``: what comes next;
- ``{"note": TEXT}``: why nothing comes now;
- ``{"file": PATH, "note": TEXT}``: the file is on this host, for the client to read with its own rights. With
  ``follow`` the connection stays until the job has ended;
- ``{"end": TEXT, "failed": true or false}``: the last one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from typing import Any

import structlog

from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, require_latest_loop
from burstd.api.job_connections.job_nodes import (
    JobMachine,
    claims_with_jobs,
    ended_because,
    owned_jobs,
    run_ended,
    running_part,
)
from burstd.api.job_connections.server import JobConnection
from burstd.domain.claim import Claim
from burstd.domain.errors import NodeNotReady, NodeRefused
from burstd.domain.plugins.shell import Shell
from burstd.domain.slurm.job import Job
from burstd.slurm.commands.job_facts import JobFacts

log = structlog.get_logger(__name__)

PIECE_BYTES = 256 << 10
"""Bytes of a file that are read at a time, and kept on the head."""
MAX_LINES = 1_000_000
_WAITS = 4
"""A call on the node waits so many half seconds for more."""
_CALL_TIMEOUT_S = 30.0
STATE_CHECK_S = 1.0
_RETRY_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Between attempts to reach the node again."""
_MAX_OFFSET = 10**18
_IDENTITY = re.compile(r"[0-9]{1,20}:[0-9]{1,20}", re.ASCII)
_HEADER = re.compile(rf"(data|same) ({_IDENTITY.pattern}) ([0-9]{{1,18}}) ([0-9]{{1,18}})", re.ASCII)
_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_ON_NODES = ("RUNNING", "SUSPENDED")
_PROBLEMS = {
    "missing": "{path} on {node} does not exist yet",
    "denied": "{path} on {node} may not be read by {user}",
    "irregular": "{path} on {node} is no regular file",
}


@dataclass(frozen=True, slots=True)
class _LogRequest:
    job: str
    error_stream: bool
    follow: bool
    lines: int
    """How many of the last to begin with; -1: all."""
    offset: int = 0
    """The byte to begin with, in the file that was read before."""
    identity: str = ""
    """Device and inode of that file; empty: none was."""


@dataclass(frozen=True, slots=True)
class _LogLocation:
    """Where the output of a job is at a moment. No ``path``: the job waits."""

    facts: JobFacts
    row: Job | None
    """None: the job does not run."""
    path: str = ""
    claim: Claim | None = None
    """The machine that has the file, where the head has it not or, of a job that has ended, perhaps not."""


@dataclass(frozen=True, slots=True)
class _LogPiece:
    state: str
    identity: str = ""
    size: int = 0
    offset: int = 0
    data: bytes = b""


class LogService:
    """Implements ``JobService``."""

    def __init__(
        self,
        backend: Backend,
        open_shell: Callable[[Claim], Shell],
        read_facts: Callable[[str], JobFacts | None],
        is_on_head: Callable[[Claim, str, str], bool] = lambda *_: False,
    ) -> None:
        """``open_shell`` as for ports. ``read_facts``: what Slurm knows of a job; raises SchedulerUnavailable.

        ``is_on_head``: whether a path on the machine of a claim is the same file on the head, for a user.
        """
        self._backend = backend
        self._open_shell = open_shell
        self._read_facts = read_facts
        self._is_on_head = is_on_head
        self._script = files("burstd.node").joinpath("scripts", "log.sh").read_text(encoding="utf-8")

    def close_idle(self, idle_timeout_s: float | None = None) -> None:
        """Nothing is kept."""

    def serve(self, request: Mapping[str, Any], caller: Caller, client: JobConnection) -> None:
        """Tells what the job has written, and with ``follow`` what it writes until its end."""
        asked = _log_request(request)
        # What changes while it is located is a change as well.
        shown = self._shown(asked, caller)
        location = self._locate(asked, caller)
        client.send_line({"ok": True, "job": location.facts.queue_id})
        client.socket.settimeout(None)
        while not location.path:
            reason = f": {location.row.reason}" if location.row is not None and location.row.reason else ""
            note = f"Job {location.facts.queue_id} is {location.facts.state.lower()}{reason}."
            if not asked.follow:
                client.send_line({"end": note, "failed": True})
                return
            client.send_line({"note": note})
            if not self._wait_for_change(asked, caller, client, shown):
                return
            shown = self._shown(asked, caller)
            location = self._locate(asked, caller)
        problem = ""
        if location.claim is not None:
            node = location.claim.slot
            log.info("a job's output is read", job=location.facts.queue_id, node=node, user=caller.user)
            reading = _NodeLog(partial(self._read_piece, location, node), location, location.claim, asked, client)
            problem = reading.run(self._open_shell, partial(self._end_reason, location.row, location.claim))
        if location.claim is None or (problem and location.row is None):
            self._point_to_file(location, asked, client)
        else:
            client.send_line({"end": problem, "failed": bool(problem)})

    def _end_reason(self, row: Job | None, claim: Claim) -> str:
        if row is None:
            return "the job does not run any more"
        return ended_because(JobMachine(row, claim), require_latest_loop(self._backend)[0])

    def _read_piece(
        self, location: _LogLocation, node: str, shell: Shell, begin: str, identity: str, wait: bool
    ) -> _LogPiece:
        facts = location.facts
        words = (facts.uid, facts.gid, location.path, facts.work_dir, begin, identity, wait * _WAITS, PIECE_BYTES)
        done = shell.script(self._script, *map(str, words), timeout_s=_CALL_TIMEOUT_S)
        if done.rc != 0:
            raise NodeRefused(f"{node} cannot read it as {facts.user}: {done.last_line}")
        return _parse_piece(done.out)

    def _locate(self, asked: _LogRequest, caller: Caller) -> _LogLocation:
        rows = self._rows(asked.job, caller)
        row = running_part(asked.job, rows)
        facts = self._read_facts(row.id if row is not None else rows[0].id if len(rows) == 1 else asked.job)
        if facts is None:
            raise ApiError(
                404,
                f"Slurm knows no job {asked.job} (any more). The output of a job that has ended is in the file that "
                f"it was submitted with, slurm-{asked.job}.out by default.",
            )
        if not caller.can_see_user(facts.user):
            raise ApiError(403, f"You are {caller.user}, and job {asked.job} is not yours.")
        if row is None and (facts.state in _WAITING or facts.state in _ON_NODES):
            # What has just begun to run is in the next snapshot.
            return _LogLocation(facts, rows[0] if rows else None)
        path = (asked.error_stream and facts.std_err) or facts.std_out
        if not path:
            raise ApiError(
                409,
                f"Job {facts.queue_id} has no output file: what salloc and srun run writes to their terminal.",
            )
        claim = claims_with_jobs(self._backend).get(facts.nodes[0]) if facts.nodes else None
        if claim is not None and self._is_on_head(claim, path, facts.user):
            claim = None
        return _LogLocation(facts, row, path, claim)

    def _rows(self, job_id: str, caller: Caller) -> tuple[Job, ...]:
        """Empty where the snapshot has not the job (any more)."""
        try:
            return owned_jobs(job_id, caller, self._backend)
        except ApiError as error:
            if error.status != 404:
                raise
            return ()

    def _shown(self, asked: _LogRequest, caller: Caller) -> list[tuple[str, str, str]]:
        return [(job.id, job.state.value, job.reason) for job in self._rows(asked.job, caller)]

    def _wait_for_change(
        self, asked: _LogRequest, caller: Caller, client: JobConnection, before: list[tuple[str, str, str]]
    ) -> bool:
        """Waits until the job's rows are not as before; False: the client has gone."""
        while not client.is_over():
            client.pause(STATE_CHECK_S)
            # What no snapshot has had so far is seen soon.
            if (now := self._shown(asked, caller)) != before or not now:
                return True
        return False

    def _point_to_file(self, location: _LogLocation, asked: _LogRequest, client: JobConnection) -> None:
        facts, row, note = location.facts, location.row, ""
        runs = facts.state in _ON_NODES
        if not runs:
            note = f"Job {facts.queue_id} does not run any more ({facts.state.lower()}): its output is {location.path}."
        client.send_line({"file": location.path, "note": note})
        while runs and asked.follow and row is not None and not client.is_over():
            if run_ended(row, require_latest_loop(self._backend)[0]):
                break
            client.pause(STATE_CHECK_S)
        client.send_line({"end": "", "failed": False})


class _NodeLog:
    """One client's reading of one file on a node."""

    def __init__(
        self,
        read_piece: Callable[[Shell, str, str, bool], _LogPiece],
        location: _LogLocation,
        claim: Claim,
        asked: _LogRequest,
        client: JobConnection,
    ) -> None:
        """``read_piece``: from a byte on, or with ``-N`` the last lines, of the file read before; may wait for more."""
        self._read_piece = read_piece
        self._location = location
        self._claim = claim
        self._client = client
        self._follow = asked.follow
        self._lines = asked.lines
        self._offset = asked.offset
        self._identity = asked.identity
        self._size: int | None = None
        """How long the file was at first; without ``follow`` no more than that is told."""
        self._failures = 0
        self._noted = ""

    def run(self, open_shell: Callable[[Claim], Shell], end_reason: Callable[[], str]) -> str:
        """Until all is told or the client is gone; returns why it could not be, or nothing.

        With ``follow`` a node that cannot be reached is tried again until the run has ended: ``end_reason`` says so.
        """
        node = self._claim.slot
        while not self._client.is_over():
            try:
                with open_shell(self._claim) as shell:
                    return self._tell(shell, end_reason)
            except NodeRefused as error:
                return f"The output on {node} cannot be read: {error}."
            except NodeNotReady as error:
                if not self._follow:
                    return f"{node} cannot be reached: {error}."
                if why := end_reason():
                    return f"The end of the output was not read: {why}, and {node} cannot be reached: {error}."
                self._note(f"{node} cannot be reached and is tried again: {error}.")
                self._client.pause(_RETRY_S[min(self._failures, len(_RETRY_S) - 1)])
                self._failures += 1
        return ""

    def _tell(self, shell: Shell, end_reason: Callable[[], str]) -> str:
        while not self._client.is_over():
            over = not self._follow or bool(end_reason())
            # Lines are counted once the file is there.
            begin = str(self._offset) if self._identity or self._lines < 0 else f"-{self._lines}"
            piece = self._read_piece(shell, begin, self._identity, not over)
            self._failures = 0
            if piece.state in _PROBLEMS:
                node, facts = self._claim.slot, self._location.facts
                problem = _PROBLEMS[piece.state].format(path=self._location.path, node=node, user=facts.user)
                if over:
                    return problem
                self._note(problem)
                continue
            self._tell_piece(piece)
            if over and (not piece.data or (not self._follow and self._offset >= (self._size or 0))):
                return ""
        return ""

    def _tell_piece(self, piece: _LogPiece) -> None:
        self._noted = ""
        if self._identity and (piece.identity != self._identity or piece.offset < self._offset):
            self._note("The file was replaced or truncated; it is read from its beginning.")
        data = piece.data
        if not self._follow:
            self._size = piece.size if self._size is None else self._size
            data = data[: max(0, self._size - piece.offset)]
        self._offset, self._identity = piece.offset + len(data), piece.identity
        if data:
            at = {"file": self._identity, "offset": self._offset}
            self._client.send_line({"data": base64.b64encode(data).decode("ascii"), "at": at})

    def _note(self, text: str) -> None:
        if text != self._noted:
            self._client.send_line({"note": text})
            self._noted = text


def _log_request(request: Mapping[str, Any]) -> _LogRequest:
    lines, at = request.get("lines", -1), request.get("at")
    if type(lines) is not int or not -1 <= lines <= MAX_LINES:
        raise ApiError(422, f"{str(lines)[:20]} is no number of lines: 0 to {MAX_LINES}, or -1 for all.")
    if request.get("stream") not in ("stdout", "stderr"):
        raise ApiError(422, "The stream is stdout or stderr.")
    asked = _LogRequest(request["job"], request["stream"] == "stderr", request.get("follow") is True, lines)
    if at is None:
        return asked
    offset, identity = (at.get("offset"), str(at.get("file"))) if isinstance(at, dict) else (-1, "")
    if type(offset) is not int or not 0 <= offset < _MAX_OFFSET or not _IDENTITY.fullmatch(identity):
        raise ApiError(422, "at is a file and an offset, as data had them.")
    return replace(asked, offset=offset, identity=identity)


def _parse_piece(said: str) -> _LogPiece:
    """What log.sh printed. Raises NodeRefused: root of a node may print anything."""
    header, _, encoded = said.partition("\n")
    if header in _PROBLEMS:
        return _LogPiece(header)
    match = _HEADER.fullmatch(header)
    try:
        if match is not None:
            data = base64.b64decode(encoded.strip(), validate=True) if match[1] == "data" else b""
            return _LogPiece(match[1], match[2], int(match[3]), int(match[4]), data)
    except ValueError:
        pass  # no base64
    raise NodeRefused(f"the node's answer is not understood: {header[:100]!r}")
