"""burstctl job shell"""

from __future__ import annotations

import getpass
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated, Any

import typer

from burstd.cli.job_socket import JobRefused, JobSocket
from burstd.cli.plain_text import safe_text
from burstd.cli.session import (
    EXIT_CODE_BY_STATUS,
    ApiClient,
    DaemonUnreachable,
    ExitCode,
    JobArgument,
    with_client,
)
from burstd.transfer.protocol import terminal as frames

_TRIAL_S = 5.0
"""srun has started a step on the node by then, or the node cannot reach it."""
_TRIAL_END_S = 2.0
_CHUNK_BYTES = 1 << 14


class Way(StrEnum):
    """How the job is entered."""

    AUTO = "auto"
    SRUN = "srun"
    NODE = "node"


@with_client
def job_shell(
    burstd: ApiClient,
    job_id: JobArgument,
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Default: your shell.")] = None,
    node: Annotated[str, typer.Option(help="One of the job's nodes; default: the first.")] = "",
    via: Annotated[
        Way, typer.Option(help="srun: a step of the job; node: burstd's own way into the node; auto: srun if it works.")
    ] = Way.AUTO,
) -> None:
    """Enter your running job: a shell or a command on one of its nodes, in its environment, until it or the job ends.

    Options of the command follow after --.
    """
    words, interactive = list(command or ()), sys.stdin.isatty() and sys.stdout.isatty()
    daemon = JobSocket(burstd.path, {"kind": "shell", "job": job_id, "node": node, "command": words})
    connection, answer = _connect(burstd, daemon, look=True)
    connection.close()
    job, where, owner = str(answer.get("job")), str(answer.get("node")), str(answer.get("user"))
    if via is not Way.NODE and (why := _srun_problem(job, where, owner)):
        if via is Way.SRUN:
            burstd.fail(ExitCode.NEGATIVE, f"srun cannot enter job {job_id}: {why}.")
        _warn(f"srun cannot enter the job ({why}): burstd enters its node. See burstctl job shell in burstctl.md.")
        via = Way.NODE
    if via is not Way.NODE:
        pty = ["--pty"] if interactive else []
        _run_srun([*_srun_words(job, where), *pty, *(words or [os.environ.get("SHELL", "/bin/bash")])])
    size = os.get_terminal_size(sys.stdout.fileno()) if interactive else os.terminal_size((80, 24))
    term = os.environ.get("TERM", "dumb")
    connection, _ = _connect(
        burstd, daemon, node=where, term=term, rows=size.lines, columns=size.columns, raw=not interactive
    )
    with connection:
        status, lost = _carry(connection, interactive=interactive)
    if status is None:
        burstd.fail(ExitCode.NEGATIVE if lost else ExitCode.UNREACHABLE, lost or "burstd hung up.")
    raise typer.Exit(status)


def _connect(burstd: ApiClient, daemon: JobSocket, **more: Any) -> tuple[socket.socket, Mapping[str, Any]]:
    try:
        return daemon.connect(**more)
    except JobRefused as no:
        burstd.fail(EXIT_CODE_BY_STATUS.get(no.status, ExitCode.UNREACHABLE), str(no))
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))


def _srun_words(job: str, node: str) -> list[str]:
    return ["srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]


def _srun_environment() -> dict[str, str]:
    """Without what this shell's own job, if any, has for its steps."""
    return {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(("SLURM_", "SLURMD_"))}


def _srun_problem(job: str, node: str, owner: str) -> str:
    """Why srun starts no step there; empty: it does."""
    if shutil.which("srun") is None:
        return "it is not installed here"
    if getpass.getuser() != owner:
        return f"the job is {owner}'s"
    trial = subprocess.Popen(
        [*_srun_words(job, node), "--quiet", "true"], env=_srun_environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    try:
        _, error = trial.communicate(timeout=_TRIAL_S)
    except subprocess.TimeoutExpired:
        # srun takes its step back at SIGTERM.
        trial.terminate()
        try:
            trial.communicate(timeout=_TRIAL_END_S)
        except subprocess.TimeoutExpired:
            trial.kill()
            trial.communicate()
        return f"no step began within {_TRIAL_S:.0f} s; {node} may not reach this host's ports"
    if trial.returncode == 0:
        return ""
    said = error.strip().splitlines()
    return said[-1].removeprefix("srun: ").removeprefix("error: ") if said else f"exit status {trial.returncode}"


def _run_srun(words: list[str]) -> None:
    sys.stdout.flush()
    os.execvpe(words[0], words, _srun_environment())  # noqa: S606 - the words are srun's


def _carry(connection: socket.socket, *, interactive: bool) -> tuple[int | None, str]:
    """The exit status; None: there is none, and why, where burstd has told it."""
    if not interactive:
        return _Carrying(connection).run([])
    with _raw_terminal(), _window_changes() as changes:
        return _Carrying(connection, changes).run([sys.stdin.fileno()])


class _Carrying:
    """Keys to the node and what comes back to standard output. Neither waits for the other: a paste may be long."""

    def __init__(self, connection: socket.socket, window_changes: int | None = None) -> None:
        """``window_changes``: descriptor that can be read after each change of the window's size."""
        self._connection = connection
        self._changes = window_changes
        self._to_send = bytearray()

    def run(self, inputs: list[int]) -> tuple[int | None, str]:
        """``inputs``: standard input, where there is a terminal."""
        changes = [self._changes] if self._changes is not None else []
        try:
            while True:
                connection = self._connection.fileno()
                waiting = [] if self._to_send else inputs
                readable, writable, _ = select.select(
                    [connection, *changes, *waiting], [connection] if self._to_send else [], []
                )
                if writable:
                    del self._to_send[: self._connection.send(self._to_send, socket.MSG_DONTWAIT)]
                if self._changes in readable:
                    os.read(changes[0], _CHUNK_BYTES)
                    size = os.get_terminal_size(sys.stdout.fileno())
                    self._to_send += frames.frame(frames.SIZE, frames.pack_size(size.lines, size.columns))
                if inputs and inputs[0] in readable:
                    if typed := os.read(inputs[0], _CHUNK_BYTES):
                        self._to_send += frames.frame(frames.DATA, typed)
                    else:
                        inputs = []
                if connection in readable and (end := self._show()) is not None:
                    return end
        except ConnectionError:
            return None, ""

    def _show(self) -> tuple[int | None, str] | None:
        got = frames.read_frame(self._connection.recv)
        if got is None:
            return None, ""
        kind, payload = got
        if kind == frames.STATUS:
            return frames.unpack_status(payload), ""
        if kind == frames.LOST:
            return None, safe_text(payload.decode("utf-8", "replace"))
        sys.stdout.buffer.write(payload)
        sys.stdout.buffer.flush()
        return None


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes to the node, also Ctrl-C."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _window_changes() -> Iterator[int]:
    """A descriptor that can be read after each change of the window's size."""
    changed, change = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def note(*_: object) -> None:
        with suppress(BlockingIOError):
            os.write(change, b".")

    before = signal.signal(signal.SIGWINCH, note)
    try:
        yield changed
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(changed)
        os.close(change)


def _warn(text: str) -> None:
    sys.stderr.write(f"burstctl: {safe_text(text)}\n")
    sys.stderr.flush()
