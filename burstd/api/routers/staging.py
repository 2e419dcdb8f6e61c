"""The routes of jobs' data. Users see, and act upon, the data of their own jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.nodes import event
from burstd.api.answers.staging import (
    StageDetailView,
    StageUseView,
    StageView,
    job_view,
    kept_views,
    projects_view,
    store_view,
    users_view,
)
from burstd.api.answers.types import DoneView, when
from burstd.api.auth import Caller
from burstd.api.backend import Office
from burstd.api.dependencies import Admin, Daemon, Denied, You
from burstd.api.routers.mutations import Wish, done
from burstd.db import stage_subject
from burstd.domain.cloud.bounds import LAST_S
from burstd.domain.command import DiscardOutput, Evict, RetryStage
from burstd.domain.staging import StageState, Staging

_DISCARDED_FROM = (StageState.HELD, StageState.COLLECTING)
_HISTORY = 200

router = APIRouter(prefix="/v1/stage")


class EvictWish(Wish):
    """``burstctl stage evict``; ``name`` is empty for ``unneeded`` only."""

    kind: Literal["dataset", "tree", "user", "unneeded"]
    name: str = Field(default="", max_length=200)


@router.get("")
def get_stage(
    you: You,
    office: Daemon,
    *,
    every: Annotated[bool, Query(alias="all")] = False,
    user: str = "",
    before: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StageView:
    """The data of jobs: what is not cleared yet, oldest first; with ``all`` a page of history, newest first.

    ``before`` is ``more`` of the page before.
    """
    if user and not you.owns(user):
        raise Denied(403, f"You are {you.user} and see the data of your own jobs only.")
    only = user if you.admin else you.user
    more = ""
    if every:
        found = office.reader.find_stagings(user=only, before=_cursor(before), limit=limit)
        if len(found) == limit:
            more = f"{found[-1].created!r}_{found[-1].job_id}"
    else:
        found = tuple(s for s in office.reader.stagings() if only in ("", s.user))
    stage = office.stage
    progress = stage.progress() if stage else {}
    return StageView(
        now=when(office.now()),
        on=stage is not None,
        store=store_view(stage.use()) if stage else None,
        jobs=[job_view(s, progress.get(s.job_id, ())) for s in found],
        kept=kept_views(stage.kept(), you, user=only) if stage else [],
        more=more,
    )


@router.get("/usage")
def get_usage(you: You, office: Daemon) -> StageUseView:
    """What the store holds, and who takes up how much of his quota."""
    now, stage = when(office.now()), office.stage
    if stage is None:
        return StageUseView(now=now, on=False, store=None, users=[], projects=[])
    use = stage.use()
    accounts = () if you.admin else {s.account for s in office.reader.find_stagings(user=you.user, limit=1000)}
    return StageUseView(
        now=now,
        on=True,
        store=store_view(use),
        users=users_view(use, you),
        projects=projects_view(use, you, accounts),
    )


@router.get("/{job_id}")
def get_stage_of_job(job_id: str, you: You, office: Daemon) -> StageDetailView:
    """The data of one job, with its history."""
    staging = _yours(job_id, you, office)
    stage = office.stage
    past = office.reader.events(subject=stage_subject(job_id), newest=True, limit=_HISTORY)
    return StageDetailView(
        now=when(office.now()),
        on=stage is not None,
        job=job_view(staging, stage.progress().get(job_id, ()) if stage else ()),
        kept=kept_views(stage.kept(), you, job_id) if stage else [],
        # A number that came again was another job's before, perhaps another user's.
        history=[event(e) for e in reversed(past) if e.time >= staging.created],
    )


@router.post("/evict")
def post_evict(wish: EvictWish, you: Admin, office: Daemon) -> DoneView:
    """Removes input that no job needs from the store."""
    if bool(wish.name) == (wish.kind == "unneeded"):
        raise Denied(422, "Name what to evict, or choose 'unneeded' without a name.")
    return done(office, Evict(wish.kind, wish.name, you.by))


@router.post("/{job_id}/retry")
def post_retry(job_id: str, you: You, office: Daemon) -> DoneView:
    """Lets held data go on."""
    staging = _yours(job_id, you, office)
    if staging.state is not StageState.HELD:
        raise Denied(409, f"The data of job {job_id} is {staging.state.value}, not held; there is nothing to retry.")
    return done(office, RetryStage(job_id, you.by))


@router.post("/{job_id}/discard")
def post_discard(job_id: str, you: You, office: Daemon) -> DoneView:
    """Gives up the output that is still on the job's nodes."""
    staging = _yours(job_id, you, office)
    if staging.state not in _DISCARDED_FROM:
        allowed = " or ".join(s.value for s in _DISCARDED_FROM)
        raise Denied(
            409, f"The data of job {job_id} is {staging.state.value}; it can be given up while it is {allowed}."
        )
    return done(office, DiscardOutput(job_id, you.by))


def _yours(job_id: str, you: Caller, office: Office) -> Staging:
    staging = office.reader.find_staging(job_id)
    if staging is None:
        mine = (s.job_id for s in office.reader.stagings() if you.owns(s.user))
        raise Denied(404, f"Job {job_id} has no data on burstd's record.", mine)
    if not you.owns(staging.user):
        raise Denied(403, f"You are {you.user}, and job {job_id} is not yours.")
    return staging


def _cursor(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    created, _, job_id = text.partition("_")
    try:
        if 0 <= (at := float(created)) <= LAST_S:
            return at, job_id
    except ValueError:
        pass
    raise Denied(422, f"before: {text[:40]!r} was not given by a page before.")
