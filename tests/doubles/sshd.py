"""An sshd on loopback that lies: before the handshake by raw bytes, after the login by what it is told to send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
from paramiko.common import (
    AUTH_SUCCESSFUL,
    OPEN_SUCCEEDED,
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_WINDOW_ADJUST,
)

PIECE = b"x" * 32768
ADDRESS = "127.0.0.2"
"""Another than that which its clients come from."""
Raw = Callable[[socket.socket], None]
Conduct = Callable[["Served"], None]


class Served:
    """One connection that logged in. ``command``: what it asked for; none so far."""

    def __init__(self, transport: paramiko.Transport, stopped: threading.Event) -> None:
        self.transport = transport
        self.stopped = stopped
        self.answers_exec = True
        self.executed = threading.Event()
        self.channel: paramiko.Channel
        self.command = b""
        self.sent = 0
        """Bytes that ``flood`` got rid of."""

    def flood(self, total: int, *, stderr: bool, heeds_window: bool) -> None:
        """Sends so many bytes to the one stream; without heed it sends them whatever the client allows."""
        self.sent = 0
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while self.sent < total and self.transport.is_active() and not self.stopped.is_set():
                if heeds_window:
                    (self.channel.sendall_stderr if stderr else self.channel.sendall)(PIECE)
                else:
                    self._push(stderr=stderr)
                self.sent += len(PIECE)

    def _push(self, *, stderr: bool) -> None:
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_EXTENDED_DATA if stderr else cMSG_CHANNEL_DATA)
        message.add_int(self.channel.remote_chanid)
        if stderr:
            message.add_int(1)
        message.add_string(PIECE)
        _send(self.transport, message)

    def stop_reading(self) -> None:
        """Lets the client send without an end, and takes no more of it from the wire."""
        allow = paramiko.Message()
        allow.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
        allow.add_int(self.channel.remote_chanid)
        allow.add_int(1 << 30)

        def never(*_: object) -> bytes:
            self.stopped.wait(60)
            raise EOFError

        vars(self.transport.packetizer)["read_all"] = never
        _send(self.transport, allow)

    def open_channel(self, kind: str) -> str:
        """Asks the client for a channel, as only a client should ask a server; what came of it."""
        with contextlib.suppress(paramiko.SSHException):
            self.transport.open_channel(kind, ("127.0.0.1", 22), ("127.0.0.1", 1), timeout=3.0)
            return "opened"
        return "refused"


def _send(transport: Any, message: paramiko.Message) -> None:
    """What no honest server sends has no public way."""
    transport._send_message(message)


class _Login(paramiko.ServerInterface):
    def __init__(self, served: Served) -> None:
        self._served = served

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - the interface has it
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002 - the interface has it
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002 - the interface has it
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._served.channel, self._served.command = channel, command
        self._served.executed.set()
        if not self._served.answers_exec:
            self._served.stopped.wait(60)
        return True


class Sshd:
    """``raw``: all that it does with a connection; else ``conduct`` once a command came, ``begun`` before the login."""

    def __init__(self, *, raw: Raw | None = None, conduct: Conduct | None = None, begun: Conduct | None = None) -> None:
        self.key = paramiko.ECDSAKey.generate()
        self.stopped = threading.Event()
        self.served: list[Served] = []
        self._raw, self._conduct, self._begun = raw, conduct, begun
        self._listener = socket.create_server((ADDRESS, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def host_key(self) -> str:
        """As a console shows it."""
        return f"{self.key.get_name()} {self.key.get_base64()}"

    def close(self) -> None:
        """Ends all of its threads."""
        self.stopped.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for served in self.served:
            served.transport.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self.stopped.is_set():
                connection, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        if self._raw is not None:
            with connection, contextlib.suppress(OSError):
                self._raw(connection)
            return
        transport = paramiko.Transport(connection)
        transport.add_server_key(self.key)
        served = Served(transport, self.stopped)
        self.served.append(served)
        if self._begun is not None:
            self._begun(served)
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            transport.start_server(server=_Login(served))
            while not self.stopped.is_set() and transport.is_active():
                if served.executed.wait(0.1):
                    if self._conduct is not None:
                        self._conduct(served)
                    break
            while not self.stopped.is_set() and transport.is_active():
                self.stopped.wait(0.1)
        transport.close()


@contextmanager
def sshd(*, raw: Raw | None = None, conduct: Conduct | None = None, begun: Conduct | None = None) -> Iterator[Sshd]:
    """One for a while."""
    made = Sshd(raw=raw, conduct=conduct, begun=begun)
    try:
        yield made
    finally:
        made.close()
