"""The routes that only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.explain import ExplainView, explain_view, past_job_view
from burstd.api.answers.jobs import AnnotatedQueue, JobDetailView, JobsView, past_remark_views, remark_views
from burstd.api.answers.nodes import claim_node_view, event_view, node_views
from burstd.api.answers.plan import bill_view
from burstd.api.answers.staging import held_staging_alarms, staging_summary
from burstd.api.answers.status import status_view
from burstd.api.answers.types import (
    BillView,
    EventsView,
    EventView,
    NodeDetailView,
    NodesView,
    StatusView,
    utc_datetime,
)
from burstd.api.auth import Caller, base_job_id, visible_jobs_filter
from burstd.api.backend import Backend, ClaimRecords, NoAnswer
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, Timestamp, require_latest_loop
from burstd.db import USER_KEY, LoggedEvent, UnknownClaim, claim_subject
from burstd.db.repositories.bill import BillGrouping
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Claim
from burstd.domain.command import WhatIf
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner.explain.job_lookup import request_text

MAX_RECORDS = 10_000
WHAT_IF_TIMEOUT_S = 10.0
"""How long explain waits for the deciding thread to say what would start the job."""
_LAST_SEQ = (1 << 63) - 1
_MAX_CLAIMS_OF_NODE = 20
"""How many of the last claims of a node its events are shown of."""

router = APIRouter(prefix="/v1")


@router.get("/status")
def get_status(caller: CallerDep, backend: BackendDep) -> StatusView:
    """Everything at a glance."""
    glance = staging_summary(backend.reader, backend.stage)
    held = held_staging_alarms(backend.reader, caller) if not caller.admin else ()
    return status_view(backend.daemon_info(), backend.latest_loop(), caller, backend.now(), glance, held)


@router.get("/nodes")
def get_nodes(
    caller: CallerDep, backend: BackendDep, *, every: Annotated[bool, Query(alias="all")] = False
) -> NodesView:
    """Live claims and held slots; with ``all`` every slot."""
    snapshot, _ = require_latest_loop(backend)
    now = backend.now()
    seen = visible_jobs_filter(caller, snapshot)
    return NodesView(
        now=utc_datetime(now),
        nodes=node_views(snapshot, backend.reader.drained_slots(), caller, seen, now, include_free=every),
    )


@router.get("/nodes/{name}")
def get_node(name: str, caller: CallerDep, backend: BackendDep) -> NodeDetailView:
    """One node by its name, or one claim by its id, past ones included, with its history."""
    snapshot, _ = require_latest_loop(backend)
    now, reader = backend.now(), backend.reader
    seen, held = visible_jobs_filter(caller, snapshot), reader.drained_slots()
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    found = next(
        (n for n in node_views(snapshot, held, caller, seen, now, include_free=True) if name in (n.slot, n.claim)), None
    )
    if found is None:
        try:
            claim = reader.claim(name)
        except UnknownClaim:
            raise ApiError(404, f"There is no node and no claim {name!r}.", sorted(slots)) from None
        found = claim_node_view(claim, None, None, caller, seen, now)
    history: list[EventView] = []
    if found.claim and caller.can_see_claim_for(reader.claim(found.claim).users):
        history = [
            event_view(e, found.slot) for e in reader.events(subject=claim_subject(found.claim), limit=MAX_RECORDS)
        ]
    elif caller.admin:
        history = [event_view(e) for e in reversed(reader.events(subject=f"slot:{found.slot}", newest=True, limit=100))]
    return NodeDetailView(now=utc_datetime(now), node=found, history=history)


@router.get("/jobs")
def get_jobs(caller: CallerDep, backend: BackendDep, user: str = "") -> JobsView:
    """Jobs of burst partitions: everyone's for administrators, else the caller's own."""
    snapshot, plan = require_latest_loop(backend)
    if user and not caller.can_see_user(user):
        raise ApiError(403, f"You are {caller.user} and see your own jobs only.")
    _require_slurm(snapshot)
    queue = AnnotatedQueue(snapshot, plan)
    mine = [job for job in queue.burst_jobs() if caller.can_see_user(job.user) and user in ("", job.user)]
    return JobsView(now=utc_datetime(backend.now()), jobs=[queue.to_view(job) for job in mine])


@router.get("/jobs/{job_id}")
def get_job(job_id: str, caller: CallerDep, backend: BackendDep) -> JobDetailView:
    """One job, with what was decided about it and the claims made for it."""
    queue, job, claims = _require_visible_job(job_id, caller, backend)
    now, reader = backend.now(), backend.reader
    seen = visible_jobs_filter(caller, queue.snapshot)
    if job is None:
        remark_list = past_remark_views(reader.remarks(f"job:{job_id}"))
    else:
        remark_list = remark_views(queue.remarks_on(job), reader.remarks(f"job:{job.id}"))
    return JobDetailView(
        now=utc_datetime(now),
        id=job.id if job is not None else job_id,
        job=queue.to_view(job) if job is not None else None,
        asks=request_text(job) if job is not None else "",
        remarks=remark_list,
        nodes=[claim_node_view(claim, queue.snapshot if claim.state != "gone" else None, None, caller, seen, now)
               for claim in claims],
    )  # fmt: skip


@router.get("/jobs/{job_id}/explanation")
def get_explanation(job_id: str, caller: CallerDep, backend: BackendDep) -> ExplainView:
    """Why a job does or does not start."""
    queue, job, claims = _require_visible_job(job_id, caller, backend)
    noted = backend.reader.remarks(f"job:{job.id if job is not None else job_id}")
    if job is not None:
        return explain_view(
            queue, job, job_id, noted, caller, backend.now(), _what_if_changes(queue, job, caller, backend)
        )
    nodes = f"; {len(claims)} node(s) were started for it: {', '.join(c.slot for c in claims)}" if claims else ""
    return past_job_view(job_id, f"it has left the queue{nodes}", past_remark_views(noted), backend.now())


def _what_if_changes(queue: AnnotatedQueue, job: Job, caller: Caller, backend: Backend) -> Sequence[OptionChange]:
    """What would start a job that gets no node; nothing where the deciding thread has no time to say."""
    remark = queue.last_remark(job)
    if job.state is not JobState.PENDING or (remark is not None and remark.verdict in ("boot", "covered")):
        return ()
    try:
        return backend.command(WhatIf(job.id, caller.actor), WHAT_IF_TIMEOUT_S).option_changes
    except NoAnswer:
        return ()


@router.get("/events")
def get_events(
    caller: CallerDep,
    backend: BackendDep,
    *,
    after: Annotated[int, Query(ge=0, le=_LAST_SEQ)] = 0,
    since: Timestamp = 0.0,
    job: str = "",
    node: str = "",
    claim: str = "",
    limit: Annotated[int, Query(ge=1, le=MAX_RECORDS)] = 100,
) -> EventsView:
    """Without ``after`` the last ``limit`` entries of the log, with it the first ones after that ``seq``.

    ``since`` in seconds since 1970. At most one of ``job``, ``node`` and ``claim``.
    """
    reader, newest = backend.reader, after == 0
    if sum(map(bool, (job, node, claim))) > 1:
        raise ApiError(422, "Choose one of job, node and claim.")
    head = reader.events(newest=True, limit=1)
    last = max(after, head[0].seq if head else 0)
    found: Sequence[LoggedEvent]
    hidden: set[str] = set()
    if job:
        _, _, claims = _require_visible_job(job, caller, backend)
        found = reader.events(job=job, after=after, newest=newest, limit=limit)
        hidden = {claim_subject(c.id) for c in claims if not caller.can_see_claim_for(c.users)}
    elif node or claim:
        found = _claim_events(reader, caller, node, claim, after, limit)
    elif not caller.admin:
        raise ApiError(403, f"You are {caller.user} and see the events of your own jobs only: name one of them.")
    else:
        found = reader.events(after=after, newest=newest, limit=limit)
    read = max((e.seq for e in found), default=0)
    # Where there is more to come the next question begins after what was given, else after all there is.
    last = read if not newest and len(found) >= limit else max(last, read)
    # An id comes again after years: what was said of another's job stays with him.
    readable = (e for e in found if e.time >= since and _may_read_event(e, caller))
    shown = sorted(readable, key=lambda e: e.seq)
    slots = _slots_by_subject(shown, backend)
    views = [event_view(e, slots.get(e.subject, "")) for e in shown]
    return EventsView(
        now=utc_datetime(backend.now()),
        events=[v.model_copy(update={"reason": ""}) if v.subject in hidden else v for v in views],
        last=last,
    )


def _may_read_event(event: LoggedEvent, caller: Caller) -> bool:
    """Whether the caller may read it. What an old release said of a job does not tell of whose: administrators only."""
    if USER_KEY in event.data:
        return caller.can_see_user(event.data[USER_KEY])
    return caller.admin or not event.subject.startswith("job:") or event.cause == "spot"


@router.get("/bill")
def get_bill(
    caller: CallerDep,
    backend: BackendDep,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    group: BillGrouping = "user",
) -> BillView:
    """What machines cost, by user, account, job, pool, provider or claim; default: since the first of the month (UTC).

    ``since`` and ``until`` in seconds since 1970. Who is no administrator sees his own share, his own budget and those
    of the accounts of his jobs.
    """
    now = backend.now()
    today = utc_datetime(now)
    begin = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() if since is None else since
    end = min(now, now if until is None else until)
    if begin >= end:
        raise ApiError(
            422, f"The bill would end ({utc_datetime(end):%F %T}) before it begins ({utc_datetime(begin):%F %T})."
        )
    keys = None if caller.admin else _visible_bill_keys(caller, backend, group)
    lines = backend.reader.bill(group, begin, end)
    return bill_view(lines, group, begin, end, now, keys, _visible_budgets(caller, backend))


def _visible_budgets(caller: Caller, backend: Backend) -> list[BudgetLine]:
    latest = backend.latest_loop()
    if latest is None:
        return []
    snapshot, plan = latest
    if caller.admin or not plan.target.budgets:
        return list(plan.target.budgets)
    queue = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    accounts = {job.account for job in queue if job.user == caller.user}
    accounts |= {
        a
        for c in backend.reader.find_claims(user=caller.user, limit=MAX_RECORDS)
        if caller.can_see_claim_for(c.users)
        for a in c.accounts
    }
    mine = {("user", caller.user), *(("project", account) for account in accounts)}
    return [line for line in plan.target.budgets if (line.kind, line.name) in mine]


def _visible_bill_keys(caller: Caller, backend: Backend, group: BillGrouping) -> set[str]:
    """Keys of the bill's lines that are the caller's alone."""
    if group == "user":
        return {caller.user}
    if group not in ("job", "claim"):
        raise ApiError(403, f"You are {caller.user} and see your own bill only: by user, job or claim.")
    latest = backend.latest_loop()
    seen = visible_jobs_filter(caller, latest[0] if latest else None)
    claims = backend.reader.find_claims(user=caller.user, limit=MAX_RECORDS)
    if group == "claim":
        return {c.id for c in claims if caller.can_see_claim_for(c.users)}
    return {job for c in claims for job in seen(c)}


def _require_visible_job(
    job_id: str, caller: Caller, backend: Backend
) -> tuple[AnnotatedQueue, Job | None, Sequence[Claim]]:
    """A job in the queue, or None with the claims that were made for one that has left it."""
    queue = AnnotatedQueue(*require_latest_loop(backend))
    job = queue.find_job(job_id)
    claims = backend.reader.find_claims(job=job_id)
    if job is None and not claims and not backend.reader.events(job=job_id, limit=1):
        _require_slurm(queue.snapshot)
        raise ApiError(404, f"Job {job_id} is neither in the queue nor on burstd's record.")
    # Of a task that has ended the others of its array say whose it was.
    row = job or queue.find_job(base_job_id(job_id))
    mine = caller.can_see_user(row.user) if row is not None else _owned_past_job(job_id, caller, backend, claims)
    if not mine:
        raise ApiError(403, f"You are {caller.user}, and job {base_job_id(job_id)} is not known to be yours.")
    return queue, job, claims


def _owned_past_job(job_id: str, caller: Caller, backend: Backend, claims: Sequence[Claim]) -> bool:
    """Whether a job that has left the queue was the caller's, as far as the record knows."""
    return (
        caller.admin
        or any(caller.can_see_claim_for(c.users) for c in claims)
        or backend.reader.job_owner(job_id) == caller.user
    )


def _require_slurm(snapshot: Snapshot) -> None:
    """An empty answer about jobs must not stand for a Slurm that does not answer."""
    if isinstance(snapshot.slurm, Unavailable):
        raise ApiError(503, f"Slurm cannot be read: {snapshot.slurm.error}")


def _slots_by_subject(events: Sequence[LoggedEvent], backend: Backend) -> dict[str, str]:
    """The slots of claims, by the subjects under which their events are logged."""
    latest = backend.latest_loop()
    known = {claim_subject(c.id): c.slot for c in (*latest[0].claims, *latest[0].storage_claims)} if latest else {}
    gone = {e.subject for e in events if e.subject.startswith("claim:")} - known.keys()
    if len(gone) > 20:
        return {claim_subject(c.id): c.slot for c in backend.reader.find_claims(limit=MAX_RECORDS)} | known
    return known | {subject: backend.reader.claim(subject.removeprefix("claim:")).slot for subject in gone}


def _claim_events(
    reader: ClaimRecords, caller: Caller, node: str, claim: str, after: int, limit: int
) -> Sequence[LoggedEvent]:
    """The events of a node and its last claims, or of one claim; those that the caller may see."""
    if claim:
        claims: Sequence[Claim] = [reader.claim(claim)]
        if not caller.can_see_claim_for(claims[0].users):
            raise ApiError(403, f"You are {caller.user}, and claim {claim} was not made for you alone.")
    else:
        claims = [
            c for c in reader.find_claims(slot=node, limit=_MAX_CLAIMS_OF_NODE) if caller.can_see_claim_for(c.users)
        ]
    subjects = [claim_subject(c.id) for c in claims]
    if node and caller.admin:
        subjects.append(f"slot:{node}")
    found = [e for s in subjects for e in reader.events(subject=s, after=after, newest=after == 0, limit=limit)]
    found.sort(key=lambda e: e.seq)
    return found[-limit:] if after == 0 else found[:limit]
