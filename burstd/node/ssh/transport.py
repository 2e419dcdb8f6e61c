"""An ssh connection whose other side may be anybody's: paramiko's, with the limits that it leaves to the server.

paramiko keeps whatever a server sends, takes packets of any length, and some of its waits have no end.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_DATA, MSG_CHANNEL_EXTENDED_DATA
from paramiko.packet import Packetizer

_PACKET_BYTES = 256 << 10
"""No packet is longer: OpenSSH's own limit. RFC 4253 wants 35,000 bytes to be taken."""
_GREETING_BYTES = 64 << 10
"""All lines before and with the version."""
_POLL_S = 1.0
"""How often the thread of an idle connection looks whether it is closed. paramiko's 0.1 s costs 1 ms a second."""


class _Packetizer(Packetizer):
    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self._greeting = 0

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if not 0 <= n <= _PACKET_BYTES:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        read: bytes = super().read_all(n, check_rekey)
        return read

    def _read_timeout(self, timeout: float) -> bytes:
        """Reads on in the greeting; nothing else uses it."""
        piece: bytes = super()._read_timeout(timeout)  # type: ignore[misc, unused-ignore]
        self._greeting += len(piece)
        if self._greeting > _GREETING_BYTES:
            raise paramiko.SSHException(f": more than {_GREETING_BYTES} bytes and no version")
        return piece


def _bounded(take: Any) -> Any:
    """Takes what comes for a channel, as long as it keeps to the window that it was given."""

    def taken(channel: Any, message: paramiko.Message) -> None:
        take(channel, message)
        if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size:
            raise paramiko.SSHException(f"more than the {channel.in_window_size} bytes that were allowed")

    return taken


class LimitedTransport(paramiko.Transport):
    """A transport that limits how much unread output it holds."""

    _channel_handler_table = {  # noqa: RUF012 - paramiko's
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined, unused-ignore]  # noqa: SLF001
        MSG_CHANNEL_DATA: _bounded(paramiko.Channel._feed),  # type: ignore[attr-defined, unused-ignore]  # noqa: SLF001
        MSG_CHANNEL_EXTENDED_DATA: _bounded(paramiko.Channel._feed_extended),  # type: ignore[attr-defined, unused-ignore]  # noqa: SLF001
    }

    _active_check_timeout = _POLL_S
    # With these, C checks each packet; of the others paramiko compares the MAC in Python, byte by byte.
    _preferred_ciphers = tuple(sorted(paramiko.Transport._preferred_ciphers, key=lambda name: "-gcm" not in name))  # type: ignore[attr-defined, unused-ignore]  # noqa: SLF001

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, packetizer_class=_Packetizer)

    def close(self) -> None:
        """Hangs up at once: the end of the socket wakes the thread that waits on it."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().close()

    @contextmanager
    def close_after(self, seconds: float) -> Iterator[None]:
        """Hangs up where what is inside takes longer, which ends it by an exception."""
        timer = threading.Timer(seconds, self.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
