"""Why a job starts or does not, what it would cost, and what would help."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

from burstd.api.answers.jobs import AnnotatedQueue, JobView, RemarkView, remark_views
from burstd.api.answers.money import money_view
from burstd.api.answers.types import AnswerView, Money, utc_datetime, utc_datetime_or_none
from burstd.api.auth import Caller
from burstd.db import RecordedRemark
from burstd.domain.slurm.job import Job
from burstd.domain.slurm.option_change import OptionChange
from burstd.domain.slurm.outlook import Outlook
from burstd.domain.staging import StagingView
from burstd.planner.explain.explain import ServingNode, explain_job
from burstd.planner.explain.job_comment import JobComments
from burstd.planner.offers.candidates import JobCost, OfferCandidate, PoolCandidates, preferred_candidate


class CostView(AnswerView):
    """What the machines for a job would cost; machines that it shares are counted whole."""

    nodes: int
    expected: Money | None
    """If it runs as long as is expected; None: nothing is."""
    worst: Money | None
    """If it runs to its time limit; None: it has none."""


class CandidateView(AnswerView):
    """One offer candidate, or a provider that could not be read.

    ``refused`` says why it is not used, empty: it may be. ``by`` is the policy that refuses it, ``note`` why it comes
    after the one that is chosen. ``chosen``: the plan takes it first for this job.
    """

    offer: str
    price_per_hour: Money | None
    refused: str
    by: str
    note: str
    chosen: bool
    cost: CostView | None


class PoolCandidatesView(AnswerView):
    """One pool that may start the job; ``lacks`` says why it cannot, empty: it can."""

    pool: str
    lacks: str
    slots: int
    free: int
    candidates: list[CandidateView]


class ServingView(AnswerView):
    """A claim made for the job, or (``claim`` empty) a node of the site on which the plan gave it room."""

    slot: str
    claim: str
    state: str
    since: datetime | None
    reason: str
    reserved: Money | None
    """The most that the machine may cost, as it was reserved before its launch; None: no budget pays for it."""


class OutlookView(AnswerView):
    """What is expected of a waiting job."""

    premises_at: datetime | None
    """When nodes of the site would start it; None: never."""
    premises_basis: str
    """Where that comes from: ``slurm``, ``queue``, ``history`` or ``none``."""
    cloud_s: float
    """From now until it could start on a new machine: boot and upload go side by side."""
    boot_s: float
    staging_s: float
    run_s: float
    run_basis: str
    """``history of 12 jobs of ada``, or ``time limit``."""


class JobDataView(AnswerView):
    """How the data of the job stands. Sizes in bytes."""

    state: str
    ready_at: datetime | None
    """When its input is expected in the store; None: it is there, or nobody knows."""
    size: int
    left: int
    error: str


class OptionChangeView(AnswerView):
    """A change of one option with which the job would start."""

    before: str
    after: str
    command: str
    """What changes the job that waits; empty: it must be submitted anew."""
    start_s: float
    where: list[str]
    offer: str
    """Empty: no new machine is needed."""
    price_per_hour: Money | None


class ExplainView(AnswerView):
    """``burstctl explain``. ``verdict`` is ``gone`` for a job that has left the queue."""

    now: datetime
    id: str
    job: JobView | None
    verdict: str
    summary: str
    """Why it does or does not start, in a sentence."""
    line: str
    """What its comment says, or would say if it had none of its user's own."""
    slurm: str
    """What Slurm says, in words."""
    asks: str
    remedies: list[str]
    """What would help; empty: nothing needs to be done."""
    remarks: list[RemarkView]
    ways: list[PoolCandidatesView]
    serving: list[ServingView]
    outlook: OutlookView | None
    """None: nothing is expected of it, or it has started."""
    data: JobDataView | None
    """None: it has none."""
    cost: CostView | None
    """By the offer that is chosen, or would be."""
    changes: list[OptionChangeView]
    """The smallest first; empty: none is needed, or none was found."""


def explain_view(
    queue: AnnotatedQueue,
    job: Job,
    requested_id: str,
    noted: Iterable[RecordedRemark],
    caller: Caller,
    now: float,
    changes: Sequence[OptionChange],
) -> ExplainView:
    """Why a job does or does not start. ``asked`` is the id that was asked for: the job's, or that of one task."""
    found = explain_job(queue.snapshot, queue.plan, requested_id)
    if found.job != job:
        found = explain_job(queue.snapshot, queue.plan, job.id)
    users = {claim.id: claim.users for claim in queue.snapshot.claims}
    chosen = preferred_candidate(found.pool_candidates) if not found.serving else None
    return ExplainView(
        now=utc_datetime(now),
        id=requested_id,
        job=queue.to_view(job),
        verdict=found.verdict,
        summary=found.summary,
        line=line.text if (line := JobComments(queue.snapshot, queue.plan).comment_for(job, "")) is not None else "",
        slurm=found.slurm,
        asks=found.request_text,
        remedies=list(found.remedies),
        remarks=remark_views(found.remarks, noted),
        ways=[_pool_candidates(way) for way in found.pool_candidates],
        serving=[
            ServingView(
                slot=s.slot,
                claim=s.claim_id,
                state=s.state,
                since=utc_datetime_or_none(s.since),
                reason=s.reason if caller.can_see_claim_for(users.get(s.claim_id, ())) else "",
                reserved=_reserved(s) if caller.can_see_claim_for(users.get(s.claim_id, ())) else None,
            )
            for s in found.serving
        ],
        outlook=_outlook(found.outlook),
        data=_data(found.data),
        cost=_cost(chosen) if chosen is not None else None,
        changes=[_option_change(change) for change in changes],
    )


def past_job_view(job_id: str, summary: str, remark_list: list[RemarkView], now: float) -> ExplainView:
    """The same for a job that has left the queue."""
    return ExplainView(
        now=utc_datetime(now),
        id=job_id,
        job=None,
        verdict="gone",
        summary=summary,
        line="",
        slurm="",
        asks="",
        remedies=[],
        remarks=remark_list,
        ways=[],
        serving=[],
        outlook=None,
        data=None,
        cost=None,
        changes=[],
    )


def _pool_candidates(candidates: PoolCandidates) -> PoolCandidatesView:
    return PoolCandidatesView(
        pool=candidates.pool,
        lacks=candidates.lacks,
        slots=candidates.slots,
        free=candidates.free,
        candidates=[
            CandidateView(
                offer=c.subject,
                price_per_hour=money_view(c.offer.price, c.offer.currency) if c.offer else None,
                refused=c.rejected_because,
                by=c.rejected_by,
                note=c.note,
                chosen=c.chosen,
                cost=_cost(c),
            )
            for c in candidates.candidates
        ],
    )


def _reserved(serving: ServingNode) -> Money | None:
    return money_view(serving.reserved, serving.currency) if serving.reserved else None


def _cost(candidate: OfferCandidate) -> CostView | None:
    cost: JobCost | None = candidate.cost
    if cost is None or candidate.offer is None:
        return None
    currency = candidate.offer.currency
    return CostView(
        nodes=cost.nodes,
        expected=money_view(cost.expected, currency) if cost.expected is not None else None,
        worst=money_view(cost.worst, currency) if cost.worst is not None else None,
    )


def _outlook(outlook: Outlook | None) -> OutlookView | None:
    if outlook is None:
        return None
    return OutlookView(
        premises_at=utc_datetime(outlook.local_start) if math.isfinite(outlook.local_start) else None,
        premises_basis=outlook.local_basis,
        cloud_s=round(outlook.ready_s, 3),
        boot_s=round(outlook.boot_s, 3),
        staging_s=round(outlook.staging_s, 3),
        run_s=round(outlook.run_s, 3),
        run_basis=outlook.run_basis,
    )


def _data(data: StagingView | None) -> JobDataView | None:
    if data is None:
        return None
    ready = utc_datetime_or_none(data.ready_at)
    return JobDataView(state=data.state.value, ready_at=ready, size=data.size, left=data.bytes_left, error=data.error)


def _option_change(change: OptionChange) -> OptionChangeView:
    price = change.price
    return OptionChangeView(
        before=change.before,
        after=change.after,
        command=change.command,
        start_s=round(change.start_s, 3),
        where=list(change.where),
        offer=change.offer,
        price_per_hour=money_view(price, change.currency) if price is not None else None,
    )
