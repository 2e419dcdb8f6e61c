"""The routes of jobs' data. Users see, and act upon, the data of their own jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.nodes import event_view
from burstd.api.answers.staging import (
    StagingDetailView,
    StagingListView,
    StagingUsageView,
    projects_view,
    retained_node_views,
    staging_view,
    store_view,
    users_view,
)
from burstd.api.answers.types import CommandResultView, utc_datetime
from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import AdminDep, ApiError, BackendDep, CallerDep
from burstd.api.routers.mutations import RequestBody, execute_command
from burstd.db import stage_subject
from burstd.domain.cloud.bounds import MAX_TIME_S
from burstd.domain.command import DiscardOutput, Evict, RetryStage
from burstd.domain.staging import StageState, Staging

_DISCARDED_FROM = (StageState.HELD, StageState.COLLECTING)
_HISTORY = 200

router = APIRouter(prefix="/v1/stage")


class EvictRequest(RequestBody):
    """``burstctl stage evict``; ``name`` is empty for ``unneeded`` only."""

    kind: Literal["dataset", "tree", "user", "unneeded"]
    name: str = Field(default="", max_length=200)


@router.get("")
def get_stage(
    caller: CallerDep,
    backend: BackendDep,
    *,
    every: Annotated[bool, Query(alias="all")] = False,
    user: str = "",
    before: str = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> StagingListView:
    """The data of jobs: what is not cleared yet, oldest first; with ``all`` a page of history, newest first.

    ``before`` is ``more`` of the page before.
    """
    if user and not caller.can_see_user(user):
        raise ApiError(403, f"You are {caller.user} and see the data of your own jobs only.")
    only = user if caller.admin else caller.user
    more = ""
    if every:
        found = backend.reader.find_stagings(user=only, before=_parse_cursor(before), limit=limit)
        if len(found) == limit:
            more = f"{found[-1].created!r}_{found[-1].job_id}"
    else:
        found = tuple(s for s in backend.reader.stagings() if only in ("", s.user))
    stage = backend.stage
    progress = stage.transfer_progress() if stage else {}
    return StagingListView(
        now=utc_datetime(backend.now()),
        on=stage is not None,
        store=store_view(stage.usage()) if stage else None,
        jobs=[staging_view(s, progress.get(s.job_id, ())) for s in found],
        kept=retained_node_views(stage.retained_nodes(), caller, user=only) if stage else [],
        more=more,
    )


@router.get("/usage")
def get_usage(caller: CallerDep, backend: BackendDep) -> StagingUsageView:
    """What the store holds, and who takes up how much of his quota."""
    now, stage = utc_datetime(backend.now()), backend.stage
    if stage is None:
        return StagingUsageView(now=now, on=False, store=None, users=[], projects=[])
    use = stage.usage()
    accounts = () if caller.admin else {s.account for s in backend.reader.find_stagings(user=caller.user, limit=1000)}
    return StagingUsageView(
        now=now,
        on=True,
        store=store_view(use),
        users=users_view(use, caller),
        projects=projects_view(use, caller, accounts),
    )


@router.get("/{job_id}")
def get_stage_of_job(job_id: str, caller: CallerDep, backend: BackendDep) -> StagingDetailView:
    """The data of one job, with its history."""
    staging = _require_own_staging(job_id, caller, backend)
    stage = backend.stage
    past = backend.reader.events(subject=stage_subject(job_id), newest=True, limit=_HISTORY)
    return StagingDetailView(
        now=utc_datetime(backend.now()),
        on=stage is not None,
        job=staging_view(staging, stage.transfer_progress().get(job_id, ()) if stage else ()),
        kept=retained_node_views(stage.retained_nodes(), caller, job_id) if stage else [],
        # A number that came again was another job's before, perhaps another user's.
        history=[event_view(e) for e in reversed(past) if e.time >= staging.created],
    )


@router.post("/evict")
def post_evict(body: EvictRequest, caller: AdminDep, backend: BackendDep) -> CommandResultView:
    """Removes input that no job needs from the store."""
    if bool(body.name) == (body.kind == "unneeded"):
        raise ApiError(422, "Name what to evict, or choose 'unneeded' without a name.")
    return execute_command(backend, Evict(body.kind, body.name, caller.actor))


@router.post("/{job_id}/retry")
def post_retry(job_id: str, caller: CallerDep, backend: BackendDep) -> CommandResultView:
    """Lets held data go on."""
    staging = _require_own_staging(job_id, caller, backend)
    if staging.state is not StageState.HELD:
        raise ApiError(409, f"The data of job {job_id} is {staging.state.value}, not held; there is nothing to retry.")
    return execute_command(backend, RetryStage(job_id, caller.actor))


@router.post("/{job_id}/discard")
def post_discard(job_id: str, caller: CallerDep, backend: BackendDep) -> CommandResultView:
    """Gives up the output that is still on the job's nodes."""
    staging = _require_own_staging(job_id, caller, backend)
    if staging.state not in _DISCARDED_FROM:
        allowed = " or ".join(s.value for s in _DISCARDED_FROM)
        raise ApiError(
            409, f"The data of job {job_id} is {staging.state.value}; it can be given up while it is {allowed}."
        )
    return execute_command(backend, DiscardOutput(job_id, caller.actor))


def _require_own_staging(job_id: str, caller: Caller, backend: Backend) -> Staging:
    staging = backend.reader.find_staging(job_id)
    if staging is None:
        mine = (s.job_id for s in backend.reader.stagings() if caller.can_see_user(s.user))
        raise ApiError(404, f"Job {job_id} has no data on burstd's record.", mine)
    if not caller.can_see_user(staging.user):
        raise ApiError(403, f"You are {caller.user}, and job {job_id} is not yours.")
    return staging


def _parse_cursor(text: str) -> tuple[float, str] | None:
    if not text:
        return None
    created, _, job_id = text.partition("_")
    try:
        if 0 <= (at := float(created)) <= MAX_TIME_S:
            return at, job_id
    except ValueError:
        pass
    raise ApiError(422, f"before: {text[:40]!r} was not given by a page before.")
