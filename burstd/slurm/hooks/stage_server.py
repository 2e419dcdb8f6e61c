"""burstd's side of burst_buffer/lua: takes the questions of ``burstd-stage`` at a socket and answers each."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import structlog

from burstd.domain.errors import BurstdError
from burstd.slurm.hooks.hook_socket import accept_connections, allow_connect, listen_for_hooks, peer_uid
from burstd.slurm.hooks.stage_client import HOOKS, POLLED_HOOKS

log = structlog.get_logger(__name__)

_MAX_CALL_BYTES = 8 * 1024 * 1024
_IO_TIMEOUT_S = 2.0
_CONNECTIONS = 512
_WAITING = 100
_HOOKS_AFTER_JOB = ("post_run", "data_out", "test_data_out", "teardown")
_JOB = re.compile(r"[0-9]{0,10}")
_NO_ID = 0xFFFFFFFF
"""What the kernel takes for no uid or gid."""
_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")

HookResult = Literal["ok", "refused", "busy", "again"]


class StageSocketFailed(BurstdError):
    """The socket for the hooks of burst_buffer/lua cannot be made."""


@dataclass(frozen=True, slots=True)
class StageCall:
    """One hook of one job, as Slurm called it.

    ``hook``: ``check`` (at sbatch; slurmctld answers nobody meanwhile, so ask it nothing), ``setup``, ``data_in``,
    ``test_data_in``, ``paths`` (slurmctld waits as for ``check``), ``pre_run``, ``post_run``, ``data_out``,
    ``test_data_out``, ``teardown`` or ``status``. ``job_id`` is Slurm's number, empty where there is none yet.
    ``uid``, ``gid``: the job's owner; None where this version of Slurm does not say. ``script``: its path in Slurm's
    state folder. ``text``: its beginning, in all but ``paths``, ``pre_run``, ``post_run`` and ``teardown``; bytes that
    are not UTF-8 are surrogates. ``hurry``: the job's data are not wanted any more. ``info``: what Slurm knows of the
    job, by the names of its Lua interface (``partition``, ``nodes``, ``work_dir``, ``array_job_id`` ...), empty before
    23.02.
    """

    hook: str
    job_id: str
    uid: int | None = None
    gid: int | None = None
    script: str = ""
    hurry: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    may_wait: bool = True
    """Its answer may take its time; False: so many others wait that this one is to say what is known now."""


@dataclass(frozen=True, slots=True)
class StageReply:
    """The answer to a hook.

    ``refused``: Slurm does not take the job (``check``) or holds it with ``text``. ``busy``: Slurm asks the ``test_``
    hook later, where its version has that. ``again``: still at work; the client asks again at once, so that a wait may
    be long and no single answer is. ``env``: variables of the job, in the answers to ``data_in`` and ``paths``.
    Raises ValueError for a variable that Slurm could not pass on.
    """

    result: HookResult
    text: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            if not _NAME.fullmatch(name) or "\n" in value or "\0" in value:
                raise ValueError(f"Slurm cannot pass the variable {name!r} on: its name or a line break in it forbids")

    def encode(self) -> bytes:
        """As the client reads it."""
        return json.dumps({"result": self.result, "text": self.text, "env": dict(self.env)}).encode() + b"\n"


WAIT_S = 20.0
"""After so long a client has to ask again, so that neither side waits for a dead one."""


def await_reply(begin: Callable[[Callable[[StageReply], None]], None], wait_s: float = WAIT_S) -> StageReply:
    """The reply that ``begin``'s argument is called with, from any thread; ``again`` where it takes longer."""
    pending: Future[StageReply] = Future()

    def resolve(reply: StageReply) -> None:
        if not pending.done():
            pending.set_result(reply)

    begin(resolve)
    try:
        return pending.result(wait_s)
    except FutureTimeoutError:
        return StageReply("again")


def parse_stage_call(line: bytes) -> StageCall | None:
    """One line as the client writes it; None where it is none of ours."""
    try:
        said = json.loads(line)
        hook, job, info = said["hook"], said["job"], said.get("info") or {}
        uid, gid = said.get("uid"), said.get("gid")
        known = hook in HOOKS and isinstance(job, str) and _JOB.fullmatch(job) and isinstance(info, dict)
        if not known or not all(n is None or (type(n) is int and 0 <= n < _NO_ID) for n in (uid, gid)):
            return None
        words = {str(name): str(value) for name, value in info.items()}
        script, text = str(said.get("script") or ""), str(said.get("text") or "")
        return StageCall(hook, job, uid, gid, script, bool(said.get("hurry")), words, text)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def encode_stage_call(call: StageCall) -> bytes:
    """A line that ``parse_stage_call`` reads."""
    said = {"hook": call.hook, "job": call.job_id, "uid": call.uid, "gid": call.gid, "script": call.script,
            "hurry": call.hurry, "info": dict(call.info), "text": call.text}  # fmt: skip
    return json.dumps(said).encode() + b"\n"


def parse_stage_reply(line: bytes) -> StageReply:
    """What ``StageReply.encode`` wrote. Raises ValueError, KeyError, TypeError."""
    said = json.loads(line)
    return StageReply(said["result"], said["text"], said["env"])


class StageServer:
    """Calls ``handle`` for each question, in a thread of its own: it may block, up to half a minute, then say "again".

    At most ``waiting`` of those hooks wait that Slurm can poll, and at most ``connections`` questions are open; who
    comes on top is told "busy". An exception in ``handle`` is logged, and the answer is a refusal; for a hook after the
    job, where a refusal would have Slurm forget its output, "busy": the client asks again.
    """

    def __init__(
        self,
        path: Path,
        allowed: Callable[[int], bool | None],
        handle: Callable[[StageCall], StageReply],
        *,
        waiting: int = _WAITING,
        connections: int = _CONNECTIONS,
    ) -> None:
        """``allowed``: whether this uid may call; SlurmUser must be, who speaks for every job's owner.

        None: not known yet. Such a call is left without an answer, as if nobody listened: what must be answered comes
        again, where a refusal would have Slurm hold the job.
        """
        self._path = path
        self._allowed = allowed
        self._handle = handle
        self._waiting = threading.BoundedSemaphore(waiting)
        self._open = threading.BoundedSemaphore(connections)
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._allowed_uid: int | None = None

    def start(self) -> None:
        """Listens. Raises StageSocketFailed."""
        try:
            listener = listen_for_hooks(self._path, 512)
        except OSError as error:
            raise StageSocketFailed(
                f"the socket {self._path} for the hooks of burst_buffer/lua cannot be made: {error.strerror}; "
                "does its folder exist?"
            ) from error
        self._listener = listener
        self._closing.clear()
        self._thread = threading.Thread(target=self._serve, args=(listener,), name="stage", daemon=True)
        self._thread.start()

    def allow_connect(self, uid: int) -> None:
        """SlurmUser may connect as well. Harmless when repeated."""
        if uid != self._allowed_uid:
            allow_connect(self._path, uid)
            self._allowed_uid = uid

    def close(self) -> None:
        """Takes no more questions. Those being answered get their answer if it comes before this process ends."""
        self._closing.set()
        if self._listener is not None:
            self._path.unlink(missing_ok=True)
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        if self._thread is not None:
            self._thread.join(_IO_TIMEOUT_S)

    def _serve(self, listener: socket.socket) -> None:
        for wire in accept_connections(listener, self._closing, "the hooks of burst_buffer/lua"):
            if not self._open.acquire(blocking=False):
                self._reply_busy(wire, "too many hooks of burst_buffer/lua at once; one is put off")
                continue
            try:
                threading.Thread(target=self._take, args=(wire,), name="stage call", daemon=True).start()
            except RuntimeError:
                self._open.release()
                self._reply_busy(wire, "no thread can be started for a hook of burst_buffer/lua; it is put off")

    def _reply_busy(self, wire: socket.socket, why: str) -> None:
        try:
            log.warning(why, uid=peer_uid(wire))
        except OSError as error:
            log.debug("a hook of burst_buffer/lua broke off; it comes again", error=str(error))
        self._send(wire, StageReply("busy"))
        wire.close()

    def _take(self, wire: socket.socket) -> None:
        try:
            with wire:
                self._answer(wire)
        finally:
            self._open.release()

    def _answer(self, wire: socket.socket) -> None:
        wire.settimeout(_IO_TIMEOUT_S)
        try:
            uid = peer_uid(wire)
            allowed = self._allowed(uid)
            if allowed is None:
                log.info("a hook of burst_buffer/lua is too early: slurmctld has not told SlurmUser yet", uid=uid)
                return
            if not allowed:
                log.warning("a hook of burst_buffer/lua was not heard: only Slurm may call it", uid=uid)
                self._send(wire, StageReply("refused", f"user {uid} may not speak for Slurm"))
                return
            line = b""
            while not line.endswith(b"\n") and len(line) < _MAX_CALL_BYTES and (piece := wire.recv(1 << 16)):
                line += piece
        except OSError as error:
            log.debug("a hook of burst_buffer/lua broke off; it comes again", error=str(error))
            return
        call = parse_stage_call(line)
        if call is None:
            log.warning("a hook of burst_buffer/lua was not understood", uid=uid)
            self._send(
                wire, StageReply("refused", "burstd does not understand this burstd-stage: are both of one version?")
            )
            return
        waits = call.hook in POLLED_HOOKS
        if waits and not self._waiting.acquire(blocking=False):
            # Others who wait long must not keep one from its answer that has it by now.
            reply = self._reply(replace(call, may_wait=False))
            self._send(wire, StageReply("busy") if reply.result == "again" else reply)
            return
        try:
            self._send(wire, self._reply(call))
        finally:
            if waits:
                self._waiting.release()

    def _reply(self, call: StageCall) -> StageReply:
        try:
            return self._handle(call)
        except BurstdError as error:
            log.error("a hook of burst_buffer/lua failed", hook=call.hook, job=call.job_id, error=str(error))
            text = str(error)
        except Exception:
            log.exception("a hook of burst_buffer/lua failed", hook=call.hook, job=call.job_id)
            text = f"burstd failed at {call.hook}: its log says why (journalctl -u burstd)"
        return StageReply("busy" if call.hook in _HOOKS_AFTER_JOB else "refused", text)

    def _send(self, wire: socket.socket, reply: StageReply) -> None:
        try:
            wire.settimeout(_IO_TIMEOUT_S)
            wire.sendall(reply.encode())
        except OSError as error:  # the client is gone: Slurm killed it, or it asks again
            log.debug("nobody waits for the answer to a hook of burst_buffer/lua", error=str(error))
