"""Bytes both ways between a socket and a wire, and passes each side's end on to the other."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time

from burstd.domain.plugins.shell import PortConnection

_CHUNK_BYTES = 1 << 16
_POLL_S = 1.0
RELAY_IDLE_S = 60.0
"""Once one side has said all, the other may be silent for so long: not every way tells that its far end has gone."""


class SocketWire:
    """A connected socket as a wire."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def recv(self, most: int) -> bytes:
        """Returns what came; empty: the other side sends no more."""
        return self._socket.recv(most)

    def sendall(self, data: bytes) -> None:
        """Sends all of it."""
        self._socket.sendall(data)

    def shutdown_write(self) -> None:
        """Ends sending; receiving goes on."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket."""
        shutdown_socket(self._socket)


def shutdown_socket(connection: socket.socket) -> None:
    """Ends a connection while another thread uses it, which keeps the descriptor."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def relay(near: socket.socket, far: PortConnection, idle_s: float = RELAY_IDLE_S) -> None:
    """Carries until both sides have ended, or one is gone or silent for too long; then both are hung up.

    ``near`` is a blocking socket; its descriptor stays the caller's to close.
    """
    _Relay(near, far, idle_s).run()


class _Relay:
    def __init__(self, near: socket.socket, far: PortConnection, idle_s: float) -> None:
        self._near = near
        self._far = far
        self._idle_s = idle_s
        self._moved_at = time.monotonic()
        self._far_ended = threading.Event()

    def run(self) -> None:
        back = threading.Thread(target=self._copy_far_to_near, name="relay", daemon=True)
        back.start()
        try:
            if self._copy_near_to_far():
                self._far.shutdown_write()
                self._wait_for_far()
        except OSError:
            pass  # The far side takes no more: it is gone.
        finally:
            self._far.close()
            shutdown_socket(self._near)
            back.join()

    def _copy_far_to_near(self) -> None:
        try:
            while piece := self._far.recv(_CHUNK_BYTES):
                self._moved_at = time.monotonic()
                self._near.sendall(piece)
            self._near.shutdown(socket.SHUT_WR)
        except OSError:
            shutdown_socket(self._near)
        finally:
            self._far_ended.set()

    def _copy_near_to_far(self) -> bool:
        """True where the near side has said all; False where the far one has, and nothing more came."""
        poller = select.poll()
        poller.register(self._near, select.POLLIN)
        while True:
            if poller.poll(_POLL_S * 1000):
                piece = self._near.recv(_CHUNK_BYTES)
                if not piece:
                    return True
                self._far.sendall(piece)
                self._moved_at = time.monotonic()
            elif self._far_ended.is_set() and self._is_idle():
                return False

    def _wait_for_far(self) -> None:
        poller = select.poll()
        poller.register(self._near, 0)
        while not self._far_ended.is_set() and not self._is_idle():
            # Passed on where the near side has not only said all, but gone.
            if poller.poll(0):
                return
            self._far_ended.wait(_POLL_S)

    def _is_idle(self) -> bool:
        return time.monotonic() - self._moved_at > self._idle_s
