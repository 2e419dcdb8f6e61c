"""The log: ``burstctl event``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.nodes import EventsView
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import MAX_RECORDS, ApiError, BackendDep, CallerDep, Timestamp
from burstd.api.routers.jobs import require_visible_job
from burstd.api.routers.nodes import event_view, named_stages
from burstd.db import USER_KEY, LoggedEvent, StoreReader, claim_subject
from burstd.domain.claim import Claim

_LAST_SEQ = (1 << 63) - 1
_MAX_CLAIMS_OF_NODE = 20
"""How many of the last claims of a node its events are shown of."""

router = APIRouter(prefix="/v1")


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
        _, _, claims = require_visible_job(job, caller, backend)
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
    by_subject = _claims_by_subject(shown, backend)
    slots = {subject: one.slot for subject, one in by_subject.items()}
    handed_over = [by_subject[s] for s in {e.subject for e in shown} & by_subject.keys() if by_subject[s].reused_from]
    former = slots_when_logged(reader, handed_over[:_MAX_CLAIMS_OF_NODE])
    views = named_stages(reader, (event_view(e, former.get(e.seq) or slots.get(e.subject, "")) for e in shown))
    return EventsView(
        now=backend.now(),
        events=[v.model_copy(update={"reason": ""}) if v.subject in hidden else v for v in views],
        last=last,
    )


def _may_read_event(event: LoggedEvent, caller: Caller) -> bool:
    """Whether the caller may read it. What an old release said of a job does not tell of whose: administrators only."""
    if USER_KEY in event.data:
        return caller.can_see_user(event.data[USER_KEY])
    return caller.admin or not event.subject.startswith("job:") or event.cause == "spot"


def slots_when_logged(reader: StoreReader, handed_over: Sequence[Claim]) -> dict[int, str]:
    """By ``seq`` of these claims' events, the node that the machine was at that time."""
    found: dict[int, str] = {}
    for claim in handed_over:
        slot = claim.slot
        for event in reader.events(subject=claim_subject(claim.id), newest=True, limit=MAX_RECORDS):
            found[event.seq] = slot
            slot = event.data.get("set", {}).get("reused_from") or slot
    return found


def _claims_by_subject(events: Sequence[LoggedEvent], backend: Backend) -> dict[str, Claim]:
    """Claims by the subjects under which their events are logged."""
    latest = backend.latest_loop()
    known = {claim_subject(c.id): c for c in (*latest[0].claims, *latest[0].storage_claims)} if latest else {}
    gone = {e.subject for e in events if e.subject.startswith("claim:")} - known.keys()
    if len(gone) > 20:
        return {claim_subject(c.id): c for c in backend.reader.find_claims(limit=MAX_RECORDS)} | known
    return known | {subject: backend.reader.claim(subject.removeprefix("claim:")) for subject in gone}


def _claim_events(
    reader: StoreReader, caller: Caller, node: str, claim: str, after: int, limit: int
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
