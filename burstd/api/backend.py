"""The daemon as the API sees it: last snapshot and plan, record, command queue, and the backends of its routes."""

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
"""How long a caller waits for the deciding thread, in seconds: longer than a loop with a slow slurmctld."""
PROVIDER_CHECK_TIMEOUT_S = 120.0
"""How long a caller waits for a provider's self-check, in seconds: some dozens of calls in sequence."""


class NoAnswer(BurstdError):
    """The deciding thread did not take the command in time, or is ending; the command was not executed."""


class CheckInProgress(BurstdError):
    """A self-check of this provider is already running."""


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
        """The claim of this id, live or past."""
        ...

    def find_claims(self, *, user: str = "", job: str = "", slot: str = "", limit: int = 1000) -> tuple[Claim, ...]:
        """Claims of a user, job or slot, newest first, past ones included."""
        ...

    def events(
        self, *, after: int = 0, subject: str = "", job: str = "", newest: bool = False, limit: int = 1000
    ) -> tuple[LoggedEvent, ...]:
        """Events after this ``seq``, oldest first; with ``newest`` the last ``limit`` ones."""
        ...

    def remarks(self, subject: str) -> tuple[RecordedRemark, ...]:
        """What the last plan says about a subject, each remark with the time it first appeared."""
        ...

    def job_owner(self, job_id: str) -> str:
        """The user of a job on record; empty: not known."""
        ...

    def drained_slots(self) -> tuple[DrainedSlot, ...]:
        """Slots that ``burstctl node drain`` keeps out of use."""
        ...

    def stagings(self, live: bool = True) -> tuple[Staging, ...]:
        """The data of all jobs; with ``live`` only what is not cleared yet."""
        ...

    def find_staging(self, job_id: str) -> Staging | None:
        """The data of one job; None: the record has none."""
        ...

    def find_stagings(
        self,
        *,
        user: str = "",
        states: Collection[StageState] = (),
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> tuple[Staging, ...]:
        """A page of jobs' data, newest first; ``before`` is the time and job where the last page ended."""
        ...

    def bill(self, group: BillGrouping, since: float, until: float | None = None) -> tuple[BillLine, ...]:
        """Machine cost from ``since`` to ``until``, one line for each group and currency."""
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
    """The store in use, as last read."""

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
    """Why it cannot be read; empty: it can."""


@dataclass(frozen=True, slots=True)
class StagingUsage:
    """Who takes up how much of the store, at the last count. Bytes, by user and by Slurm account."""

    store: StoreUsage
    users: Mapping[str, int] = field(default_factory=dict)
    projects: Mapping[str, int] = field(default_factory=dict)
    quota: QuotaSettings = field(default_factory=QuotaSettings)


@dataclass(frozen=True, slots=True)
class RetainedNode:
    """A node kept only because a job's output is on it."""

    node: str
    job_id: str
    user: str
    until: float
    """When burstd terminates it and the output is lost, in burstd's time."""
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
    """Self-checks of providers. Every method may be called from any thread."""

    def self_check_support(self) -> Mapping[str, bool]:
        """Every provider's name, and whether it has a self-check."""
        ...

    def run_check(
        self, name: str, images: Sequence[str], timeout_s: float = PROVIDER_CHECK_TIMEOUT_S
    ) -> Sequence[Finding]:
        """Runs the provider's self-check with the images of the pools and waits; the last finding tells of a time-out.

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
        """Opens a route to the claim's machine. Raises BadRequest over the limit, KeyError: the provider has none."""
        ...

    def list_routes(self) -> Sequence[ProviderRoute]:
        """All known routes, from memory."""
        ...

    def close_routes(self, routes: Sequence[ProviderRoute]) -> None:
        """Closes these routes."""
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
        """Self-checks of providers."""
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
        """Passes a command to the deciding thread and waits for its result.

        Raises NoAnswer, StoreError and SchedulerUnavailable; the message is shown to the caller.
        """
        ...
