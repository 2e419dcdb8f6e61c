"""Ways into nodes, each shared by all connections that are carried there at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from burstd.model.claim import Claim
from burstd.model.shell import ConnectionLost, Shell, Wire

LINGER_S = 30.0
"""A browser comes back: a way that nobody uses stays open for so long."""


@dataclass(slots=True)
class _Way:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the shell is made or dialled from: it is for one thread at a time."""
    shell: Shell | None = None
    users: int = 0
    unused: float = 0.0


class Ways:
    """Used from several threads. ``enter``: a way into the machine of a claim; raises NodeNotReady, NodeRefused."""

    def __init__(self, enter: Callable[[Claim], Shell]) -> None:
        self._enter = enter
        self._lock = threading.Lock()
        self._ways: dict[str, _Way] = {}

    @contextmanager
    def wire(self, claim: Claim, port: int) -> Iterator[Wire]:
        """A connection to a port of the machine. Raises what ``enter`` and ``Shell.dial`` raise."""
        with self._lock:
            way = self._ways.setdefault(claim.id, _Way())
            way.users += 1
        try:
            wire = self._dial(way, claim, port)
            try:
                yield wire
            finally:
                wire.close()
        finally:
            with self._lock:
                way.users -= 1
                way.unused = time.monotonic()

    def _dial(self, way: _Way, claim: Claim, port: int) -> Wire:
        with way.lock:
            if way.shell is not None:
                try:
                    return way.shell.dial(port)
                except ConnectionLost:
                    # It broke since it was last used, as after an hour's rest behind a firewall.
                    way.shell.close()
                    way.shell = None
            way.shell = self._enter(claim)
            return way.shell.dial(port)

    def tidy(self, linger_s: float = LINGER_S) -> None:
        """Closes what nobody has used for so long."""
        before = time.monotonic() - linger_s
        with self._lock:
            idle = [key for key, way in self._ways.items() if not way.users and way.unused <= before]
            gone = [self._ways.pop(key) for key in idle]
        for way in gone:
            if way.shell is not None:
                way.shell.close()
