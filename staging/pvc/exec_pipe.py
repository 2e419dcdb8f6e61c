"""A command in a pod as a pair of descriptors: pods/exec is a websocket with channels, and programs speak by pipes."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from burstd.domain.errors import ProviderError
from providers.openshift.client.websocket import STATUS, STDERR, STDIN, STDOUT, Channels, exit_code

_CHUNK = 256 << 10
_PIPE_BYTES = 1 << 20
_MAX_STDERR_BYTES = 4000
"""Bytes of standard error that are kept."""


class ExecPipe:
    """``read`` gives its standard output, what is written to ``write`` is its standard input; both are the caller's.

    When ``write`` is closed the connection is. When the command has ended, or the connection, ``read`` ends.
    """

    def __init__(self, connect: Callable[[], Channels], first: bytes = b"") -> None:
        """``connect`` is called in another thread. ``first``: what its standard input begins with."""
        incoming, write = os.pipe()
        read, outgoing = os.pipe()
        for end in (write, outgoing):
            # Without privileges a user's pipes may hold less in all; then they keep their size.
            with suppress(OSError):
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.read: IO[bytes] = os.fdopen(read, "rb", 0)
        self.write: IO[bytes] = os.fdopen(write, "wb", 0)
        self.error: ProviderError | None = None
        """Why there was no connection."""
        self._connect = connect
        self._first = first
        self._stderr = bytearray()
        self._status = b""
        self._connection_error = ""
        self._thread = threading.Thread(
            target=self._run, args=(incoming, outgoing), name="burstd-exec-pipe", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until the connection has ended."""
        self._thread.join(timeout_s)

    @property
    def error_text(self) -> str:
        """The last line of its standard error, else what Kubernetes says of its end, or how the connection ended."""
        lines = self._stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else _status_message(self._status) or self._connection_error

    def _run(self, incoming: int, outgoing: int) -> None:
        with os.fdopen(outgoing, "wb", 0) as out:
            try:
                channels = self._connect()
            except ProviderError as error:
                self.error = error
                os.close(incoming)
                return
            threading.Thread(
                target=self._copy_stdin, args=(channels, incoming), name="burstd-exec-pipe-in", daemon=True
            ).start()
            try:
                self._copy_output(channels, out)
            except OSError as error:
                self._connection_error = f"the connection broke: {error.strerror or error}"
            finally:
                channels.close()

    def _copy_output(self, channels: Channels, out: IO[bytes]) -> None:
        while (came := channels.receive()) is not None:
            channel, body = came
            if channel == STDOUT:
                rest = memoryview(body)
                while rest:
                    rest = rest[out.write(rest) :]
            elif channel == STDERR:
                self._stderr = (self._stderr + body)[-_MAX_STDERR_BYTES:]
            elif channel == STATUS:
                self._status += body

    def _copy_stdin(self, channels: Channels, incoming: int) -> None:
        with os.fdopen(incoming, "rb", 0) as source:
            try:
                if self._first:
                    channels.send(STDIN, self._first)
                while body := source.read(_CHUNK):
                    channels.send(STDIN, body)
            except OSError as error:
                self._connection_error = f"the connection broke: {error.strerror or error}"
            finally:
                channels.close()


def _status_message(status: bytes) -> str:
    """What a Status says that came when the command had ended; empty: nothing, or that all is well."""
    try:
        code = exit_code(status) if status else 0
    except ConnectionError as error:
        return str(error)
    killed = " (killed: has it memory enough?)" if code == 137 else ""
    return f"the program in the pod ended with exit status {code}{killed}" if code else ""
