"""Ways into nodes, each shared by all connections that one user has carried there at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError, NodeNotReady
from burstd.domain.plugins.shell import ConnectionLost, Shell, Wire

LINGER_S = 30.0
"""A browser comes back: a way that nobody uses stays open for so long."""
DIAL_S = 10.0
"""A port on the machine itself answers at once, or what listens there is stuck."""


@dataclass(eq=False, slots=True)
class _Entered:
    """A shell, which ends with the last of its wires once it is not dialled from any more."""

    shell: Shell
    wires: int = 0


@dataclass(slots=True)
class _Way:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the shell is made or dialled from: it is for one thread at a time."""
    entered: _Entered | None = None
    users: int = 0
    unused: float = 0.0
    failed: float = 0.0
    """When the machine was not entered last, by the monotonic clock, and why."""
    why: str = ""


class Ways:
    """Used from several threads. ``enter``: a way into the machine of a claim; raises NodeNotReady, NodeRefused.

    Each user has ways of his own: what one does at a port keeps nobody else waiting.
    """

    def __init__(self, enter: Callable[[Claim], Shell]) -> None:
        self._enter = enter
        self._lock = threading.Lock()
        self._ways: dict[tuple[str, str], _Way] = {}

    @contextmanager
    def wire(self, claim: Claim, port: int, user: str) -> Iterator[Wire]:
        """A connection to a port of the machine. Raises what ``enter`` and ``Shell.dial`` raise."""
        came = time.monotonic()
        with self._lock:
            way = self._ways.setdefault((claim.id, user), _Way())
            way.users += 1
        try:
            with way.lock:
                entered, wire = self._dial(way, claim, port, came)
            try:
                yield wire
            finally:
                wire.close()
                self._drop(way, entered)
        finally:
            with self._lock:
                way.users -= 1
                way.unused = time.monotonic()

    def _dial(self, way: _Way, claim: Claim, port: int, came: float) -> tuple[_Entered, Wire]:
        if way.entered is not None:
            try:
                return self._dialled(way.entered, port)
            except ConnectionLost:
                # It broke since it was last used, as after an hour's rest behind a firewall. If it did not, others go
                # on with it.
                self._retire(way)
        if way.failed >= came:
            raise NodeNotReady(way.why)
        try:
            way.entered = _Entered(self._enter(claim))
        except BurstdError as error:
            # Who has waited meanwhile is told the same.
            way.failed, way.why = time.monotonic(), str(error)
            raise
        return self._dialled(way.entered, port)

    def _dialled(self, entered: _Entered, port: int) -> tuple[_Entered, Wire]:
        wire = entered.shell.dial(port, DIAL_S)
        with self._lock:
            entered.wires += 1
        return entered, wire

    def _retire(self, way: _Way) -> None:
        with self._lock:
            old, way.entered = way.entered, None
        if old is not None and not old.wires:
            old.shell.close()

    def _drop(self, way: _Way, entered: _Entered) -> None:
        with self._lock:
            entered.wires -= 1
            over = not entered.wires and way.entered is not entered
        if over:
            entered.shell.close()

    def tidy(self, linger_s: float = LINGER_S) -> None:
        """Closes what nobody has used for so long."""
        before = time.monotonic() - linger_s
        with self._lock:
            idle = [key for key, way in self._ways.items() if not way.users and way.unused <= before]
            gone = [self._ways.pop(key) for key in idle]
        for way in gone:
            if way.entered is not None:
                way.entered.shell.close()
