"""What the control interface answers, as JSON. Stable under /v1: fields are added, never renamed or taken away.

Times are UTC in ISO 8601; lengths of time are in seconds (``..._s``); amounts of money are decimals written as text.
Each answer has ``now``, burstd's own time, against which ages are to be counted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from pydantic import BaseModel, ConfigDict


def utc_datetime(seconds: float) -> datetime:
    """burstd's seconds since 1970 as a time, to a millisecond."""
    return datetime.fromtimestamp(round(seconds, 3), UTC)


def utc_datetime_or_none(seconds: float | None) -> datetime | None:
    """The same; None (or 0) where there is none."""
    return utc_datetime(seconds) if seconds else None


class AnswerView(BaseModel):
    """Base of all answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Money(AnswerView):
    """An amount."""

    amount: Decimal
    currency: str


class CallerView(AnswerView):
    """Who asks."""

    user: str
    admin: bool


class DaemonView(AnswerView):
    """burstd itself. ``paused`` says why nothing is booted or closed; empty: not so."""

    version: str
    cluster: str
    since: datetime
    up_s: float
    settings: str
    paused: str


class ReachabilityView(AnswerView):
    """Whether something outside answers; if not, why, and when it was last known."""

    ok: bool
    error: str = ""
    last_known: datetime | None = None


class SlurmStateView(ReachabilityView):
    """slurmctld."""

    version: str = ""
    nodes: int = 0
    jobs: int = 0


class BreakerView(AnswerView):
    """A circuit breaker: an offer, or a part of a cloud, failed; the breaker is open until ``until``."""

    key: str
    cause: str
    failures: int
    until: datetime
    error: str


class ProviderView(ReachabilityView):
    """One cloud. ``instances`` counts those with our tag by state; ``calls`` are under way."""

    name: str
    instances: dict[str, int] = {}
    offers: int = 0
    leftovers: int = 0
    calls: int = 0
    breakers: list[BreakerView] = []


class PinView(AnswerView):
    """``burstctl scale``."""

    kind: str
    nodes: int
    until: datetime | None
    by: str
    created: datetime


class PoolView(AnswerView):
    """One pool, counted in nodes. ``open`` is ``busy`` + ``idle``; every claim counts in exactly one of
    ``booting``, ``ready``, ``busy``, ``idle``, ``leaving``, ``failed``."""

    name: str
    partitions: list[str]
    shape: str
    slots: int
    free: int
    """Slots on which a machine can be started now."""
    held: int
    """Slots kept out of use by ``burstctl node drain``."""
    wanted: int
    """Nodes that there shall be: those there or coming, with what the last plan adds and lets go."""
    booting: int
    ready: int
    """Validated, not yet open to jobs."""
    open: int
    busy: int
    idle: int
    leaving: int
    failed: int
    pins: list[PinView]
    breakers: list[BreakerView]
    cost_per_hour: list[Money]


class WaitingGroup(AnswerView):
    """Pending jobs about which the same is said. ``reason`` is that of the first of them."""

    verdict: str
    reason: str
    jobs: int
    tasks: int
    """Jobs, with every task of an array counted."""
    examples: list[str]


class WaitingView(AnswerView):
    """Pending jobs of burst partitions. ``groups`` are only of jobs that the caller may see."""

    jobs: int
    tasks: int
    verdicts: dict[str, int]
    """Jobs by verdict: ``boot``, ``covered``, ``wait``, ``impossible`` ..."""
    groups: list[WaitingGroup]
    more_groups: int


class StageStatusView(AnswerView):
    """Jobs' data at a glance. ``rate`` in bytes/s, of all transfers under way."""

    store: str
    error: str
    """Why the store cannot be used; empty: it can."""
    jobs: int
    states: dict[str, int]
    """Jobs by stage state, in the order of their lives."""
    rate: float
    kept: int
    """Nodes that stay only because output is on them."""


class PolicyTimeView(AnswerView):
    """How long one policy of the chain took for the last decision."""

    name: str
    took_s: float


class StatusView(AnswerView):
    """``burstctl status``. ``seen``: when the loop observed; everything but ``daemon`` and ``calls`` is as of then."""

    now: datetime
    seen: datetime | None
    you: CallerView
    alarms: list[str]
    daemon: DaemonView
    slurm: SlurmStateView
    providers: list[ProviderView]
    pools: list[PoolView]
    cost_per_hour: list[Money]
    waiting: WaitingView
    data: StageStatusView | None = None
    """None: burstd stages nothing."""
    policies: list[PolicyTimeView]
    """Those of the chain that were asked, in its order."""


class SlurmNodeView(AnswerView):
    """The node as Slurm has it."""

    state: str
    """Base state and flags as ``scontrol`` writes them: ``IDLE+CLOUD+POWERED_DOWN``."""
    reason: str
    reservation: str
    cpus_allocated: int


class HeldView(AnswerView):
    """``burstctl node drain``."""

    by: str
    reason: str
    since: datetime


class NodeView(AnswerView):
    """A slot and the claim on it, or (``claim`` empty) the slot alone.

    ``state`` is the claim's, or ``free``, ``held``, ``drained``, ``unready`` (Slurm does not have it powered down)
    or ``unknown`` (Slurm could not be read).
    """

    slot: str
    pool: str
    state: str
    since: datetime | None = None
    reason: str = ""
    claim: str = ""
    cause: str = ""
    error: str = ""
    offer: str = ""
    provider: str = ""
    instance: str = ""
    address: str = ""
    image: str = ""
    created: datetime | None = None
    opened: datetime | None = None
    price_per_hour: Money | None = None
    cost: Money | None = None
    reserved: Money | None = None
    """The most that it may cost, where a budget pays for it."""
    jobs: list[str] = []
    """Jobs that it was made for, those that the caller may see."""
    gang: str = ""
    attempts: int = 0
    slurm: SlurmNodeView | None = None
    held: HeldView | None = None


class NodesView(AnswerView):
    """``burstctl node list``."""

    now: datetime
    nodes: list[NodeView]


class EventView(AnswerView):
    """One entry of the log."""

    seq: int
    time: datetime
    subject: str
    """``claim:ID``, ``stage:JOBID``, ``job:ID``, ``pool:NAME``, ``slot:NODE``, ``breaker:KEY``, ``meta:KEY`` ..."""
    node: str
    """The node of a claim or slot; empty for other subjects."""
    old: str
    new: str
    reason: str
    by: str


class EventsView(AnswerView):
    """Events, oldest first. Ask for more with ``after=`` the greatest ``seq`` read."""

    now: datetime
    events: list[EventView]
    last: int
    """The greatest ``seq`` read, whether or not it is among them."""


class NodeDetailView(AnswerView):
    """``burstctl node show``."""

    now: datetime
    node: NodeView
    history: list[EventView]


class StepView(AnswerView):
    """One step that the next loop would take."""

    action: str
    text: str
    claims: list[str] = []
    nodes: list[str] = []
    jobs: list[str] = []


class RejectedOfferView(AnswerView):
    """An offer that a policy took out of a want, and why; an empty ``reason``: it did not say."""

    offer: str
    by: str
    reason: str


class PolicyDecisionView(AnswerView):
    """What a policy (or a pin, or a hold) decided, and about what: ``job:104``, ``pool:gpu``, ``claim:...``."""

    by: str
    verdict: str
    about: list[str]
    reason: str


class WantView(AnswerView):
    """Machines wanted, and why."""

    pool: str
    nodes: int
    cause: str
    reason: str
    offer: str
    """The first that would be tried."""
    jobs: list[str]
    slots: list[str]
    left_out: list[RejectedOfferView]


class PlanView(AnswerView):
    """``burstctl plan``: what the next loop would do. Nothing of it was done."""

    now: datetime
    seen: datetime
    paused: str
    failed: list[str]
    """Policies that failed; while there is one, nothing is wanted and nothing let go."""
    steps: list[StepView]
    wants: list[WantView]
    words: list[PolicyDecisionView]
    """What policies, pins and a hold took away, added or kept, and why."""


class BillLineView(AnswerView):
    """What one user (account, job, pool, provider, claim) owes; an empty ``key``: machines made for nobody."""

    key: str
    cost: Money
    machine_s: float
    claims: int


class BudgetView(AnswerView):
    """How a budget stood in the last loop."""

    kind: str
    """``project`` or ``user``; empty: of the whole site."""
    name: str
    period: str
    """``month`` or ``year`` (UTC), or ``total``."""
    limit: Money
    spent: Money
    """On machines that are gone."""
    committed: Money
    """The most that machines which are there, or on their way, may cost."""
    left: Money
    fault: str
    """Why it cannot be reckoned, and nothing is started on it; empty: it can."""


class BillView(AnswerView):
    """``burstctl bill``. Running machines count up to ``until``."""

    now: datetime
    since: datetime
    until: datetime
    group: str
    lines: list[BillLineView]
    total: list[Money]
    budgets: list[BudgetView] = []
    """Those that the caller may see, whatever the bill's time and group."""


class CommandResultView(AnswerView):
    """What came of a command."""

    text: str
    changed: bool


class ErrorView(AnswerView):
    """What goes with a status of 400 and above: a sentence, and for what was not found the names that there are."""

    error: str
    known: list[str] = []
