"""ssh sessions in a process of their own, where what paramiko computes keeps burstd's loop from no turn.

A thread there has each session, over a socket pair, and ends it when the socket ends. The process ends with burstd.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import structlog

from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import Closing, CompletedCommand, ConnectionLost

if TYPE_CHECKING:
    from burstd.node.ssh.host_keys import HostKeys
    from burstd.node.ssh.session import SshSession, SshTarget

log = structlog.get_logger(__name__)

_PARTS = 3
"""Of the opening of a session, each with a time limit of its own."""
_SILENT_S = 60.0
"""A process that answers so long after the time that was given to it is stuck."""
_END_S = 5.0


class SshProcess:
    """Opens sessions, for any thread. The process starts with the first, and again where it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        """The process, and what it is told of new sessions by."""
        self._closed = False

    def open_session(self, target: SshTarget, known: HostKeys, timeout_s: float = 10.0) -> ProcessSession:
        """As ``open_ssh_session``; raises ConnectionLost as well."""
        try:
            session = self._session(target.address)
        except OSError as error:
            raise ConnectionLost(f"the process of ssh sessions takes no more: {error.strerror or error}") from None
        try:
            session.host_key = session.answer((target, known, timeout_s), _PARTS * timeout_s)
        except BaseException:
            session.close()
            raise
        return session

    def _session(self, address: str) -> ProcessSession:
        ours, theirs = socket.socketpair()
        connection = Connection(ours.detach())  # it is closed where nobody has it any more
        with theirs, self._lock:
            child, control = self._start_missing()
            socket.send_fds(control, [b"."], [theirs.fileno()])
        return ProcessSession(child, connection, address)

    def _start_missing(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._closed:
            raise ConnectionLost("burstd ends, and enters no machine any more")
        if self._running is not None and self._running[0].poll() is not None:
            log.error("the process of ssh sessions has ended, and is started again", status=self._running[0].returncode)
            self._forget()
        if self._running is None:
            control, theirs = socket.socketpair()
            control.settimeout(_END_S)
            with theirs:
                fd = theirs.fileno()
                argv = [sys.executable, "-I", "-m", __name__, str(fd)]
                child = subprocess.Popen(argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, env={}, cwd="/")
            self._running = child, control
        return self._running

    def close(self) -> None:
        """Ends it, and opens no session any more; may be repeated."""
        with self._lock:
            self._closed = True
            self._forget()

    def _forget(self) -> None:
        if self._running is None:
            return
        child, control = self._running
        self._running = None
        control.close()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class ProcessSession(Closing):
    """A session in that process. Not for several threads at once. Close it, or use ``with``."""

    host_key = ""
    """The key that the machine showed: ``ssh-ed25519 AAAA...``."""

    def __init__(self, child: subprocess.Popen[bytes], connection: Connection, address: str) -> None:
        self._child, self._connection, self._address = child, connection, address

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - as in subprocess.run
        """As SshSession has it."""
        done: CompletedCommand = self.answer((argv, input, timeout_s), timeout_s)
        return done

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002 - see run
        """As SshSession has it."""
        return self.run(["sh", "-c", text, "sh", *args], input=input, timeout_s=timeout_s)

    def answer(self, request: object, within_s: float) -> Any:
        """What ``_serve`` says to it. Raises ConnectionLost, and what is raised there."""
        try:
            self._connection.send(request)
            if not self._connection.poll(within_s + _SILENT_S):
                log.error("the process of ssh sessions is stuck, and is ended")
                self._child.kill()  # and all of its sessions; the next session has a new one
                self._child.wait()
            said = self._connection.recv()
        except (OSError, EOFError):
            raise ConnectionLost(f"the process of ssh sessions ended while it spoke with {self._address}") from None
        if isinstance(said, BurstdError):
            raise said
        return said

    def close(self) -> None:
        """Hangs up; may be repeated."""
        self._connection.close()


def _serve(connection: Connection, open_session: Callable[[SshTarget, HostKeys, float], SshSession]) -> None:
    """Opens the session that is asked for, and runs commands in it until nobody is there any more."""
    with connection, suppress(OSError, EOFError):
        try:
            session = open_session(*connection.recv())
        except BurstdError as error:
            connection.send(error)
            return
        with session:
            connection.send(session.host_key)
            while True:
                argv, given, timeout_s = connection.recv()
                try:
                    said: object = session.run(argv, input=given, timeout_s=timeout_s)
                except BurstdError as error:
                    said = error
                connection.send(said)


def _main() -> None:
    from burstd.node.ssh.session import open_ssh_session  # noqa: PLC0415 - it imports paramiko, burstd need not

    for ignored in (signal.SIGINT, signal.SIGTERM):  # it ends with burstd, which may have something to finish
        signal.signal(ignored, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        said, descriptors, *_ = socket.recv_fds(control, 1, 1)
        if not said:
            os._exit(0)  # whatever its threads are at: systemd waits for it before it starts burstd again
        for descriptor in descriptors:  # none: there are too many, and this session alone is lost
            with suppress(RuntimeError):  # so it is where no thread can be had
                threading.Thread(target=_serve, args=(Connection(descriptor), open_ssh_session), daemon=True).start()


if __name__ == "__main__":
    _main()
