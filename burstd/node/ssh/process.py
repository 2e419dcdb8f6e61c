"""ssh sessions in a process of their own, where what paramiko computes keeps burstd's loop from no turn.

A thread there has each session, over a socket pair, and ends it when the socket ends. The process ends with burstd.
"""

from __future__ import annotations

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
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open_session(self, target: SshTarget, known: HostKeys, timeout_s: float = 10.0) -> ProcessSession:
        """As ``open_ssh_session``; raises ConnectionLost as well."""
        ours, theirs = socket.socketpair()
        session = ProcessSession(self, Connection(ours.detach()), target.address)
        try:
            with theirs, self._lock:
                socket.send_fds(self._running(), [b"."], [theirs.fileno()])
            session.host_key = session.answer((target, known, timeout_s), _PARTS * timeout_s)
        except OSError as error:
            session.close()
            raise ConnectionLost(f"the process of ssh sessions takes no more: {error.strerror or error}") from None
        except BaseException:
            session.close()
            raise
        return session

    def _running(self) -> socket.socket:
        """What it is told of new sessions by."""
        if self._child is not None and self._child.poll() is not None:
            log.error("the process of ssh sessions has ended, and is started again", status=self._child.returncode)
            self._forget()
        if self._control is None:
            self._control, theirs = socket.socketpair()
            self._control.settimeout(_END_S)
            with theirs:
                fd = theirs.fileno()
                argv = [sys.executable, "-I", "-m", __name__, str(fd)]
                self._child = subprocess.Popen(argv, pass_fds=(fd,), stdin=subprocess.DEVNULL, env={}, cwd="/")
        return self._control

    def kill(self) -> None:
        """Ends it, and all of its sessions; the next session has a new one."""
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child.wait()

    def close(self) -> None:
        """Ends it; may be repeated."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._child is not None:
            try:
                self._child.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._control = self._child = None


class ProcessSession(Closing):
    """A session in that process. Not for several threads at once. Close it, or use ``with``."""

    host_key = ""
    """The key that the machine showed: ``ssh-ed25519 AAAA...``."""

    def __init__(self, process: SshProcess, connection: Connection, address: str) -> None:
        self._process, self._connection, self._address = process, connection, address

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
                self._process.kill()
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
    while descriptors := socket.recv_fds(control, 1, 1)[1]:
        threading.Thread(target=_serve, args=(Connection(descriptors[0]), open_ssh_session), daemon=True).start()


if __name__ == "__main__":
    _main()
