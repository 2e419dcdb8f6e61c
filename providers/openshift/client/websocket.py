"""Channels over a websocket: how the API server lets commands in pods be run, and their ports be reached.

Each message is one byte for the channel and then any bytes (subprotocol ``v4.channel.k8s.io``, see
https://kubernetes.io/docs/reference/using-api/api-concepts/ and ``pods/exec``, ``pods/portforward``); frames are those
of RFC 6455. websocket-client makes the connection, with the credentials of the kubeconfig, and the frames to be sent.
They are sent and read here, because its socket cannot be read by one thread while another writes: OpenSSL does not
allow that, so both take turns on a socket that never blocks, and neither waits for the other while it waits for the
network.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from providers.openshift.client.access import KubeconfigAccess

STDIN, STDOUT, STDERR, STATUS, RESIZE = 0, 1, 2, 3, 4
"""Channels of ``pods/exec``; STATUS is told once, as JSON of the kind Status, when the command has ended."""
PROTOCOL = "v4.channel.k8s.io"
_PIECE = 1 << 16
_RECORD = 1 << 14
_FRAME = 1 << 26
"""No frame is longer: the API server's are some KiB."""
_PINGS = 16
"""Answers that may wait for their turn; a server that sends more needs no more."""
_STATUS_BYTES = 1 << 16
_CONTROL = 125
"""Bytes of a ping or a close at most (RFC 6455, 5.5)."""
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_WANTS = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def open_websocket(access: KubeconfigAccess, path: str, timeout_s: float) -> Any:
    """An open websocket. Raises WebSocketBadStatusException with what the server said, and what sockets raise."""
    import websocket  # noqa: PLC0415 - comes with the client, which a site without Kubernetes has not

    made: Any = websocket.WebSocket(sslopt=access.tls(), enable_multithread=False)
    options: dict[str, Any] = {}
    if proxy := access.proxy():
        parts = urlsplit(proxy)
        options = {
            "http_proxy_host": parts.hostname,
            "http_proxy_port": parts.port,
            "proxy_type": parts.scheme.replace("https", "http"),
        }
        if parts.username:
            options["http_proxy_auth"] = (parts.username, parts.password or "")
    else:
        # Else it would look for one in the environment by rules of its own.
        options = {"http_no_proxy": ["*"]}
    made.connect(
        "ws" + access.host.removeprefix("http") + path,
        header=[f"{key}: {value}" for key, value in access.headers().items()],
        subprotocols=[PROTOCOL],
        timeout=timeout_s,
        redirect_limit=0,
        **options,
    )
    return made


class Channels:
    """One connection. One thread may receive while another sends; any may close it."""

    def __init__(self, opened: Any, timeout_s: float, skip: Iterable[int] = ()) -> None:
        """``timeout_s``: how long a send may find no room. ``skip``: channels whose first message says nothing."""
        self._opened = opened
        self._socket = opened.sock
        self._socket.setblocking(False)
        self._timeout_s = timeout_s
        self._skip = set(skip)
        self._turn = threading.Lock()
        """Held for one call on the socket, which returns at once."""
        self._sending = threading.Lock()
        """Held for one whole frame."""
        self._counting = threading.Lock()
        self._inside = 0
        self._closed = False
        self._buffer = bytearray()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._channel = 0
        self._pending_pongs: deque[bytes] = deque()
        """Answers to pings."""

    def send(self, channel: int, data: bytes | memoryview) -> None:
        """All of it. Raises OSError, among them TimeoutError where the other side takes nothing for long."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        for start in range(0, max(1, len(view)), _PIECE):
            with self._sending:
                self._write(_frame(_BINARY, bytes((channel,)) + bytes(view[start : start + _PIECE])))
                self._send_pongs()

    def receive(self, timeout_s: float | None = None) -> tuple[int, bytes] | None:
        """Channel and bytes of what came next, at least one byte; None: the other side, or ``close``, ended it.

        Raises TimeoutError where nothing came, after which it may be asked again, and OSError.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        late = False
        while True:
            while self._frames:
                kind, body = self._frames.popleft()
                if kind == _CLOSE:
                    self.close()
                    return None
                if (message := self._message(kind, body)) is not None:
                    return message
            # What says nothing, such as pings, gives it no more time.
            if late:
                raise TimeoutError("nothing came from the API server in time")
            if not self._read(until):
                return None
            late = until is not None and time.monotonic() > until

    def close(self) -> None:
        """Hangs up; a ``receive`` that waits returns. May be repeated."""
        with self._counting:
            if self._closed:
                return
            self._closed = True
        if self._sending.acquire(blocking=False):
            try:
                with self._turn, suppress(OSError, ValueError):
                    self._socket.send(_frame(_CLOSE, struct.pack("!H", 1000)))
            finally:
                self._sending.release()
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._leave(0)

    def _message(self, kind: int, body: bytes) -> tuple[int, bytes] | None:
        if kind == _PING:
            if len(self._pending_pongs) >= _PINGS:
                return None
            self._pending_pongs.append(_frame(_PONG, body))
            if self._sending.acquire(blocking=False):
                try:
                    self._send_pongs()
                finally:
                    self._sending.release()
            return None
        if kind in (_TEXT, _BINARY) and body:
            self._channel, body = body[0], body[1:]
            if self._channel in self._skip:
                self._skip.discard(self._channel)
                return None
        return (self._channel, body) if kind in (_CONTINUED, _TEXT, _BINARY) and body else None

    def _read(self, until: float | None) -> bool:
        """Waits for bytes and takes the frames out of them; False: there will be no more."""
        try:
            self._enter()
        except OSError:
            return False
        try:
            while True:
                try:
                    with self._turn:
                        came = self._socket.recv(_PIECE)
                except _WANTS as want:
                    self._wait(want, select.POLLIN, until)
                    if self._closed:
                        return False
                    continue
                except (ssl.SSLError, OSError):
                    if self._closed:
                        return False
                    raise
                if not came:
                    return False
                self._buffer += came
                self._parse_frames()
                return True
        finally:
            self._leave(1)

    def _parse_frames(self) -> None:
        """Whole frames out of what came. Raises ConnectionError for what is no frame of a server's."""
        came, at = self._buffer, 0
        while len(came) - at >= 2:
            length, start = came[at + 1], at + 2
            if length >= 128:
                raise ConnectionError("a masked frame came from the API server")
            if length >= 126:
                form = "!H" if length == 126 else "!Q"
                start += struct.calcsize(form)
                if len(came) < start:
                    break
                (length,) = struct.unpack_from(form, came, at + 2)
            if length > (_CONTROL if came[at] & 8 else _FRAME):
                raise ConnectionError(f"a frame of {length} bytes came from the API server")
            if len(came) < start + length:
                break
            self._frames.append((came[at] & 15, bytes(came[start : start + length])))
            at = start + length
        del came[:at]

    def _send_pongs(self) -> None:
        while self._pending_pongs:
            self._write(self._pending_pongs.popleft())

    def _write(self, frame: bytes) -> None:
        """A whole frame, which nothing comes between."""
        self._enter()
        try:
            until = time.monotonic() + self._timeout_s
            at, view = 0, memoryview(frame)
            while at < len(view):
                # OpenSSL wants the same bytes again where there was no room.
                piece = view[at : at + _RECORD]
                try:
                    with self._turn:
                        at += self._socket.send(piece)
                    until = time.monotonic() + self._timeout_s
                except _WANTS as want:
                    self._wait(want, select.POLLOUT, until)
                    if self._closed:
                        raise ConnectionAbortedError("the connection was closed") from None
        finally:
            self._leave(1)

    def _wait(self, want: BaseException, usual: int, until: float | None) -> None:
        """Raises TimeoutError."""
        reads = isinstance(want, ssl.SSLWantReadError) or (usual == select.POLLIN and isinstance(want, BlockingIOError))
        poll = select.poll()
        poll.register(self._socket, select.POLLIN if reads else select.POLLOUT)
        left = None if until is None else max(0.0, until - time.monotonic()) * 1000
        if not poll.poll(left):
            raise TimeoutError("nothing came from, or was taken by, the API server in time")

    def _enter(self) -> None:
        with self._counting:
            if self._closed:
                raise ConnectionAbortedError("the connection was closed")
            self._inside += 1

    def _leave(self, count: int) -> None:
        """The last one out closes the descriptor: a number that another thread waits for must not be used anew."""
        with self._counting:
            self._inside -= count
            if self._closed and self._inside == 0:
                self._socket.close()


def _frame(kind: int, body: bytes) -> bytes:
    """A client's frame: whole, masked."""
    from websocket import ABNF  # noqa: PLC0415 - see open_websocket

    return bytes(ABNF.create_frame(body, kind).format())


def exit_code(status: bytes) -> int:
    """The exit status. Raises ConnectionError where there is none: the command did not start, or was lost.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/ with the reason NonZeroExitCode
    """
    try:
        said = json.loads(status[:_STATUS_BYTES])
        if said["status"] == "Success":
            return 0
        for cause in (said.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        words = str(said.get("message") or said.get("reason"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        words = f"no exit status, but {status[:200]!r}"
    raise ConnectionError(words)
