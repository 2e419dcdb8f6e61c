"""What the control interface needs of the daemon, and nothing more: its last look, its record, its ear for commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from burstd.model.claim import Claim
from burstd.model.command import Command, CommandResult
from burstd.model.errors import BurstdError
from burstd.model.plan import Plan
from burstd.model.snapshot import Snapshot
from burstd.store import BillLine, Event, Held, Noted
from burstd.store.money import Group

COMMAND_TIMEOUT_S = 20.0
"""How long a caller waits for the deciding thread; longer than a loop with a slow slurmctld takes."""


class NoAnswer(BurstdError):
    """The deciding thread did not take the command in time, or is ending; it was taken off the queue, not done."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the daemon knows of itself. Times in burstd's seconds since 1970."""

    version: str
    cluster: str
    started: float
    slurm_version: str = ""
    """``22.05.8``; empty: not known yet."""
    alarms: tuple[str, ...] = ()
    """Sentences on what keeps the daemon from doing its work."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Calls under way to each provider, by its name."""
    settings: str = ""
    """Path of the settings file in use."""


class Records(Protocol):
    """The part of burstd.store.Reader that is asked for; used from several threads. Raises StoreError kinds."""

    def claim(self, claim_id: str) -> Claim:
        """See Reader."""
        ...

    def find(self, *, user: str = "", job: str = "", slot: str = "", limit: int = 1000) -> tuple[Claim, ...]:
        """See Reader."""
        ...

    def events(
        self, *, after: int = 0, subject: str = "", job: str = "", newest: bool = False, limit: int = 1000
    ) -> tuple[Event, ...]:
        """See Reader."""
        ...

    def remarks(self, subject: str) -> tuple[Noted, ...]:
        """See Reader."""
        ...

    def held(self) -> tuple[Held, ...]:
        """See Reader."""
        ...

    def bill(self, group: Group, since: float, until: float | None = None) -> tuple[BillLine, ...]:
        """See Reader."""
        ...


class Office(Protocol):
    """The daemon, as the control interface sees it. Every method may be called from any thread."""

    @property
    def reader(self) -> Records:
        """The record, open for reading."""
        ...

    def now(self) -> float:
        """burstd's time (Clock.now)."""
        ...

    def facts(self) -> Facts:
        """What the daemon knows of itself, now."""
        ...

    def latest(self) -> tuple[Snapshot, Plan] | None:
        """Of the last whole loop; None before the first."""
        ...

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        """Hands a command to the deciding thread and waits for what comes of it.

        Raises NoAnswer, StoreError and SchedulerUnavailable; the message is shown to the caller.
        """
        ...
