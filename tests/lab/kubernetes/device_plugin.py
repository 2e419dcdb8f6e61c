"""A device plug-in: tells the kubelet of a node's GPUs, and hands those that it chooses to containers.

``device_plugin.py FOLDER RESOURCE PREFIX NUMBER...`` offers PREFIXNUMBER, character devices of the node, as RESOURCE.
FOLDER is the kubelet's for plug-ins. It runs in the node's box, so it needs Python and grpcio only: its few messages
are written here by hand. https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/
(the protocol v1beta1), https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

_VERSION = "v1beta1"
_SOCKET = "burstd-gpu.sock"
_HEALTHY = "Healthy"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_REGISTER_S = 10.0
_BYTES = 2
"""The wire type of strings and messages: a length, and as many bytes."""


def field(number: int, content: str | bytes) -> bytes:
    """One field of a message, a string or a message."""
    data = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | _BYTES]) + _varint(len(data)) + data


def fields(message: bytes) -> list[tuple[int, bytes]]:
    """A message's fields of that type, in order; there are no others in what the kubelet sends."""
    found = []
    at = 0
    while at < len(message):
        number, kind = message[at] >> 3, message[at] & 7
        if kind != _BYTES:
            raise ValueError(f"a field of the type {kind} in {message!r}")
        length, at = _read_varint(message, at + 1)
        found.append((number, message[at : at + length]))
        at += length
    return found


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return number, at
        shift += 7


class Plugin:
    """The plug-in's own service."""

    def __init__(self, prefix: str, numbers: Sequence[str]) -> None:
        self._prefix = prefix
        self._numbers = tuple(numbers)

    def handlers(self) -> grpc.GenericRpcHandler:
        """What grpcio serves."""
        once = {
            "GetDevicePluginOptions": self._nothing,
            "PreStartContainer": self._nothing,
            "Allocate": self._allocate,
        }
        made = {name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in once.items()}
        made["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self._list)
        return grpc.method_handlers_generic_handler(f"{_VERSION}.DevicePlugin", made)

    def _nothing(self, _request: bytes, _context: object) -> bytes:
        return b""

    def _list(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """All, at once; then nothing changes, for as long as the kubelet listens."""
        yield b"".join(field(1, field(1, number) + field(2, _HEALTHY)) for number in self._numbers)
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait()

    def _allocate(self, request: bytes, _context: object) -> bytes:
        return b"".join(field(1, self._granted(container)) for _, container in fields(request))

    def _granted(self, container: bytes) -> bytes:
        numbers = [number.decode() for _, number in fields(container)]
        granted = field(1, field(1, _VISIBLE) + field(2, ",".join(numbers)))
        for number in numbers:
            device = f"{self._prefix}{number}"
            granted += field(3, field(1, device) + field(2, device) + field(3, "rw"))
        return granted


def serve(folder: Path, resource: str, plugin: Plugin, registered: Callable[[], None]) -> None:
    """Serves, and tells the kubelet; does not return. Raises grpc.RpcError where the kubelet wants none of it."""
    server = grpc.server(ThreadPoolExecutor(8), handlers=[plugin.handlers()])
    server.add_insecure_port(f"unix:{folder / _SOCKET}")
    server.start()
    with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as kubelet:
        register = kubelet.unary_unary(f"/{_VERSION}.Registration/Register")
        register(field(1, _VERSION) + field(2, _SOCKET) + field(3, resource), timeout=_REGISTER_S, wait_for_ready=True)
    registered()
    server.wait_for_termination()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], Plugin(sys.argv[3], sys.argv[4:]), lambda: print("registered", flush=True))
