"""The API server's side of a websocket: the handshake, and frames as a test wants them."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import struct
from pathlib import Path

from providers.openshift.client.access import KubeconfigAccess

PATIENCE_S = 10.0


class Peer:
    """One connection, taken from ``listener``. ``head``: what the client sent first."""

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        link, _ = listener.accept()
        link.settimeout(PATIENCE_S)
        self.link = link if tls is None else tls.wrap_socket(link, server_side=True)
        self.head = b""
        while b"\r\n\r\n" not in self.head:
            self.head += self.link.recv(1)

    def accepts(self) -> None:
        key = next(line for line in self.head.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
        words = key.split(b": ")[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(words, usedforsecurity=False).digest())
        self.link.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    def says(self, body: bytes, kind: int = 2, *, last: bool = True) -> None:
        self.link.sendall(frame(body, kind, last=last))

    def hears(self) -> tuple[int, bytes]:
        """Kind and body of the client's next frame; kind -1: it has hung up."""
        head = self._exactly(2)
        if len(head) < 2:
            return -1, b""
        assert head[1] & 128, "a client masks its frames"
        length = head[1] & 127
        if length >= 126:
            form = "!H" if length == 126 else "!Q"
            (length,) = struct.unpack(form, self._exactly(struct.calcsize(form)))
        mask = self._exactly(4)
        body = self._exactly(length)
        key = (mask * (length // 4 + 1))[:length]
        return head[0] & 15, (int.from_bytes(body, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")

    def close(self) -> None:
        self.link.close()

    def _exactly(self, count: int) -> bytes:
        came = b""
        while len(came) < count and (piece := self.link.recv(count - len(came))):
            came += piece
        return came


def frame(body: bytes, kind: int = 2, *, last: bool = True) -> bytes:
    """A server's."""
    length = len(body)
    first = bytes(((128 if last else 0) | kind,))
    if length < 126:
        return first + bytes((length,)) + body
    return first + (struct.pack("!BH", 126, length) if length < 1 << 16 else struct.pack("!BQ", 127, length)) + body


def access_to(listener: socket.socket, folder: Path, ca: Path | None) -> KubeconfigAccess:
    """As a kubeconfig says it."""
    scheme = "http" if ca is None else "https"
    cluster = {"server": f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"}
    file = folder / "kubeconfig"
    words = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster | ({"certificate-authority": str(ca)} if ca else {})}],
        "users": [{"name": "u", "user": {"token": "t0"}}],
    }
    file.write_text(json.dumps(words), encoding="utf-8")
    return KubeconfigAccess(file, "", 2, 5.0)
