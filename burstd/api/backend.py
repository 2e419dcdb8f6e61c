"""What the control interface needs of the daemon, and nothing more: its last look, its record, its ear for commands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from burstd.db import BillLine, DrainedSlot, LoggedEvent, RecordedRemark
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.claim import Claim
from burstd.domain.command import Command, CommandResult
from burstd.domain.errors import BurstdError
from burstd.domain.plan import Plan
from burstd.domain.plugins.provider import Finding, Route
from burstd.domain.snapshot import Snapshot
from burstd.domain.staging import StageState, Staging
from burstd.settings import QuotaSettings

COMMAND_TIMEOUT_S = 20.0
"""How long a caller waits for the deciding thread; longer than a loop with a slow slurmctld takes."""
PROVIDER_CHECK_TIMEOUT_S = 120.0
"""How long a caller waits for a provider that looks at itself: some dozens of calls, one after the other."""


class NoAnswer(BurstdError):
    """The deciding thread did not take the command in time, or is ending; it was taken off the queue, not done."""


class CheckInProgress(BurstdError):
    """A provider looks at itself once at a time."""


@dataclass(frozen=True, slots=True)
class DaemonInfo:
    """What the daemon knows of itself. Times in burstd's seconds since 1970."""

    version: str
    cluster: str
    started: float
    slurm_version: str = ""
    """``22.05.8``; empty: not known yet."""
    alarms: tuple[str, ...] = ()
    """Sentences on what keeps the daemon from doing its work."""
    calls_in_flight: Mapping[str, int] = field(default_factory=dict)
    """Calls under way to each provider, by its name."""
    settings: str = ""
    """Path of the settings file in use."""
    policy_durations_s: Mapping[str, float] = field(default_factory=dict)
    """How long each policy took for the last decision, in the order of the chain."""


class ClaimRecords(Protocol):
    """The part of burstd.db.Reader that is asked for; used from several threads. Raises StoreError kinds."""

    def claim(self, claim_id: str) -> Claim:
        """See Reader."""
        ...

    def find_claims(self, *, user: str = "", job: str = "", slot: str = "", limit: int = 1000) -> tuple[Claim, ...]:
        """See Reader."""
        ...

    def events(
        self, *, after: int = 0, subject: str = "", job: str = "", newest: bool = False, limit: int = 1000
    ) -> tuple[LoggedEvent, ...]:
        """See Reader."""
        ...

    def remarks(self, subject: str) -> tuple[RecordedRemark, ...]:
        """See Reader."""
        ...

    def job_owner(self, job_id: str) -> str:
        """See Reader."""
        ...

    def drained_slots(self) -> tuple[DrainedSlot, ...]:
        """See Reader."""
        ...

    def stagings(self, live: bool = True) -> tuple[Staging, ...]:
        """See Reader."""
        ...

    def find_staging(self, job_id: str) -> Staging | None:
        """See Reader."""
        ...

    def find_stagings(
        self,
        *,
        user: str = "",
        states: Collection[StageState] = (),
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> tuple[Staging, ...]:
        """See Reader."""
        ...

    def bill(self, group: BillGrouping, since: float, until: float | None = None) -> tuple[BillLine, ...]:
        """See Reader."""
        ...


class TransferProgress(Protocol):
    """How far one transfer is. Bytes, bytes a second, seconds."""

    @property
    def name(self) -> str:
        """What is transferred: the job's input, its output, or what goes to or comes from one node."""
        ...

    @property
    def direction(self) -> str:
        """``in`` (to the store), ``place`` (to a node), ``collect`` (from a node), ``home`` or ``clear``."""
        ...

    @property
    def done(self) -> int:
        """So far, sent or there already."""
        ...

    @property
    def total(self) -> int:
        """In all; 0: not known yet."""
        ...

    @property
    def sent(self) -> int:
        """Of ``done``, what had to be moved."""
        ...

    @property
    def hits(self) -> int:
        """Of ``done``, what was there already."""
        ...

    @property
    def rate(self) -> float:
        """``done`` by time."""
        ...

    @property
    def eta_s(self) -> float | None:
        """Until its end; None: not known."""
        ...

    @property
    def seconds(self) -> float:
        """Since its begin."""
        ...


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The store in use, as it was last looked at."""

    name: str
    kind: str
    measured_at: float
    """Burstd's time; 0: not yet."""
    objects: int = 0
    bytes: int = 0
    free: int | None = None
    """Bytes; None: the store cannot tell."""
    leftovers: int = 0
    """Objects and unfinished puts that belong to nothing, and are to be removed."""
    error: str = ""
    """Why it could not be looked at; empty: it could."""


@dataclass(frozen=True, slots=True)
class StagingUsage:
    """Who takes up how much of the store, as it was last counted. Bytes, by user and by Slurm account."""

    store: StoreUsage
    users: Mapping[str, int] = field(default_factory=dict)
    projects: Mapping[str, int] = field(default_factory=dict)
    quota: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True)
class RetainedNode:
    """A node that stays only because a job's output is on it."""

    node: str
    job_id: str
    user: str
    until: float
    """Then it is let go, and the output is lost; burstd's time."""
    reason: str


class StagingBackend(Protocol):
    """Staging, as the control interface sees it beyond the record. Every method may be called from any thread."""

    def transfer_progress(self) -> Mapping[str, Sequence[TransferProgress]]:
        """The transfers under way, by job."""
        ...

    def usage(self) -> StagingUsage:
        """Quotas and usage; answered from memory."""
        ...

    def retained_nodes(self) -> Sequence[RetainedNode]:
        """Nodes that are kept for output."""
        ...


class ProviderCheckBackend(Protocol):
    """Providers that look at themselves. Every method may be called from any thread."""

    def self_check_support(self) -> Mapping[str, bool]:
        """Every provider's name, and whether it can."""
        ...

    def run_check(
        self, name: str, images: Sequence[str], timeout_s: float = PROVIDER_CHECK_TIMEOUT_S
    ) -> Sequence[Finding]:
        """Has it look, with the images that pools name, and waits; what was not found in time is said so in the last.

        Raises KeyError for no such provider, CheckUnderWay and NoAnswer.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProviderRoute:
    """A route, and the provider that has it."""

    provider: str
    route: Route


class IngressBackend(Protocol):
    """Web addresses of jobs' ports. Every method may be called from any thread; raises ProviderError, NoAnswer."""

    def supports_routes(self, provider: str) -> bool:
        """Whether this provider has them."""
        ...

    def open_route(self, claim: Claim, job_id: str, port: int) -> ProviderRoute:
        """Opens one to the claim's machine, or BadRequest for one too many. KeyError: its provider is not able."""
        ...

    def list_routes(self) -> Sequence[ProviderRoute]:
        """Those that there are, as far as is known; answered from memory."""
        ...

    def close_routes(self, routes: Sequence[ProviderRoute]) -> None:
        """Closes these."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy that could be in the chain, and how it fares where it is."""

    name: str
    origin: str
    """Its package and version, or its file."""
    chain_position: int = 0
    """As which of the chain it is asked, from 1; 0: it is not in it, and nothing of what follows is known."""
    hard: bool = False
    settings: Mapping[str, object] = field(default_factory=dict)
    took_s: float | None = None
    """For the last decision; None: it was not asked yet."""
    failing: bool = False
    failed_at: float = 0.0
    """The last time, in burstd's seconds since 1970; 0: never."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStates:
    """All of them, those of the chain first, in its order."""

    folder: str
    timeout_s: float
    policies: tuple[PolicyState, ...] = ()
    warnings: tuple[str, ...] = ()
    """Files that cannot be used; none of them is in the chain."""
    unread: tuple[str, ...] = ()
    """Files that have changed, come or gone since they were read: a reload takes them."""
    restart: tuple[str, ...] = ()
    """Packages that have changed since burstd started: only a restart takes them."""


class PolicyBackend(Protocol):
    """The policies, as the control interface sees them; from any thread."""

    def policy_states(self) -> PolicyStates:
        """All that there are; answered from memory, but for what changed on disk."""
        ...


class Backend(Protocol):
    """The daemon, as the control interface sees it. Every method may be called from any thread."""

    @property
    def reader(self) -> ClaimRecords:
        """The record, open for reading."""
        ...

    @property
    def stage(self) -> StagingBackend | None:
        """Staging; None: the settings have none."""
        ...

    @property
    def checks(self) -> ProviderCheckBackend:
        """Providers that look at themselves."""
        ...

    @property
    def routes(self) -> IngressBackend:
        """Web addresses of jobs' ports."""
        ...

    @property
    def policies(self) -> PolicyBackend:
        """The policies."""
        ...

    def now(self) -> float:
        """burstd's time (Clock.now)."""
        ...

    def daemon_info(self) -> DaemonInfo:
        """What the daemon knows of itself, now."""
        ...

    def latest_loop(self) -> tuple[Snapshot, Plan] | None:
        """Of the last whole loop; None before the first."""
        ...

    def command(self, command: Command, timeout_s: float = COMMAND_TIMEOUT_S) -> CommandResult:
        """Hands a command to the deciding thread and waits for what comes of it.

        Raises NoAnswer, StoreError and SchedulerUnavailable; the message is shown to the caller.
        """
        ...
