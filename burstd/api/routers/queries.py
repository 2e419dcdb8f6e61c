"""The routes that only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.explain import ExplainView, explanation, gone
from burstd.api.answers.jobs import JobDetailView, JobsView, Queue, past_remarks, remarks
from burstd.api.answers.nodes import event, node_of, nodes
from burstd.api.answers.plan import bill_view
from burstd.api.answers.staging import at_a_glance, held_alarms
from burstd.api.answers.status import status
from burstd.api.answers.types import BillView, EventsView, EventView, NodeDetailView, NodesView, StatusView, when
from burstd.api.auth import Caller, jobs_seen, whole
from burstd.api.backend import NoAnswer, Office, Records
from burstd.api.dependencies import Daemon, Denied, Time, You, looked
from burstd.db import USER, Event, UnknownClaim, claim_subject
from burstd.db.repositories.bill import Group
from burstd.domain.billing.costs import BudgetLine
from burstd.domain.claim import Claim
from burstd.domain.command import WhatIf
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.option_change import Change
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.planner.explain.job_lookup import asks

MOST = 10_000
WHAT_IF_TIMEOUT_S = 10.0
"""How long explain waits for the deciding thread to say what would start the job."""
_LAST_SEQ = (1 << 63) - 1
_CLAIMS_OF_A_NODE = 20
"""How many of the last claims of a node its events are shown of."""

router = APIRouter(prefix="/v1")


@router.get("/status")
def get_status(you: You, office: Daemon) -> StatusView:
    """Everything at a glance."""
    glance = at_a_glance(office.reader, office.stage)
    held = held_alarms(office.reader, you) if not you.admin else ()
    return status(office.facts(), office.latest(), you, office.now(), glance, held)


@router.get("/nodes")
def get_nodes(you: You, office: Daemon, *, every: Annotated[bool, Query(alias="all")] = False) -> NodesView:
    """Live claims and held slots; with ``all`` every slot."""
    snapshot, _ = looked(office)
    now = office.now()
    seen = jobs_seen(you, snapshot)
    return NodesView(now=when(now), nodes=nodes(snapshot, office.reader.held(), you, seen, now, every=every))


@router.get("/nodes/{name}")
def get_node(name: str, you: You, office: Daemon) -> NodeDetailView:
    """One node by its name, or one claim by its id, past ones included, with its history."""
    snapshot, _ = looked(office)
    now, reader = office.now(), office.reader
    seen, held = jobs_seen(you, snapshot), reader.held()
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    found = next((n for n in nodes(snapshot, held, you, seen, now, every=True) if name in (n.slot, n.claim)), None)
    if found is None:
        try:
            claim = reader.claim(name)
        except UnknownClaim:
            raise Denied(404, f"There is no node and no claim {name!r}.", sorted(slots)) from None
        found = node_of(claim, None, None, you, seen, now)
    history: list[EventView] = []
    if found.claim and you.alone(reader.claim(found.claim).users):
        history = [event(e, found.slot) for e in reader.events(subject=claim_subject(found.claim), limit=MOST)]
    elif you.admin:
        history = [event(e) for e in reversed(reader.events(subject=f"slot:{found.slot}", newest=True, limit=100))]
    return NodeDetailView(now=when(now), node=found, history=history)


@router.get("/jobs")
def get_jobs(you: You, office: Daemon, user: str = "") -> JobsView:
    """Jobs of burst partitions: everyone's for administrators, else the caller's own."""
    snapshot, plan = looked(office)
    if user and not you.owns(user):
        raise Denied(403, f"You are {you.user} and see your own jobs only.")
    _readable(snapshot)
    queue = Queue(snapshot, plan)
    mine = [job for job in queue.burst() if you.owns(job.user) and user in ("", job.user)]
    return JobsView(now=when(office.now()), jobs=[queue.view(job) for job in mine])


@router.get("/jobs/{job_id}")
def get_job(job_id: str, you: You, office: Daemon) -> JobDetailView:
    """One job, with what was decided about it and the claims made for it."""
    queue, job, claims = _job(job_id, you, office)
    now, reader = office.now(), office.reader
    seen = jobs_seen(you, queue.snapshot)
    if job is None:
        said = past_remarks(reader.remarks(f"job:{job_id}"))
    else:
        said = remarks(queue.remarks(job), reader.remarks(f"job:{job.id}"))
    return JobDetailView(
        now=when(now),
        id=job.id if job is not None else job_id,
        job=queue.view(job) if job is not None else None,
        asks=asks(job) if job is not None else "",
        remarks=said,
        nodes=[node_of(claim, queue.snapshot if claim.state != "gone" else None, None, you, seen, now)
               for claim in claims],
    )  # fmt: skip


@router.get("/jobs/{job_id}/explanation")
def get_explanation(job_id: str, you: You, office: Daemon) -> ExplainView:
    """Why a job does or does not start."""
    queue, job, claims = _job(job_id, you, office)
    noted = office.reader.remarks(f"job:{job.id if job is not None else job_id}")
    if job is not None:
        return explanation(queue, job, job_id, noted, you, office.now(), _changes(queue, job, you, office))
    nodes = f"; {len(claims)} node(s) were started for it: {', '.join(c.slot for c in claims)}" if claims else ""
    return gone(job_id, f"it has left the queue{nodes}", past_remarks(noted), office.now())


def _changes(queue: Queue, job: Job, you: Caller, office: Office) -> Sequence[Change]:
    """What would start a job that gets no node; nothing where the deciding thread has no time to say."""
    word = queue.word(job)
    if job.state is not JobState.PENDING or (word is not None and word.verdict in ("boot", "covered")):
        return ()
    try:
        return office.command(WhatIf(job.id, you.by), WHAT_IF_TIMEOUT_S).changes
    except NoAnswer:
        return ()


@router.get("/events")
def get_events(
    you: You,
    office: Daemon,
    *,
    after: Annotated[int, Query(ge=0, le=_LAST_SEQ)] = 0,
    since: Time = 0.0,
    job: str = "",
    node: str = "",
    claim: str = "",
    limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
) -> EventsView:
    """Without ``after`` the last ``limit`` entries of the log, with it the first ones after that ``seq``.

    ``since`` in seconds since 1970. At most one of ``job``, ``node`` and ``claim``.
    """
    reader, newest = office.reader, after == 0
    if sum(map(bool, (job, node, claim))) > 1:
        raise Denied(422, "Choose one of job, node and claim.")
    head = reader.events(newest=True, limit=1)
    last = max(after, head[0].seq if head else 0)
    found: Sequence[Event]
    hidden: set[str] = set()
    if job:
        _, _, claims = _job(job, you, office)
        found = reader.events(job=job, after=after, newest=newest, limit=limit)
        hidden = {claim_subject(c.id) for c in claims if not you.alone(c.users)}
    elif node or claim:
        found = _of_claims(reader, you, node, claim, after, limit)
    elif not you.admin:
        raise Denied(403, f"You are {you.user} and see the events of your own jobs only: name one of them.")
    else:
        found = reader.events(after=after, newest=newest, limit=limit)
    read = max((e.seq for e in found), default=0)
    # Where there is more to come the next question begins after what was given, else after all there is.
    last = read if not newest and len(found) >= limit else max(last, read)
    # An id comes again after years: what was said of another's job stays with him.
    mine = (e for e in found if e.time >= since and _told(e, you))
    shown = sorted(mine, key=lambda e: e.seq)
    slots = _slots(shown, office)
    views = [event(e, slots.get(e.subject, "")) for e in shown]
    return EventsView(
        now=when(office.now()),
        events=[v.model_copy(update={"reason": ""}) if v.subject in hidden else v for v in views],
        last=last,
    )


def _told(event: Event, you: Caller) -> bool:
    """Whether the caller may read it. What an old release said of a job does not tell of whose: administrators only."""
    if USER in event.data:
        return you.owns(event.data[USER])
    return you.admin or not event.subject.startswith("job:") or event.cause == "spot"


@router.get("/bill")
def get_bill(
    you: You, office: Daemon, since: Time | None = None, until: Time | None = None, group: Group = "user"
) -> BillView:
    """What machines cost, by user, account, job, pool, provider or claim; default: since the first of the month (UTC).

    ``since`` and ``until`` in seconds since 1970. Who is no administrator sees his own share, his own budget and those
    of the accounts of his jobs.
    """
    now = office.now()
    today = when(now)
    begin = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp() if since is None else since
    end = min(now, now if until is None else until)
    if begin >= end:
        raise Denied(422, f"The bill would end ({when(end):%F %T}) before it begins ({when(begin):%F %T}).")
    keys = None if you.admin else _payer_keys(you, office, group)
    lines = office.reader.bill(group, begin, end)
    return bill_view(lines, group, begin, end, now, keys, _budgets_seen(you, office))


def _budgets_seen(you: Caller, office: Office) -> list[BudgetLine]:
    latest = office.latest()
    if latest is None:
        return []
    snapshot, plan = latest
    if you.admin or not plan.target.budgets:
        return list(plan.target.budgets)
    queue = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
    accounts = {job.account for job in queue if job.user == you.user}
    accounts |= {a for c in office.reader.find(user=you.user, limit=MOST) if you.alone(c.users) for a in c.accounts}
    mine = {("user", you.user), *(("project", account) for account in accounts)}
    return [line for line in plan.target.budgets if (line.kind, line.name) in mine]


def _payer_keys(you: Caller, office: Office, group: Group) -> set[str]:
    """Keys of the bill's lines that are the caller's alone."""
    if group == "user":
        return {you.user}
    if group not in ("job", "claim"):
        raise Denied(403, f"You are {you.user} and see your own bill only: by user, job or claim.")
    latest = office.latest()
    seen = jobs_seen(you, latest[0] if latest else None)
    claims = office.reader.find(user=you.user, limit=MOST)
    if group == "claim":
        return {c.id for c in claims if you.alone(c.users)}
    return {job for c in claims for job in seen(c)}


def _job(job_id: str, you: Caller, office: Office) -> tuple[Queue, Job | None, Sequence[Claim]]:
    """A job in the queue, or None with the claims that were made for one that has left it."""
    queue = Queue(*looked(office))
    job = queue.find(job_id)
    claims = office.reader.find(job=job_id)
    if job is None and not claims and not office.reader.events(job=job_id, limit=1):
        _readable(queue.snapshot)
        raise Denied(404, f"Job {job_id} is neither in the queue nor on burstd's record.")
    # Of a task that has ended the others of its array say whose it was.
    row = job or queue.find(whole(job_id))
    mine = you.owns(row.user) if row is not None else _was_mine(job_id, you, office, claims)
    if not mine:
        raise Denied(403, f"You are {you.user}, and job {whole(job_id)} is not known to be yours.")
    return queue, job, claims


def _was_mine(job_id: str, you: Caller, office: Office, claims: Sequence[Claim]) -> bool:
    """Whether a job that has left the queue was the caller's, as far as the record knows."""
    return you.admin or any(you.alone(c.users) for c in claims) or office.reader.owner(job_id) == you.user


def _readable(snapshot: Snapshot) -> None:
    """An empty answer about jobs must not stand for a Slurm that does not answer."""
    if isinstance(snapshot.slurm, Unavailable):
        raise Denied(503, f"Slurm cannot be read: {snapshot.slurm.error}")


def _slots(events: Sequence[Event], office: Office) -> dict[str, str]:
    """The slots of claims, by the subjects under which their events are logged."""
    latest = office.latest()
    known = {claim_subject(c.id): c.slot for c in (*latest[0].claims, *latest[0].storage)} if latest else {}
    gone = {e.subject for e in events if e.subject.startswith("claim:")} - known.keys()
    if len(gone) > 20:
        return {claim_subject(c.id): c.slot for c in office.reader.find(limit=MOST)} | known
    return known | {subject: office.reader.claim(subject.removeprefix("claim:")).slot for subject in gone}


def _of_claims(reader: Records, you: Caller, node: str, claim: str, after: int, limit: int) -> Sequence[Event]:
    """The events of a node and its last claims, or of one claim; those that the caller may see."""
    if claim:
        claims: Sequence[Claim] = [reader.claim(claim)]
        if not you.alone(claims[0].users):
            raise Denied(403, f"You are {you.user}, and claim {claim} was not made for you alone.")
    else:
        claims = [c for c in reader.find(slot=node, limit=_CLAIMS_OF_A_NODE) if you.alone(c.users)]
    subjects = [claim_subject(c.id) for c in claims]
    if node and you.admin:
        subjects.append(f"slot:{node}")
    found = [e for s in subjects for e in reader.events(subject=s, after=after, newest=after == 0, limit=limit)]
    found.sort(key=lambda e: e.seq)
    return found[-limit:] if after == 0 else found[:limit]
