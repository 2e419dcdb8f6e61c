"""Jobs of burst partitions: what was decided about them, why they start or do not, their routes."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time
from burstd.api.answers.job_use import JobUseView
from burstd.api.answers.nodes import NodeView


class RemarkView(AnswerView):
    """What was decided about a job, by whom and why."""

    by: str
    verdict: str
    reason: str
    since: OptionalTime


class JobView(AnswerView):
    """A job of a burst partition. ``verdict`` and ``reason`` are burstd's last word, ``slurm_reason`` is Slurm's."""

    id: str
    user: str
    name: str
    partitions: list[str]
    state: str
    slurm_reason: str
    submitted: Time
    waiting_s: float | None
    tasks: int
    verdict: str
    reason: str
    nodes: list[str]
    """Nodes it runs on, or that the plan has for it."""
    claims: list[str]
    """Live claims that were made for it."""
    start: OptionalTime = None
    """When nodes of the site are expected to start it; None: it runs, or nothing is expected."""


class JobsView(AnswerView):
    """``burstctl job list``."""

    now: Time
    jobs: list[JobView]
    total: int = 0
    """How many there are in all; ``jobs`` has those from ``offset`` to ``limit``."""


class JobEndView(AnswerView):
    """How a job ended, as slurmctld has it for ``MinJobAge`` after that."""

    state: str
    """Slurm's, as ``COMPLETED`` or ``FAILED``."""
    exit_code: str
    """Exit status and signal, as ``1:0``; empty: not known."""
    time: OptionalTime
    nodes: list[str]
    """Those that it ran on last."""


class JobDetailView(AnswerView):
    """``burstctl job show``. ``job`` is None for one that has left the queue and is known by its claims."""

    now: Time
    id: str
    job: JobView | None
    asks: str
    remarks: list[RemarkView]
    nodes: list[NodeView]
    """Claims made for it, then others that it ran on; past ones included, newest first."""
    cost: list[Money] = []
    """What its machines have cost so far; of those that were made for several jobs its part of the bill."""
    site_cost: list[Money] = []
    """What it has cost so far on nodes of the site, by [site.cost]; no part of ``cost``."""
    end: JobEndView | None = None
    """None: it has not ended, or slurmctld has forgotten how; then Slurm's accounting may know (sacct)."""
    use: JobUseView | None = None
    """What it used, which burstctl adds from /v1/jobs/JOB/use; None: nothing is known."""
    no_use: str = ""
    """Why nothing is known of what a running job uses, in words; empty: something is, or none of its nodes is a
    cloud's."""
    measured_parts: list[str] = []
    """Of an array or a het job, tasks or components that have figures of their own, the latest."""


class CostView(AnswerView):
    """What the machines for a job would cost; machines that it shares are counted whole, or ``of_shards`` only its
    shards."""

    nodes: int
    expected: Money | None
    """If it runs as long as is expected; None: nothing is."""
    worst: Money | None
    """If it runs to its time limit; None: it has none."""
    of_shards: bool = False


class CandidateView(AnswerView):
    """One offer candidate, or a provider that could not be read.

    ``refused`` says why it is not used, empty: it may be. ``by`` is the policy that refuses it, ``note`` why it comes
    after the one that is chosen. ``chosen``: the plan takes it first for this job.
    """

    offer: str
    price_per_hour: Money | None
    price_per_shard: Money | None
    """Of an hour; None: the pool has no shards."""
    refused: str
    by: str
    note: str
    chosen: bool
    cost: CostView | None


class PoolCandidatesView(AnswerView):
    """One pool that may start the job; ``lacks`` says why it cannot, empty: it can."""

    pool: str
    lacks: str
    slots: int
    free: int
    gpu_memory_limit: str = ""
    """What keeps jobs to their shards' part of a GPU's memory: ``none``, ``mps``, ``dmem``; empty: it has no shards."""
    candidates: list[CandidateView]


class ServingView(AnswerView):
    """A claim made for the job, or (``claim`` empty) a node of the site on which the plan gave it room."""

    slot: str
    claim: str
    state: str
    since: OptionalTime
    reason: str
    reserved: Money | None
    """The most that the machine may cost, as it was reserved before its launch; None: no budget pays for it."""


class OutlookView(AnswerView):
    """What is expected of a waiting job."""

    premises_at: OptionalTime
    """When nodes of the site would start it; None: never."""
    premises_basis: str
    """Where that comes from: ``slurm``, ``queue``, ``history`` or ``none``."""
    cloud_s: float | None
    """From now until it could start on a new machine: boot and upload go side by side. None: see ``kept_by``."""
    kept_by: str
    """An administrator's word that keeps machines from it, as ``an administrator's pin (burstctl scale)``."""
    boot_s: float
    staging_s: float
    run_s: float
    run_basis: str
    """``history of 12 jobs of ada``, or ``time limit``."""


class JobDataView(AnswerView):
    """How the data of the job stands. Sizes in bytes."""

    state: str
    ready_at: OptionalTime
    """When its input is expected in the store; None: it is there, or nobody knows."""
    size: int
    left: int
    error: str


class OptionChangeView(AnswerView):
    """A change of one option with which the job would start."""

    before: str
    after: str
    command: str
    """What changes the job that waits; empty: it must be submitted anew."""
    start_s: float
    where: list[str]
    offer: str
    """Empty: no new machine is needed."""
    price_per_hour: Money | None


class InterruptionView(AnswerView):
    """The last run that burstd ended before the job's own end, or could not end."""

    time: Time
    state: str
    """``interrupted``, ``requeued``, ``not requeued``, or ``interrupted at last``."""
    reason: str


class ExplainView(AnswerView):
    """``burstctl explain``. ``verdict`` is ``gone`` for a job that has left the queue."""

    now: Time
    id: str
    job: JobView | None = None
    verdict: str
    summary: str
    """Why it does or does not start, in a sentence."""
    line: str = ""
    """What its comment says, or would say if it had none of its user's own."""
    slurm: str = ""
    """What Slurm says, in words."""
    asks: str = ""
    remedies: list[str] = []
    """What would help; empty: nothing needs to be done."""
    remarks: list[RemarkView]
    ways: list[PoolCandidatesView] = []
    serving: list[ServingView] = []
    outlook: OutlookView | None = None
    """None: nothing is expected of it, or it has started."""
    data: JobDataView | None = None
    """None: it has none."""
    cost: CostView | None = None
    """By the offer that is chosen, or would be."""
    fabric: str = ""
    """What binds the nodes of a job of several, in words; empty: it has one node, or none so far."""
    changes: list[OptionChangeView] = []
    """The smallest first; empty: none is needed, or none was found."""
    interruption: InterruptionView | None = None
    """None: no run of it was cut short."""
    end: JobEndView | None = None
    """As for ``burstctl job show``."""


class RouteView(AnswerView):
    """A web address of a port on a job's node. ``url`` is empty where the cloud has not chosen it so far."""

    job: str
    port: int
    node: str
    provider: str
    url: str


class RoutesView(AnswerView):
    """``burstctl route list``."""

    now: Time
    routes: list[RouteView]
