"""Bytes both ways between a socket and a wire, each side's end told to the other."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

from burstd.domain.plugins.shell import Wire

_PIECE = 1 << 16
_LOOK_S = 1.0
QUIET_S = 60.0
"""Once one side has said all, the other may be silent for so long: not every way tells that its far end has gone."""


class SocketWire:
    """A connected socket as a wire."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def recv(self, most: int) -> bytes:
        """See Wire."""
        return self._socket.recv(most)

    def sendall(self, data: bytes) -> None:
        """See Wire."""
        self._socket.sendall(data)

    def finish(self) -> None:
        """See Wire."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See Wire."""
        hang_up(self._socket)


def hang_up(connection: socket.socket) -> None:
    """Ends a connection under the hands of who uses it in another thread; the descriptor stays his."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def relay(near: socket.socket, far: Wire, quiet_s: float = QUIET_S) -> None:
    """Carries until both sides have ended, or one is gone or silent for too long; then both are hung up.

    ``near`` is a blocking socket; its descriptor stays the caller's to close.
    """
    _Relay(near, far, quiet_s).run()


class _Relay:
    def __init__(self, near: socket.socket, far: Wire, quiet_s: float) -> None:
        self._near = near
        self._far = far
        self._quiet_s = quiet_s
        self._moved = time.monotonic()
        self._far_ended = threading.Event()

    def run(self) -> None:
        back = threading.Thread(target=self._back, name="relay", daemon=True)
        back.start()
        try:
            if self._forth():
                self._far.finish()
                self._wait()
        except OSError:
            pass  # The far side takes no more: it is gone.
        finally:
            self._far.close()
            hang_up(self._near)
            back.join()

    def _back(self) -> None:
        try:
            while piece := self._far.recv(_PIECE):
                self._moved = time.monotonic()
                self._near.sendall(piece)
            self._near.shutdown(socket.SHUT_WR)
        except OSError:
            hang_up(self._near)
        finally:
            self._far_ended.set()

    def _forth(self) -> bool:
        """True where the near side has said all; False where the far one has, and nothing more came."""
        poller = select.poll()
        poller.register(self._near, select.POLLIN)
        while True:
            if poller.poll(_LOOK_S * 1000):
                piece = self._near.recv(_PIECE)
                if not piece:
                    return True
                self._far.sendall(piece)
                self._moved = time.monotonic()
            elif self._far_ended.is_set() and self._silent():
                return False

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._near, 0)
        while not self._far_ended.is_set() and not self._silent():
            # Told where the near side has not only said all, but gone.
            if poller.poll(0):
                return
            self._far_ended.wait(_LOOK_S)

    def _silent(self) -> bool:
        return time.monotonic() - self._moved > self._quiet_s
