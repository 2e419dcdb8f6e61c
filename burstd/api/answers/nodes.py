"""Slots, claims, events, and the reference that machines are compared with."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time

ON_PREMISES = "on premises"
"""Stands in the place of the pool of the site's own nodes."""


class SlurmNodeView(AnswerView):
    """The node as Slurm has it."""

    state: str
    """Base state and flags as ``scontrol`` writes them: ``IDLE+CLOUD+POWERED_DOWN``."""
    reason: str
    reservation: str
    cpus_allocated: int
    free_shards: list[str] = []
    """``3/4`` for each GPU that has shards: how many of it are free."""


class HeldView(AnswerView):
    """``burstctl node drain``."""

    by: str
    reason: str
    since: Time


class NodeView(AnswerView):
    """A slot and the claim on it, or (``claim`` empty) the slot alone.

    ``state`` is the claim's, or ``free``, ``held``, ``drained``, ``unready`` (Slurm does not have it powered down)
    or ``unknown`` (Slurm could not be read).
    """

    slot: str
    pool: str
    state: str
    since: OptionalTime = None
    reason: str = ""
    claim: str = ""
    cause: str = ""
    error: str = ""
    offer: str = ""
    provider: str = ""
    instance: str = ""
    address: str = ""
    image: str = ""
    reused_from: str = ""
    """The node that its machine was before it was handed over; empty: it was launched for this one."""
    created: OptionalTime = None
    opened: OptionalTime = None
    price_per_hour: Money | None = None
    cost: Money | None = None
    reserved: Money | None = None
    """The most that it may cost, where a budget pays for it."""
    fabric: str = ""
    """What binds it to other nodes of its job: ``placement-group+efa``; empty: nothing is known."""
    jobs: list[str] = []
    """Jobs that it was made for, those that the caller may see."""
    gang: str = ""
    attempts: int = 0
    slurm: SlurmNodeView | None = None
    held: HeldView | None = None
    line: str = ""
    """What is wrong with the line from the head to it; empty: nothing, as far as is known."""
    gpus: list[str] = []
    """What each GPU does: ``used``, ``idle`` (by a job), ``free``, ``starting``, ``out of service``, ``asleep``, or
    ``1/4``: shared, one of four shards in use."""


class NodesView(AnswerView):
    """``burstctl node list``."""

    now: Time
    nodes: list[NodeView]
    total: int = 0
    """How many there are in all; ``nodes`` has those from ``offset`` to ``limit``."""


class EventView(AnswerView):
    """One entry of the log."""

    seq: int
    time: Time
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

    now: Time
    events: list[EventView]
    last: int
    """The greatest ``seq`` read, whether or not it is among them."""


class NodeDetailView(AnswerView):
    """``burstctl node show``."""

    now: Time
    node: NodeView
    validated: str = ""
    """What the validation of the claim's machine found, with the differences that are allowed."""
    fabric_test: str = ""
    """What was measured between it and another node of its job."""
    history: list[EventView]


class NodeLogsView(AnswerView):
    """What a node's machine says by itself, for ``burstctl debug``."""

    now: Time
    console: str = ""
    console_error: str = ""
    """Why there is none."""
    slurmd: str = ""
    """The end of slurmd's log."""
    slurmd_error: str = ""


class NodeFaultsView(AnswerView):
    """How often a node on premises had a fault since the time that was asked for, and the last one."""

    node: str
    faults: int
    last: Time
    reason: str


class FaultyNodesView(AnswerView):
    """``burstctl node faults``, most faults first."""

    now: Time
    nodes: list[NodeFaultsView]


class ReferenceView(AnswerView):
    """``burstctl node reference``. ``node`` is empty where there is no reference."""

    now: Time
    node: str = ""
    seen: OptionalTime = None
    values: dict[str, str] = {}
    """What it has, by subject: ``glibc``, ``memlock``, ``module GCC``, a sentinel's path."""
    missing: list[str] = []
    """Sentinels and modules in the settings that it was not asked for."""
    warnings: list[str] = []
    """What it cannot be a measure of."""
    script: str
    """Prints on a node what makes it the reference; for ``sh``."""


class DifferenceView(AnswerView):
    """One difference of a machine. ``allowed``: it only warns."""

    check: str
    expected: str
    found: str
    remedy: str
    allowed: bool


class NodeDifferencesView(AnswerView):
    """How one node differs. ``error``: why it could not be looked at."""

    node: str
    differences: list[DifferenceView] = []
    error: str = ""


class DifferencesView(AnswerView):
    """``burstctl check``: the nodes in service, as they are now."""

    now: Time
    reference: str
    warnings: list[str] = []
    """What the reference cannot be a measure of."""
    nodes: list[NodeDifferencesView]
