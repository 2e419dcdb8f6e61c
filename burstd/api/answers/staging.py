"""What ``burstctl stage`` shows: the data of jobs, from the record and from the transfers under way."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime

from burstd.api.answers.types import AnswerView, EventView, StageStatusView, utc_datetime, utc_datetime_or_none
from burstd.api.auth import Caller
from burstd.api.backend import ClaimRecords, RetainedNode, StagingBackend, StagingUsage, TransferProgress
from burstd.domain.staging import StageState, Staging

_MAX_HELD_ALARMS = 5
"""Jobs with held data that burstctl status lists."""


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


class JobStagingView(AnswerView):
    """The data of one job. Sizes in bytes; ``bytes_sent`` is what of the input had to be sent to the store."""

    job: str
    user: str
    account: str
    state: str
    since: datetime
    created: datetime
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
    estimated_ready: datetime | None
    staged: datetime | None
    inputs: list[StageInView]
    outputs: list[StageOutView]
    collected: list[CollectedView]
    transfers: list[TransferView]


class RetainedNodeView(AnswerView):
    """A node that stays only because a job's output is on it; at ``until`` it is let go and the output is lost."""

    node: str
    job: str
    until: datetime
    reason: str


class StoreView(AnswerView):
    """The store in use, as last read. ``free`` None: it cannot tell."""

    name: str
    kind: str
    looked: datetime | None
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

    now: datetime
    on: bool
    store: StoreView | None
    jobs: list[JobStagingView]
    kept: list[RetainedNodeView]
    more: str
    """With ``all``, where there may be more: what to send as ``before``; else empty."""


class StagingDetailView(AnswerView):
    """``burstctl stage status JOB``."""

    now: datetime
    on: bool
    job: JobStagingView
    kept: list[RetainedNodeView]
    history: list[EventView]


class StagingUsageView(AnswerView):
    """``burstctl stage usage``. Who is no administrator sees himself and the accounts of his jobs."""

    now: datetime
    on: bool
    store: StoreView | None
    users: list[UsageView]
    projects: list[UsageView]


def staging_summary(record: ClaimRecords, stage: StagingBackend | None) -> StageStatusView | None:
    """For ``burstctl status``."""
    if stage is None:
        return None
    states = Counter(s.state for s in record.stagings())
    store = stage.usage().store
    return StageStatusView(
        store=store.name,
        error=store.error,
        jobs=sum(states.values()),
        states={state.value: states[state] for state in StageState if states[state]},
        rate=sum(t.rate for transfers in stage.transfer_progress().values() for t in transfers),
        kept=len(stage.retained_nodes()),
    )


def held_staging_alarms(record: ClaimRecords, caller: Caller) -> list[str]:
    """What of the caller's own data needs him."""
    held_stagings = [s for s in record.stagings() if s.user == caller.user and s.needs_attention]
    return [f"the data of job {s.job_id} is held: {s.attention_text}" for s in held_stagings[:_MAX_HELD_ALARMS]]


def staging_view(staging: Staging, transfers: Sequence[TransferProgress]) -> JobStagingView:
    """The data of one job."""
    asked = staging.directives
    hits = max(0, staging.bytes_in - staging.bytes_sent) if staging.staged else 0
    return JobStagingView(
        job=staging.job_id,
        user=staging.user,
        account=staging.account,
        state=staging.state.value,
        since=utc_datetime(staging.since),
        created=utc_datetime(staging.created),
        reason=staging.reason,
        error=staging.error,
        resume=staging.resume,
        attempts=staging.attempts,
        store=staging.store,
        nodes=list(staging.nodes),
        job_state=staging.job_state,
        exit_code=staging.exit_code,
        bytes_in=staging.bytes_in,
        bytes_sent=staging.bytes_sent,
        bytes_hits=hits,
        bytes_out=staging.bytes_out,
        scratch_bytes=asked.scratch_bytes,
        estimated_ready=utc_datetime_or_none(staging.estimated_ready),
        staged=utc_datetime_or_none(staging.staged),
        inputs=[
            StageInView(
                name=printable_path(i.name),
                source=printable_path(i.source),
                access=i.access.value,
                dataset=printable_path(i.dataset),
                bytes=tree.size if tree else None,
                entries=tree.entries if tree else None,
                digest=tree.digest if tree else "",
                place=printable_path(tree.node_path) if tree else "",
            )
            for i in asked.stage_in
            for tree in (staging.trees.get(i.name),)
        ],
        outputs=[
            StageOutView(
                pattern=printable_path(o.pattern), destination=printable_path(o.destination), when=o.when.value
            )
            for o in asked.stage_out
        ],
        collected=[
            CollectedView(
                node=printable_path(key.partition("/")[0]),
                what=printable_path(key.partition("/")[2]),
                bytes=tree.size,
                entries=tree.entries,
            )
            for key, tree in sorted(staging.outputs.items())
        ],
        transfers=[
            TransferView(
                name=printable_path(t.name),
                direction=t.direction,
                bytes_done=t.done,
                bytes_total=t.total,
                bytes_sent=t.sent,
                bytes_hits=t.hits,
                rate=t.rate,
                eta_s=t.eta_s,
                since_s=t.seconds,
            )
            for t in transfers
        ],
    )


def retained_node_views(
    retained: Sequence[RetainedNode], caller: Caller, job_id: str = "", user: str = ""
) -> list[RetainedNodeView]:
    """Those that the caller may see, of one job, one user or all."""
    return [
        RetainedNodeView(node=k.node, job=k.job_id, until=utc_datetime(k.until), reason=k.reason)
        for k in sorted(retained, key=lambda k: (k.until, k.node))
        if caller.can_see_user(k.user) and job_id in ("", k.job_id) and user in ("", k.user)
    ]


def store_view(use: StagingUsage) -> StoreView:
    """The store in use."""
    store = use.store
    return StoreView(
        name=store.name,
        kind=store.kind,
        looked=utc_datetime_or_none(store.measured_at),
        objects=store.objects,
        bytes=store.bytes,
        free=store.free,
        leftovers=store.leftovers,
        error=store.error,
    )


def users_view(use: StagingUsage, caller: Caller) -> list[UsageView]:
    """All users who take up something or have a quota of their own, for administrators; else the caller."""
    names = {*use.users, *use.quota.users} if caller.admin else {caller.user}
    return [UsageView(name=n, bytes=use.users.get(n, 0), quota=use.quota.user_limit(n)) for n in sorted(names)]


def projects_view(use: StagingUsage, caller: Caller, accounts: Collection[str]) -> list[UsageView]:
    """All accounts, for administrators; else those named."""
    names = {*use.projects, *use.quota.projects} if caller.admin else set(accounts) - {""}
    return [UsageView(name=n, bytes=use.projects.get(n, 0), quota=use.quota.project_limit(n)) for n in sorted(names)]


def printable_path(text: str) -> str:
    """A path for JSON: bytes that are no UTF-8 as ``\\xe9``."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")
