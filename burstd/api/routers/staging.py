"""The data of jobs, from the record and from the transfers under way. Users see, and act upon, their own jobs' data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from burstd.api.answers.base import CommandResultView
from burstd.api.answers.staging import (
    CheckpointView,
    CollectedView,
    JobStagingView,
    RetainedNodeView,
    StageInView,
    StageOutView,
    StagingDetailView,
    StagingListView,
    StagingUsageView,
    StoreView,
    TransferView,
    UsageView,
)
from burstd.api.answers.status import StageStatusView
from burstd.api.auth import Caller, base_job_id
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, RequestBody, command_answer
from burstd.api.routers.nodes import event_view, named_stages
from burstd.db import StoreReader, stage_subject
from burstd.domain.cloud.bounds import MAX_TIME_S
from burstd.domain.command import DiscardOutput, Evict, RetryStage
from burstd.domain.staging import WORKDIR_INPUT, Access, StageIn, StageState, Staging

if TYPE_CHECKING:
    from burstd.staging.controller.service import RetainedNode, StagingService, StagingUsage
    from burstd.staging.controller.tasks import MeterReading

_DISCARDED_FROM = (StageState.HELD, StageState.COLLECTING)
_HISTORY = 200
_MAX_HELD_ALARMS = 5
"""Jobs with held data that burstctl status lists."""

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
        now=backend.now(),
        on=stage is not None,
        store=_store_view(stage.usage()) if stage else None,
        jobs=[_staging_view(s, progress.get(s.job_id, ())) for s in found],
        kept=_retained_node_views(stage.retained_nodes(), caller, user=only) if stage else [],
        more=more,
    )


@router.get("/usage")
def get_usage(caller: CallerDep, backend: BackendDep) -> StagingUsageView:
    """What the store holds, and who takes up how much of his quota."""
    now, stage = backend.now(), backend.stage
    if stage is None:
        return StagingUsageView(now=now, on=False, store=None, users=[], projects=[])
    use = stage.usage()
    accounts = () if caller.admin else {s.account for s in backend.reader.find_stagings(user=caller.user, limit=1000)}
    return StagingUsageView(
        now=now,
        on=True,
        store=_store_view(use),
        users=_users_view(use, caller),
        projects=_projects_view(use, caller, accounts),
    )


@router.get("/{job_id}")
def get_stage_of_job(job_id: str, caller: CallerDep, backend: BackendDep) -> StagingDetailView:
    """The data of one job, with its history."""
    staging = _require_own_staging(job_id, caller, backend)
    stage = backend.stage
    past = backend.reader.events(subject=stage_subject(staging.job_id), newest=True, limit=_HISTORY)
    return StagingDetailView(
        now=backend.now(),
        on=stage is not None,
        job=_staging_view(staging, stage.transfer_progress().get(staging.job_id, ()) if stage else ()),
        kept=_retained_node_views(stage.retained_nodes(), caller, staging.name) if stage else [],
        # A number that came again was another job's before, perhaps another user's.
        history=named_stages(backend.reader, (event_view(e) for e in reversed(past) if e.time >= staging.created)),
    )


@router.post("/evict")
def post_evict(body: EvictRequest, caller: CallerDep, backend: BackendDep) -> CommandResultView:
    """Removes input that no job needs from the store; of users who are no administrators, their own."""
    if bool(body.name) == (body.kind == "unneeded"):
        raise ApiError(422, "Name what to evict, or choose 'unneeded' without a name.")
    if body.kind == "user" and not caller.can_see_user(body.name):
        raise ApiError(403, f"You are {caller.user} and evict your own input only.")
    return command_answer(backend, Evict(body.kind, body.name, caller.actor, "" if caller.admin else caller.user))


@router.post("/{job_id}/retry")
def post_retry(job_id: str, caller: CallerDep, backend: BackendDep) -> CommandResultView:
    """Lets held data go on."""
    staging = _require_own_staging(job_id, caller, backend)
    if staging.state is not StageState.HELD:
        raise ApiError(409, f"The data of job {job_id} is {staging.state.value}, not held; there is nothing to retry.")
    return command_answer(backend, RetryStage(staging.job_id, caller.actor))


@router.post("/{job_id}/discard")
def post_discard(job_id: str, caller: CallerDep, backend: BackendDep) -> CommandResultView:
    """Gives up the output that is still on the job's nodes."""
    staging = _require_own_staging(job_id, caller, backend)
    if staging.state not in _DISCARDED_FROM:
        allowed = " or ".join(s.value for s in _DISCARDED_FROM)
        raise ApiError(
            409, f"The data of job {job_id} is {staging.state.value}; it can be given up while it is {allowed}."
        )
    return command_answer(backend, DiscardOutput(staging.job_id, caller.actor))


def _require_own_staging(job_id: str, caller: Caller, backend: Backend) -> Staging:
    """Its own, or that of the array or het job that it is part of."""
    reader = backend.reader
    staging = reader.find_staging(job_id) or reader.find_staging_of_task(job_id)
    if staging is None and (whole := reader.find_staging(base_job_id(job_id))) is not None:
        # The last task of an array has the array's number.
        staging = None if whole.array_task and "_" in job_id else whole
    if staging is None:
        mine = (s.name for s in backend.reader.stagings() if caller.can_see_user(s.user))
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


def staging_summary(record: StoreReader, stage: StagingService | None) -> StageStatusView | None:
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


def held_staging_alarms(record: StoreReader, caller: Caller) -> list[str]:
    """What of the caller's own data needs him."""
    held_stagings = [s for s in record.stagings() if s.user == caller.user and s.needs_attention]
    return [f"the data of job {s.name} is held: {s.attention_text}" for s in held_stagings[:_MAX_HELD_ALARMS]]


def _all_inputs(staging: Staging) -> tuple[StageIn, ...]:
    """The working directory is one of them."""
    asked = staging.directives
    workdir = StageIn(staging.work_dir, WORKDIR_INPUT, Access.COPY)
    return (*asked.stage_in, *([workdir] if asked.workdir else []))


def _staging_view(staging: Staging, transfers: Sequence[MeterReading]) -> JobStagingView:
    asked = staging.directives
    return JobStagingView.from_fields(
        staging,
        job=staging.name,
        bytes_hits=max(0, staging.bytes_in - staging.bytes_sent) if staging.staged else 0,
        scratch_bytes=asked.scratch_bytes,
        inputs=[
            StageInView.from_fields(
                i,
                name=printable_path(i.name),
                source=printable_path(i.source),
                dataset=printable_path(i.dataset),
                bytes=tree.size if tree else None,
                entries=tree.entries if tree else None,
                digest=tree.digest if tree else "",
                place=printable_path(tree.node_path) if tree else "",
            )
            for i in _all_inputs(staging)
            for tree in (staging.trees.get(i.name),)
        ],
        outputs=[
            StageOutView.from_fields(
                o, pattern=printable_path(o.pattern), destination=printable_path(o.destination)
            )
            for o in asked.stage_out
        ],
        collected=[
            CollectedView.from_fields(tree, node=printable_path(node), what=printable_path(what), bytes=tree.size)
            for key, tree in sorted(staging.outputs.items())
            for node, _, what in (key.partition("/"),)
        ],
        checkpoints=[
            CheckpointView.from_fields(c, path=printable_path(c.path), bytes=c.size, bytes_sent=c.sent)
            for c in staging.checkpoints
        ],
        transfers=[
            TransferView.from_fields(
                t, name=printable_path(t.name), bytes_done=t.done, bytes_total=t.total, bytes_sent=t.sent,
                bytes_hits=t.hits, since_s=t.seconds,
            )
            for t in transfers
        ],
    )  # fmt: skip


def _retained_node_views(
    retained: Sequence[RetainedNode], caller: Caller, job_id: str = "", user: str = ""
) -> list[RetainedNodeView]:
    """Those that the caller may see, of one job, one user or all."""
    return [
        RetainedNodeView.from_fields(k, job=k.job_id)
        for k in sorted(retained, key=lambda k: (k.until, k.node))
        if caller.can_see_user(k.user) and job_id in ("", k.job_id) and user in ("", k.user)
    ]


def _store_view(use: StagingUsage) -> StoreView:
    return StoreView.from_fields(use.store, looked=use.store.measured_at)


def _users_view(use: StagingUsage, caller: Caller) -> list[UsageView]:
    """All users who take up something or have a quota of their own, for administrators; else the caller."""
    names = {*use.users, *use.quota.users} if caller.admin else {caller.user}
    return [UsageView(name=n, bytes=use.users.get(n, 0), quota=use.quota.user_limit(n)) for n in sorted(names)]


def _projects_view(use: StagingUsage, caller: Caller, accounts: Collection[str]) -> list[UsageView]:
    """All accounts, for administrators; else those named."""
    names = {*use.projects, *use.quota.projects} if caller.admin else set(accounts) - {""}
    return [UsageView(name=n, bytes=use.projects.get(n, 0), quota=use.quota.project_limit(n)) for n in sorted(names)]


def printable_path(text: str) -> str:
    """A path for JSON: bytes that are no UTF-8 as ``\\xe9``."""
    return os.fsencode(text).decode("utf-8", "backslashreplace")
