"""What ``burstctl status`` shows."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, ReachabilityView, Time
from burstd.api.answers.nodes import HeldView


class CallerView(AnswerView):
    """Who asks."""

    user: str
    admin: bool


class DaemonView(AnswerView):
    """burstd itself. ``paused`` says why nothing is booted or closed; empty: not so.

    ``paused_by``, ``paused_since``: who began that (``burstctl hold``), and when; empty and None: that is not known.
    """

    version: str
    cluster: str
    since: Time
    up_s: float
    settings: str
    paused: str
    paused_by: str = ""
    paused_since: OptionalTime = None
    standbys: str = ""
    """The heads that wait to take over, and when each was seen; empty: there is none."""


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
    until: Time
    error: str


class ProviderView(ReachabilityView):
    """One cloud. ``instances`` counts those with our tag by state; ``calls`` are under way.

    ``leftovers`` are disks, ports, ... that no machine uses and no claim accounts for.
    """

    name: str
    instances: dict[str, int] = {}
    offers: int = 0
    leftovers: int = 0
    calls: int = 0
    breakers: list[BreakerView] = []
    bad_places: dict[str, str] = {}
    """Places (provider/region/zone/type) that are avoided, with the reason."""


class PinView(AnswerView):
    """``burstctl scale``."""

    kind: str
    nodes: int
    until: OptionalTime
    by: str
    created: Time


class SlotHoldView(HeldView):
    """``burstctl node drain``, of one slot."""

    slot: str


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
    holds: list[SlotHoldView] = []
    """Why, by whom and since when, the oldest first."""
    shards: int = 0
    """Of GPUs of its nodes in service; 0: they have none."""
    free_shards: int = 0
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


class IdleGpusView(AnswerView):
    """Running jobs that are warned of idle GPUs."""

    jobs: int
    gpus: int
    """Those that are idle."""
    cost_per_hour: list[Money]
    """Of these."""


class StatusView(AnswerView):
    """``burstctl status``. ``seen``: when the loop observed; everything but ``daemon`` and ``calls`` is as of then."""

    now: Time
    seen: OptionalTime
    you: CallerView
    alarms: list[str]
    daemon: DaemonView
    slurm: SlurmStateView
    providers: list[ProviderView]
    pools: list[PoolView]
    cost_per_hour: list[Money]
    waiting: WaitingView
    idle_gpus: IdleGpusView | None = None
    """None: no job is warned of idle GPUs."""
    data: StageStatusView | None = None
    """None: burstd stages nothing."""
    projects: list[str]
    """How each project stands, in a sentence; those first that wait for their own."""
    policies: list[PolicyTimeView]
    """Those of the chain that were asked, in its order."""
