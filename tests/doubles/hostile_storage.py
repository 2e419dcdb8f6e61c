"""A storage node that is an attacker's: it speaks burstd's frames, and answers whatever it likes."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from burstd.transfer.protocol.client import WireClient
from burstd.transfer.protocol.frames import HEADER, MAGIC, HungUp, Say, read_exactly


class HostileStorage:
    """Answers each request with the next of ``bodies``, the last for ever; ``client`` is burstd's end. Use ``with``."""

    def __init__(self, *bodies: bytes, say: int = Say.OK) -> None:
        self._asked, out = os.pipe()
        back, self._says = os.pipe()
        self._bodies = list(bodies)
        self._say = say
        self.requests = 0
        self.client = WireClient(os.fdopen(back, "rb", 0), os.fdopen(out, "wb", 0), name="the node", patience_s=20)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            os.write(self._says, MAGIC + HEADER.pack(0, Say.OK, 0, 0))
            while True:
                number, _, text, body = HEADER.unpack(read_exactly(self._asked, HEADER.size))
                read_exactly(self._asked, text + body)
                self.requests += 1
                said = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]
                rest = memoryview(HEADER.pack(number, self._say, 0, len(said)) + said)
                while rest:
                    rest = rest[os.write(self._says, rest) :]
        except (HungUp, OSError):
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.client.close()
        self._thread.join(20)
        os.close(self._asked)
        os.close(self._says)
