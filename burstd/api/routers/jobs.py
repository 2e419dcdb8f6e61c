"""Jobs of burst partitions, what was decided about them, and why they start or do not: ``burstctl job, explain``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from burstd.api.answers.base import Money, money_view, sum_by_currency, utc_time
from burstd.api.answers.jobs import (
    CandidateView,
    CostView,
    ExplainView,
    InterruptionView,
    JobDataView,
    JobDetailView,
    JobEndView,
    JobsView,
    JobView,
    OptionChangeView,
    OutlookView,
    PoolCandidatesView,
    RemarkView,
    ServingView,
)
from burstd.api.answers.text import abbreviated_list, job_end_text, rough_duration_text
from burstd.api.auth import Caller, base_job_id
from burstd.api.backend import SLICE, Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, ListLimit, ListOffset, require_latest_loop
from burstd.api.routers.nodes import NodeViews
from burstd.api.routers.status import last_remarks
from burstd.db import RecordedRemark
from burstd.domain.claim import Claim
from burstd.domain.clock import utc_clock_text
from burstd.domain.command import WhatIf
from burstd.domain.errors import NoAnswer
from burstd.domain.idle_gpus import IdleAct
from burstd.domain.plan import Plan
from burstd.domain.plugins.policy import Remark
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.snapshot import SlurmView, Snapshot, Unavailable
from burstd.domain.staging import StagingView
from burstd.planner.explain.explain import ServingNode, explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.explain.job_lookup import find_ended_job, find_job, request_text
from burstd.planner.idle_gpus import NAME as IDLE_GPUS
from burstd.planner.lifecycle.launch_failures import LAUNCH
from burstd.planner.lifecycle.spot_notices import INTERRUPTED
from burstd.planner.offers.candidates import OfferCandidate, preferred_candidate
from burstd.reconciler.machines.idle_gpus import EVENTS, OVER, REFUSED, WARNED
from burstd.reconciler.machines.interruptions import INTERRUPTED_AT_LAST, NOT_REQUEUED, REQUEUED
from burstd.reconciler.pollers.launch_failures import FAILED as LAUNCH_FAILED
from burstd.runtime.precedence import DecisionPrecedence

WHAT_IF_TIMEOUT_S = 10.0
"""How long explain waits for the deciding thread to say what would start the job."""

_IDLE_ACTS = {
    EVENTS[IdleAct.SHORTEN]: "shortened the job's time limit",
    EVENTS[IdleAct.REQUEUE]: "requeued the job",
    EVENTS[IdleAct.CANCEL]: "cancelled the job",
}
"""By the job's event."""
_JOB_ORDERS: Mapping[str, Callable[[Job], Any]] = {
    "priority": lambda job: (job.state is not JobState.PENDING, -job.priority, job.submitted),
    "waiting": lambda job: (job.state is not JobState.PENDING, job.submitted),
    "user": lambda job: (job.user, -job.priority, job.submitted),
}
router = APIRouter(prefix="/v1")


class AnnotatedQueue:
    """The queue of one snapshot with what was said about each job; shared by all callers."""

    def __init__(self, backend: Backend, loop: tuple[Snapshot, Plan]) -> None:
        precedence, (snapshot, plan) = backend.precedence(), loop
        self.snapshot = snapshot
        self.plan = plan
        self.comments = JobComments(snapshot, plan)
        precedence.wait()
        self._last_remarks = last_remarks(precedence.slices(plan.remarks, SLICE))
        self._jobs = snapshot.slurm.jobs if isinstance(snapshot.slurm, SlurmView) else ()
        self._burst_partitions = {partition for pool in snapshot.pools.values() for partition in pool.partitions}
        self._claims: dict[str, list[Claim]] = {}
        for claim in snapshot.claims:
            for job_id in claim.jobs:
                self._claims.setdefault(job_id, []).append(claim)

    def all_jobs(self) -> Sequence[Job]:
        """The whole queue, those of other partitions included."""
        return self._jobs

    def burst_jobs(self) -> list[Job]:
        """Jobs of the partitions that pools serve, in the queue's order."""
        return [job for job in self._jobs if not self._burst_partitions.isdisjoint(job.partitions)]

    def visible_jobs(self, caller: Caller) -> list[Job]:
        """Those of them that the caller may see: everyone's for administrators, else his own."""
        return [job for job in self.burst_jobs() if caller.can_see_user(job.user)]

    def find_job(self, job_id: str) -> Job | None:
        """The job of this id, or of an id that its row stands for (see row_of)."""
        return find_job(self._jobs, job_id)

    def find_ended_job(self, job_id: str) -> Job | None:
        """The last run of a job that is over, as long as slurmctld knows it."""
        slurm = self.snapshot.slurm
        return find_ended_job(slurm.ended, job_id) if isinstance(slurm, SlurmView) else None

    def last_remark(self, job: Job) -> Remark | None:
        """burstd's last word about a job."""
        return self._last_remarks.get(job.id)

    def remarks_on(self, job: Job) -> list[Remark]:
        """Everything that the last plan says about a job, in its order."""
        return [r for r in self.plan.remarks if r.subject == f"job:{job.id}"]

    def search_text(self, job: Job) -> str:
        """What a search looks into."""
        remark = self.last_remark(job)
        said = f"{remark.verdict} {remark.reason}" if remark is not None else job.reason
        return f"{job.id} {job.name} {job.user} {job.state.value} {said}"

    def foresee(self, jobs: Iterable[Job], precedence: DecisionPrecedence) -> None:
        """Works out what is expected of these jobs, and so of those before them in the queue."""
        left = {job.id for job in jobs} & self.snapshot.outlook.keys()
        if left:
            for job_id in precedence.slices(self.snapshot.outlook, SLICE):
                left.discard(job_id)
                if not left:
                    break

    def to_view(self, job: Job) -> JobView:
        """The job in an answer."""
        remark = self.last_remark(job)
        pending = job.state is JobState.PENDING
        outlook = self.snapshot.outlook.get(job.id) if pending else None
        start = outlook.local_start if outlook is not None else math.inf
        names = job.node_list if not pending else self.plan.target.placements.get(job.id, ())
        return JobView.from_fields(
            job,
            slurm_reason=job.reason,
            waiting_s=round(max(0.0, self.snapshot.now - job.submitted), 3) if pending else None,
            verdict=remark.verdict if remark else "",
            reason=remark.reason if remark else "",
            nodes=names,
            start=start if math.isfinite(start) else None,
            claims=list(dict.fromkeys(c.id for key in _job_ids(job) for c in self._claims.get(key, ()))),
        )


def annotated_queue(backend: Backend) -> AnnotatedQueue:
    """That of the last loop; refused before the first."""
    return backend.once_per_loop(require_latest_loop(backend), AnnotatedQueue)


@router.get("/jobs")
def get_jobs(
    caller: CallerDep,
    backend: BackendDep,
    *,
    user: str = "",
    search: Annotated[str, Query(max_length=1000)] = "",
    sort: Literal["", "priority", "waiting", "user"] = "",
    limit: ListLimit = 0,
    offset: ListOffset = 0,
) -> JobsView:
    """Jobs of burst partitions: everyone's for administrators, else the caller's own.

    ``search``: a part of the id, the name, the user, the state or the reason.
    """
    queue = annotated_queue(backend)
    if user and not caller.can_see_user(user):
        raise ApiError(403, f"You are {caller.user} and see your own jobs only.")
    require_slurm(queue.snapshot)
    found = [
        job
        for job in queue.visible_jobs(caller)
        if user in ("", job.user) and (not search or search in queue.search_text(job))
    ]
    if sort:
        found.sort(key=_JOB_ORDERS[sort])
    rows = found[offset : offset + limit if limit else None]
    queue.foresee(rows, backend.precedence())
    return JobsView(now=backend.now(), jobs=[queue.to_view(job) for job in rows], total=len(found))


@router.get("/jobs/{job_id}")
def get_job(job_id: str, caller: CallerDep, backend: BackendDep) -> JobDetailView:
    """One job, with what was decided about it and the claims made for it."""
    queue, job, claims = require_visible_job(job_id, caller, backend)
    now, reader, user = backend.now(), backend.reader, "" if caller.admin else caller.user
    views = NodeViews(queue.snapshot, queue.plan, caller, now)
    remarks = reader.remarks(f"job:{job.id if job is not None else job_id}")
    said = _past_remark_views(queue, remarks) if job is None else _remark_views(queue.remarks_on(job), remarks)
    if job is None and (failure := launch_failure(job_id, backend)) is not None:
        said.append(failure)
    return JobDetailView(
        now=now,
        id=job.id if job is not None else job_id,
        job=queue.to_view(job) if job is not None else None,
        asks=request_text(job) if job is not None else "",
        remarks=_with_idle_act(said, _idle_act(job_id, job, remarks, backend)),
        nodes=[
            views.claim_view(claim, in_slurm=claim.state != "gone")
            for claim in (*claims, *_other_machines(job_id, claims, caller, backend))
        ],
        cost=_sums(reader.job_cost(job_id, user)),
        site_cost=_sums(reader.job_site_cost(job_id, user)),
        end=_end(queue.find_ended_job(job_id)) if job is None else None,
        no_use=_no_use(queue, job, backend),
        measured_parts=[part for part, user in reader.job_use_parts(job_id) if caller.can_see_user(user)],
    )


def _sums(costs: Mapping[str, Decimal]) -> list[Money]:
    return sum_by_currency((cost, currency) for currency, cost in costs.items())


def _end(ended: Job | None) -> JobEndView | None:
    if ended is None:
        return None
    return JobEndView.from_fields(ended, state=ended.state.value, time=ended.end or None, nodes=ended.node_list)


def _no_use(queue: AnnotatedQueue, job: Job | None, backend: Backend) -> str:
    """Why there are no figures of a job that runs on machines of a cloud."""
    if job is None or job.state is not JobState.RUNNING or job.id in queue.snapshot.job_use:
        return ""
    nodes = sorted({claim.slot for claim in queue.snapshot.claims}.intersection(job.node_list))
    collect_s = backend.collect_s()
    if not nodes:
        return ""
    if collect_s is None:
        return "nodes do not measure ([sampler] enabled)"
    left_s = job.start + collect_s - queue.snapshot.now
    if left_s > 0:
        return f"no figures so far, the first come {rough_duration_text(left_s)}"
    return f"{abbreviated_list(nodes)} sent no figures so far: burstd's log says why (python3 in the image?)"


def _other_machines(job_id: str, made: Sequence[Claim], caller: Caller, backend: Backend) -> list[Claim]:
    """Machines that the job ran on, and that were not made for it, newest first."""
    runs = backend.reader.runs_of_jobs({job_id})
    ids = {run.claim_id for run in runs if caller.can_see_user(run.payer.user)} - {claim.id for claim in made}
    return sorted(backend.reader.claims_by_id(ids), key=lambda claim: -claim.created)


@router.get("/jobs/{job_id}/explanation")
def get_explanation(job_id: str, caller: CallerDep, backend: BackendDep, what_if: bool = True) -> ExplainView:
    """Why a job does or does not start; ``what_if``: and what would start it, not to be asked for again and again."""
    return explain_visible_job(job_id, caller, backend, what_if=what_if)


def explain_visible_job(job_id: str, caller: Caller, backend: Backend, *, what_if: bool) -> ExplainView:
    """Why a job does or does not start. ``what_if``: with what would start it, which the deciding thread works out."""
    queue, job, claims = require_visible_job(job_id, caller, backend)
    noted = backend.reader.remarks(f"job:{job.id if job is not None else job_id}")
    act = _idle_act(job_id, job, noted, backend)
    done = f"; {act.reason}" if act is not None and (job is None or job.state is not JobState.RUNNING) else ""
    if job is not None:
        changes = _what_if_changes(queue, job, caller, backend) if what_if else ()
        view = _explain_view(queue, job, job_id, noted, caller, backend.now(), changes)
        return view.model_copy(
            update={
                "summary": view.summary + done,
                "remarks": _with_idle_act(view.remarks, act),
                "interruption": _last_interruption(job, backend),
            }
        )
    failure = launch_failure(job_id, backend)
    failed = f"; {failure.reason}" if failure is not None else ""
    nodes = f"; {len(claims)} node(s) were started for it: {', '.join(c.slot for c in claims)}" if claims else ""
    end = _end(queue.find_ended_job(job_id))
    left = f"it has ended, {job_end_text(end, utc_time(backend.now()))}" if end is not None else "it has left the queue"
    return ExplainView(
        now=backend.now(),
        id=job_id,
        verdict="gone",
        summary=f"{left}{failed}{done}{nodes}",
        end=end,
        remarks=[*_with_idle_act(_past_remark_views(queue, noted), act), *([failure] if failure is not None else [])],
    )


def _last_interruption(job: Job, backend: Backend) -> InterruptionView | None:
    idle = EVENTS[IdleAct.REQUEUE]
    states = (INTERRUPTED, REQUEUED, NOT_REQUEUED, INTERRUPTED_AT_LAST, idle)
    latest = backend.reader.events(subject=f"job:{job.id}", newest=True, limit=100)
    found = next((event for event in latest if event.new in states), None)
    if found is None:
        return None
    return InterruptionView(time=found.time, state=REQUEUED if found.new == idle else found.new, reason=found.reason)


def _idle_act(job_id: str, job: Job | None, noted: Iterable[RecordedRemark], backend: Backend) -> RemarkView | None:
    """What burstd did to the last run for GPUs that it left idle; None: nothing, or the job has begun anew since."""
    latest = backend.reader.events(subject=f"job:{job.id if job is not None else job_id}", newest=True, limit=100)
    event = next((event for event in latest if event.new in (WARNED, OVER, REFUSED, *_IDLE_ACTS)), None)
    if event is None or event.new not in _IDLE_ACTS:
        return None
    if job is not None:
        same = job.restarts == event.data.get("run") and 0 < job.start <= event.time
    else:
        # Slurm gives ids again: of another job that has it something else was said last.
        same = any(n.remark.by == IDLE_GPUS for n in noted)
    text = f"burstd {_IDLE_ACTS[event.new]} at {utc_clock_text(event.time, backend.now())}: {event.reason}"
    return RemarkView(by=IDLE_GPUS, verdict="done", reason=text, since=event.time) if same else None


def launch_failure(job_id: str, backend: Backend) -> RemarkView | None:
    """Why the last run of a job that has left the queue did not start; None: it did, or nobody knows."""
    # Slurm gives ids again: of another job, and of a run that started, something was said later.
    latest = backend.reader.events(subject=f"job:{job_id}", newest=True, limit=1)
    if not latest or latest[0].new != LAUNCH_FAILED:
        return None
    return RemarkView(by=LAUNCH, verdict="failed", reason=latest[0].reason, since=latest[0].time)


def _with_idle_act(remarks: list[RemarkView], act: RemarkView | None) -> list[RemarkView]:
    """``act`` in the place of the warning."""
    return remarks if act is None else [*(r for r in remarks if r.by != IDLE_GPUS), act]


def _what_if_changes(queue: AnnotatedQueue, job: Job, caller: Caller, backend: Backend) -> Sequence[OptionChange]:
    """What would start a job that gets no node; nothing where the deciding thread has no time to say."""
    remark = queue.last_remark(job)
    if job.state is not JobState.PENDING or (remark is not None and remark.verdict in ("boot", "covered")):
        return ()
    try:
        return backend.command(WhatIf(job.id, caller.actor), WHAT_IF_TIMEOUT_S).option_changes
    except NoAnswer:
        return ()


def require_visible_job(
    job_id: str, caller: Caller, backend: Backend
) -> tuple[AnnotatedQueue, Job | None, Sequence[Claim]]:
    """A job in the queue, or None with the claims that were made for one that has left it."""
    queue = annotated_queue(backend)
    job = queue.find_job(job_id)
    claims = backend.reader.find_claims(job=job_id)
    ended = queue.find_ended_job(job_id) if job is None else None
    known = job is not None or ended is not None or bool(claims) or bool(backend.reader.events(job=job_id, limit=1))
    reader = backend.reader
    if not known and reader.job_use_owner(job_id) is None and reader.last_run(job_id) is None:
        require_slurm(queue.snapshot)
        raise ApiError(404, f"Job {job_id} is neither in the queue nor on burstd's record.")
    if job is not None:
        queue.foresee([job], backend.precedence())
    # Of a task that has ended the others of its array say whose it was.
    row = job or ended or queue.find_job(base_job_id(job_id))
    mine = caller.can_see_user(row.user) if row is not None else _owned_past_job(job_id, caller, backend, claims)
    if not mine:
        raise ApiError(403, f"You are {caller.user}, and job {base_job_id(job_id)} is not known to be yours.")
    return queue, job, claims


def _owned_past_job(job_id: str, caller: Caller, backend: Backend, claims: Sequence[Claim]) -> bool:
    """Whether a job that has left the queue was the caller's, as far as the record knows."""
    reader = backend.reader
    if caller.admin or any(caller.can_see_claim_for(c.users) for c in claims):
        return True
    if reader.job_use_owner(job_id) == caller.user or (owner := reader.job_owner(job_id)) == caller.user:
        return True
    # Slurm gives ids again: where the log names somebody, what is said of the job may be of a later one.
    run = reader.last_run(job_id)
    return not owner and run is not None and run.user == caller.user


def require_slurm(snapshot: Snapshot) -> None:
    """An empty answer about jobs must not stand for a Slurm that does not answer."""
    if isinstance(snapshot.slurm, Unavailable):
        raise ApiError(503, f"Slurm cannot be read: {snapshot.slurm.error}")


def _remark_views(plan_remarks: Iterable[Remark], noted: Iterable[RecordedRemark]) -> list[RemarkView]:
    """Remarks of the last plan, each with since when it holds, where the record knows."""
    since: Mapping[tuple[str, str], float] = {(n.remark.by, n.remark.verdict): n.since for n in noted}
    return [RemarkView.from_fields(r, since=since.get((r.by, r.verdict))) for r in plan_remarks]


def _past_remark_views(queue: AnnotatedQueue, noted: Iterable[RecordedRemark]) -> list[RemarkView]:
    """What was said last about a job that has left the queue; that a node is kept for it only while that is so."""
    return [
        RemarkView.from_fields(n.remark, since=n.since)
        for n in noted
        if n.remark.verdict != "keep" or n.remark in queue.plan.remarks
    ]


def _job_ids(job: Job) -> Iterable[str]:
    return dict.fromkeys(filter(None, (job.id, job.array_job_id, job.het_job_id)))


def _explain_view(
    queue: AnnotatedQueue,
    job: Job,
    requested_id: str,
    noted: Iterable[RecordedRemark],
    caller: Caller,
    now: float,
    changes: Sequence[OptionChange],
) -> ExplainView:
    """Why a job does or does not start. ``requested_id``: the job's id, or that of one task."""
    found = explain_job(queue.snapshot, queue.plan, requested_id)
    if found.job != job:
        found = explain_job(queue.snapshot, queue.plan, job.id)
    users = {claim.id: claim.users for claim in queue.snapshot.claims}
    chosen = preferred_candidate(found.pool_candidates) if not found.serving else None
    return ExplainView.from_fields(
        found,
        now=now,
        id=requested_id,
        job=queue.to_view(job),
        line=line.text if (line := queue.comments.comment_for(job, "")) is not None else "",
        asks=found.request_text,
        remarks=_remark_views(found.remarks, noted),
        ways=[
            PoolCandidatesView.from_fields(pool, candidates=[_candidate(c, pool.shards) for c in pool.candidates])
            for pool in found.pool_candidates
        ],
        serving=[_serving(s, details=caller.can_see_claim_for(users.get(s.claim_id, ()))) for s in found.serving],
        outlook=_outlook(found.outlook, found.kept_by),
        data=_data(found.data),
        cost=_cost(chosen) if chosen is not None else None,
        changes=[option_change_view(change) for change in changes],
    )


def option_change_view(change: OptionChange) -> OptionChangeView:
    """A change that would start a job, in an answer."""
    price = _optional_money(change.price, change.currency)
    return OptionChangeView.from_fields(change, start_s=round(change.start_s, 3), price_per_hour=price)


def _serving(node: ServingNode, *, details: bool) -> ServingView:
    return ServingView.from_fields(
        node,
        claim=node.claim_id,
        reason=node.reason if details else "",
        reserved=money_view(node.reserved, node.currency) if node.reserved and details else None,
    )


def _candidate(candidate: OfferCandidate, shards: int) -> CandidateView:
    offer = candidate.offer
    return CandidateView.from_fields(
        candidate,
        offer=candidate.subject,
        price_per_hour=money_view(offer.price, offer.currency) if offer else None,
        price_per_shard=money_view(offer.price / shards, offer.currency) if offer and shards else None,
        refused=candidate.rejected_because,
        by=candidate.rejected_by,
        cost=_cost(candidate),
    )


def _cost(candidate: OfferCandidate) -> CostView | None:
    cost = candidate.cost
    if cost is None or candidate.offer is None:
        return None
    currency = candidate.offer.currency
    return CostView(
        nodes=cost.nodes,
        expected=_optional_money(cost.expected, currency),
        worst=_optional_money(cost.worst, currency),
        of_shards=cost.of_shards,
    )


def _optional_money(amount: Decimal | None, currency: str) -> Money | None:
    return None if amount is None else money_view(amount, currency)


def _outlook(outlook: Outlook | None, kept_by: str) -> OutlookView | None:
    if outlook is None:
        return None
    return OutlookView(
        premises_at=outlook.local_start if math.isfinite(outlook.local_start) else None,
        premises_basis=outlook.local_basis,
        cloud_s=None if kept_by else round(outlook.ready_s, 3),
        kept_by=kept_by,
        boot_s=round(outlook.boot_s, 3),
        staging_s=round(outlook.staging_s, 3),
        run_s=round(outlook.run_s, 3),
        run_basis=outlook.run_basis,
    )


def _data(data: StagingView | None) -> JobDataView | None:
    return None if data is None else JobDataView.from_fields(data, left=data.bytes_left)
