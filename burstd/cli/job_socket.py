"""The daemon's socket for connections into running jobs."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from pathlib import Path
from typing import Any

from burstd.cli.session import (
    EXIT_CODE_BY_STATUS,
    ApiClient,
    DaemonUnreachable,
    ExitCode,
    connect_timeout_option,
    connection_error,
)

REPLY_TIMEOUT_S = 60.0
"""For the daemon's answer: it may have to make an ssh connection first."""
_MAX_ANSWER_BYTES = 1 << 16
"""Bytes of the first answer."""
_MAX_LINE_BYTES = 1 << 20
"""Of a later one: a piece of a job's output has 256 KiB."""


class JobRefused(Exception):
    """The daemon's no, with its HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class JobSocket:
    """jobs.sock beside the control socket, and what is asked for there."""

    def __init__(self, control: Path, request: dict[str, Any]) -> None:
        self._path = control.with_name("jobs.sock")
        self._request = request

    def connect(self, **more: Any) -> tuple[socket.socket, dict[str, Any]]:
        """A connection that was let through, and the answer. Raises JobRefused, DaemonUnreachable.

        ``more`` is added to the request.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        answer: dict[str, Any] = {}
        try:
            connection.setsockopt(*connect_timeout_option(REPLY_TIMEOUT_S))
            connection.connect(str(self._path))
            connection.settimeout(REPLY_TIMEOUT_S)
            # A no may come before the question; it is heard below.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(json.dumps(self._request | more).encode() + b"\n")
            answer = read_answer_line(connection)
            connection.settimeout(None)
        except TimeoutError:
            raise DaemonUnreachable(f"burstd does not answer on {self._path} within {REPLY_TIMEOUT_S:.0f} s.") from None
        except OSError:
            raise connection_error(self._path) from None
        finally:
            if not answer.get("ok"):
                connection.close()
        if not answer:
            raise DaemonUnreachable(f"burstd on {self._path} hung up without an answer; it may be ending.")
        if not answer.get("ok"):
            status = answer.get("status")
            raise JobRefused(status if type(status) is int else 503, str(answer.get("error", "the daemon said no")))
        return connection, answer


def connect_unless_starting(burstd: ApiClient, daemon: JobSocket, *, again: bool, **more: Any) -> socket.socket | None:
    """A connection; None: with ``again``, burstd may be starting. Ends the program where it refuses or is not there."""
    try:
        return daemon.connect(**more)[0]
    except JobRefused as no:
        if again and no.status == 503:
            return None
        burstd.fail(EXIT_CODE_BY_STATUS.get(no.status, ExitCode.UNREACHABLE), str(no))
    except DaemonUnreachable as error:
        if again:
            return None
        burstd.fail(ExitCode.UNREACHABLE, str(error))


def read_answer_line(connection: socket.socket) -> dict[str, Any]:
    """One line, and nothing of what follows it; empty where there is none."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_ANSWER_BYTES and (byte := connection.recv(1)):
        line += byte
    return _parse(line)


class AnswerLines:
    """The answers that follow on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._heard = bytearray()

    def next(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next answer; empty: burstd hung up. None: none came in time."""
        searched = 0
        while (end := self._heard.find(b"\n", searched)) < 0:
            searched = len(self._heard)
            if searched > _MAX_LINE_BYTES or not select.select([self._connection], [], [], timeout_s)[0]:
                return {} if searched > _MAX_LINE_BYTES else None
            try:
                piece = self._connection.recv(1 << 18)
            except ConnectionError:
                piece = b""
            if not piece:
                return {}
            self._heard += piece
        line = bytes(self._heard[: end + 1])
        del self._heard[: end + 1]
        return _parse(line)


def _parse(line: bytes) -> dict[str, Any]:
    """The answer; empty where it is none."""
    try:
        decoded = json.loads(line) if line else {}
    except (ValueError, RecursionError):
        decoded = {}
    return decoded if isinstance(decoded, dict) else {}
