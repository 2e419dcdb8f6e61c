"""What ``burstctl stage`` shows."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, OptionalTime, Time
from burstd.api.answers.nodes import EventView


class TransferView(AnswerView):
    """A transfer under way. Bytes, bytes a second, seconds; ``bytes_total`` 0: not known yet."""

    name: str
    direction: str
    """``in`` (to the store), ``place`` (to a node), ``collect`` (from a node), ``home`` or ``clear``."""
    bytes_done: int
    bytes_total: int
    bytes_sent: int
    """Of ``bytes_done``, what had to be moved."""
    bytes_hits: int
    """Of ``bytes_done``, what was there already."""
    rate: float
    eta_s: float | None
    since_s: float


class StageInView(AnswerView):
    """One input. ``bytes`` and ``entries`` are None until it is in the store."""

    name: str
    source: str
    access: str
    dataset: str
    bytes: int | None
    entries: int | None
    digest: str
    """Of the tree in the store, for ``burstctl stage evict --tree``."""
    place: str = ""
    """Its path on nodes, which see it as it is; empty: it is sent."""


class StageOutView(AnswerView):
    """One output, as the script asks for it."""

    pattern: str
    destination: str
    when: str


class CollectedView(AnswerView):
    """Output that has been brought from one node to the store."""

    node: str
    what: str
    """Which of the node's outputs; empty: all of them."""
    bytes: int
    entries: int


class CheckpointView(AnswerView):
    """A checkpoint that is kept. Bytes; ``bytes_sent`` is what of it had to be sent to the store."""

    taken: Time
    path: str
    """In $BURST_OUT."""
    bytes: int
    bytes_sent: int
    seconds: float


class JobStagingView(AnswerView):
    """The data of one job. Sizes in bytes; ``bytes_sent`` is what of the input had to be sent to the store."""

    job: str
    user: str
    account: str
    state: str
    since: Time
    created: Time
    reason: str
    error: str
    resume: str
    """The state from which a held one goes on."""
    attempts: int
    store: str
    nodes: list[str]
    job_state: str
    exit_code: str
    bytes_in: int
    bytes_sent: int
    bytes_hits: int
    bytes_out: int
    scratch_bytes: int
    estimated_ready: OptionalTime
    staged: OptionalTime
    inputs: list[StageInView]
    outputs: list[StageOutView]
    collected: list[CollectedView]
    checkpoints: list[CheckpointView]
    """The oldest first; the last one is put back when the job is requeued."""
    checkpoint_error: str
    """Why the last try failed; empty: it did not."""
    transfers: list[TransferView]


class RetainedNodeView(AnswerView):
    """A node that stays only because a job's output is on it; at ``until`` it is let go and the output is lost."""

    node: str
    job: str
    until: Time
    reason: str


class StoreView(AnswerView):
    """The store in use, as last read. ``free`` None: it cannot tell."""

    name: str
    kind: str
    looked: OptionalTime
    objects: int
    bytes: int
    free: int | None
    leftovers: int
    error: str


class UsageView(AnswerView):
    """What one user, or one Slurm account, takes up. Bytes; ``quota`` None: no limit."""

    name: str
    bytes: int
    quota: int | None


class StagingListView(AnswerView):
    """``burstctl stage status``. ``on`` False: burstd stages nothing, what is shown is of before."""

    now: Time
    on: bool
    store: StoreView | None
    jobs: list[JobStagingView]
    kept: list[RetainedNodeView]
    more: str
    """With ``all``, where there may be more: what to send as ``before``; else empty."""


class StagingDetailView(AnswerView):
    """``burstctl stage status JOB``."""

    now: Time
    on: bool
    job: JobStagingView
    kept: list[RetainedNodeView]
    history: list[EventView]


class StagingUsageView(AnswerView):
    """``burstctl stage usage``. Who is no administrator sees himself and the accounts of his jobs."""

    now: Time
    on: bool
    store: StoreView | None
    users: list[UsageView]
    projects: list[UsageView]
