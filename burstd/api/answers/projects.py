"""What ``burstctl project`` shows. GPUs are numbers: half a GPU is 0.5."""

from __future__ import annotations

from burstd.api.answers.base import AnswerView, CommandResultView, OptionalTime, Time
from burstd.api.answers.nodes import EventView


class ShareView(AnswerView):
    """What a project has, and is to have."""

    demand: float
    """What its running and its eligible pending jobs ask for."""
    running: float
    over_quota: float
    """Of ``running``, what is beyond the quota."""
    share: float
    """What it is to have now."""


class ProjectView(AnswerView):
    """One project: what it was granted, what it has and is to have."""

    name: str
    account: str
    """Empty: it only has children."""
    parent: str
    partitions: list[str]
    features: list[str]
    """Of the partitions' nodes those with all of these; empty: all."""
    quota: float
    weight: float | None
    limit: float | None
    priority: int
    interactive_max_s: float | None
    min_runtime_s: float
    reclaim_after_s: float
    burst_over_quota: str
    share: ShareView | None
    """None: it is not known yet."""
    cap: float | None
    """The most that Slurm lets it run beyond the quota; None: no limit, or not known."""
    text: str
    """How it stands, in a sentence."""
    origin: str
    """``burstd.toml``, ``burstd.toml, changed by burstctl`` or ``burstctl``."""
    changed: list[str]
    """Keys that were changed by ``burstctl project set``."""
    pending: str
    """``set up`` or ``remove``: what Slurm still lacks, or still has; empty: neither."""
    error: str
    """What is wrong with Slurm's side of it."""


class ProjectListView(AnswerView):
    """``burstctl project list``. ``accounting_error``: why limits cannot be changed in slurmdbd; empty: they can."""

    now: Time
    seen: OptionalTime
    projects: list[ProjectView]
    """Each after its parent."""
    accounting_error: str


class ProjectJobView(AnswerView):
    """A running or pending job of a project."""

    id: str
    """``12``, ``12_3``, ``12_[4-9]``."""
    user: str
    state: str
    gpus: float
    """Of all its nodes, and of all tasks where they wait together."""
    over_quota: bool
    """It runs in the over-quota partition, and may be requeued."""
    waits_for: str
    """Of a pending job; empty: it runs."""
    requeued_at: OptionalTime
    """When it is requeued for others; null: nobody takes it back."""


class ProjectDetailView(AnswerView):
    """``burstctl project show NAME``. ``jobs``: those that the caller may see; ``history``: for administrators."""

    now: Time
    project: ProjectView
    jobs: list[ProjectJobView]
    other_jobs: int
    """Jobs of others, which the caller may not see."""
    history: list[EventView]


class ProjectChangeView(CommandResultView):
    """``burstctl project create``, ``set`` and ``delete``."""

    commands: list[str]
    """Slurm's commands for it, in order."""
    undo: str
    """The command that takes it back; empty: nothing has changed."""
    dry_run: bool
