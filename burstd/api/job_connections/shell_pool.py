"""The shell pool: ssh connections into nodes, each shared by all of one user's port connections to the node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError, NodeNotReady
from burstd.domain.plugins.shell import ConnectionLost, PortConnection, Shell

IDLE_SHELL_TIMEOUT_S = 30.0
"""Seconds that an unused shell stays open: a browser comes back."""
DIAL_TIMEOUT_S = 10.0
"""A port on the machine itself answers at once, or what listens there is stuck."""


@dataclass(eq=False, slots=True)
class _SharedShell:
    """A shell, which ends with the last of its wires once it is not dialled from any more."""

    shell: Shell
    wires: int = 0


@dataclass(slots=True)
class _PoolEntry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the shell is made or dialled from: it is for one thread at a time."""
    shared: _SharedShell | None = None
    users: int = 0
    idle_since: float = 0.0
    failed_at: float = 0.0
    """When the machine was not entered last, by the monotonic clock, and why."""
    error: str = ""


class ShellPool:
    """Used from several threads. ``open_shell`` opens one on the machine of a claim; raises NodeNotReady, NodeRefused.

    Each user has shells of his own: one user's traffic keeps nobody else waiting.
    """

    def __init__(self, open_shell: Callable[[Claim], Shell]) -> None:
        self._open_shell = open_shell
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _PoolEntry] = {}

    @contextmanager
    def dial(self, claim: Claim, port: int, user: str) -> Iterator[PortConnection]:
        """A connection to a port of the machine. Raises what ``open_shell`` and ``Shell.dial`` raise."""
        requested_at = time.monotonic()
        with self._lock:
            entry = self._entries.setdefault((claim.id, user), _PoolEntry())
            entry.users += 1
        try:
            with entry.lock:
                shared, wire = self._dial_or_reopen(entry, claim, port, requested_at)
            try:
                yield wire
            finally:
                wire.close()
                self._release(entry, shared)
        finally:
            with self._lock:
                entry.users -= 1
                entry.idle_since = time.monotonic()

    def _dial_or_reopen(
        self, entry: _PoolEntry, claim: Claim, port: int, requested_at: float
    ) -> tuple[_SharedShell, PortConnection]:
        if entry.shared is not None:
            try:
                return self._dial_shared(entry.shared, port)
            except ConnectionLost:
                # It broke since it was last used, as after an hour's rest behind a firewall. If it did not, others go
                # on with it.
                self._retire(entry)
        if entry.failed_at >= requested_at:
            raise NodeNotReady(entry.error)
        try:
            entry.shared = _SharedShell(self._open_shell(claim))
        except BurstdError as error:
            # Callers that waited meanwhile get the same error.
            entry.failed_at, entry.error = time.monotonic(), str(error)
            raise
        return self._dial_shared(entry.shared, port)

    def _dial_shared(self, shared: _SharedShell, port: int) -> tuple[_SharedShell, PortConnection]:
        wire = shared.shell.dial(port, DIAL_TIMEOUT_S)
        with self._lock:
            shared.wires += 1
        return shared, wire

    def _retire(self, entry: _PoolEntry) -> None:
        with self._lock:
            old, entry.shared = entry.shared, None
        if old is not None and not old.wires:
            old.shell.close()

    def _release(self, entry: _PoolEntry, shared: _SharedShell) -> None:
        with self._lock:
            shared.wires -= 1
            over = not shared.wires and entry.shared is not shared
        if over:
            shared.shell.close()

    def close_idle(self, idle_timeout_s: float = IDLE_SHELL_TIMEOUT_S) -> None:
        """Closes what nobody has used for so long."""
        before = time.monotonic() - idle_timeout_s
        with self._lock:
            idle = [key for key, entry in self._entries.items() if not entry.users and entry.idle_since <= before]
            gone = [self._entries.pop(key) for key in idle]
        for entry in gone:
            if entry.shared is not None:
                entry.shared.shell.close()
