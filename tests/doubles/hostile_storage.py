"""A storage node that is an attacker's: it speaks burstd's frames, and answers whatever it likes."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from burstd.transfer.protocol.client import ObjectServerClient
from burstd.transfer.protocol.frames import HEADER, MAGIC, ConnectionClosed, ReplyStatus, read_exactly


class HostileStorage:
    """Answers each request with the next of ``bodies``, the last for ever; ``client`` is burstd's end. Use ``with``."""

    def __init__(self, *bodies: bytes, status: int = ReplyStatus.OK) -> None:
        self._read_fd, out = os.pipe()
        back, self._write_fd = os.pipe()
        self._bodies = list(bodies)
        self._status = status
        self.requests = 0
        self.client = ObjectServerClient(
            os.fdopen(back, "rb", 0), os.fdopen(out, "wb", 0), name="the node", timeout_s=20
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            os.write(self._write_fd, MAGIC + HEADER.pack(0, ReplyStatus.OK, 0, 0))
            while True:
                number, _, text, body = HEADER.unpack(read_exactly(self._read_fd, HEADER.size))
                read_exactly(self._read_fd, text + body)
                self.requests += 1
                body_to_send = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]
                rest = memoryview(HEADER.pack(number, self._status, 0, len(body_to_send)) + body_to_send)
                while rest:
                    rest = rest[os.write(self._write_fd, rest) :]
        except (ConnectionClosed, OSError):
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()
        self._thread.join(20)
        os.close(self._read_fd)
        os.close(self._write_fd)
