"""A watch: one answer without an end, an event a line.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from providers.openshift.errors import error_without_response

_PIECE = 1 << 16
_EVENT = 4 << 20
"""Bytes of a line: etcd keeps no thing of more than 1.5 MiB."""
WatchEvent = dict[str, Any]


class WatchStream:
    """Iterated over by one thread; may be closed by another, which ends the iteration."""

    def __init__(self, response: Any, what: str) -> None:
        self._response = response
        self._what = what
        self._closed = threading.Event()
        # What a thread waits in ends by this only: closing a descriptor wakes nobody.
        self._socket = getattr(response.connection, "sock", None)

    def __iter__(self) -> Iterator[WatchEvent]:
        """Ends where the server ends it well. Raises CloudUnavailable where it breaks, or is silent for too long."""
        rest = b""
        try:
            for piece in self._response.stream(_PIECE, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                _check(rest)
                for line in lines:
                    if line.strip():
                        yield _event(line)
        except Exception as error:  # noqa: BLE001 - urllib3, ssl and sockets have each their own
            if self._closed.is_set():
                return
            raise error_without_response(error, self._what, changes=False) from None
        finally:
            self.close()

    def close(self) -> None:
        """Hangs up; may be repeated."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        # http.client's file may be closed by then: the thread that reads it has come to its end.
        with suppress(ValueError):
            self._response.close()


def _check(begun: bytes) -> None:
    """Raises ValueError for a line that goes on and on."""
    if len(begun) > _EVENT:
        raise ValueError(f"an event has more than {_EVENT} bytes")


def _event(line: bytes) -> WatchEvent:
    said = json.loads(line)
    if not isinstance(said, dict) or not isinstance(said.get("object"), dict):
        raise ValueError("what came is no event of a watch: is there a proxy in between?")  # noqa: TRY004 - of the wire
    return said
