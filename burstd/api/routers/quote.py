"""What jobs would meet if they were submitted now: ``burstctl quote``. Values in, an answer out; nothing is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from burstd.api.answers.base import money_view
from burstd.api.answers.quote import QuotedWayView, QuotesView, QuoteView, TimeRangeView
from burstd.api.dependencies import BackendDep, CallerDep, RequestBody, ShortText, require_latest_loop
from burstd.api.routers.jobs import option_change_view, require_slurm
from burstd.api.routers.status import budget_view, visible_accounts
from burstd.domain.command import QuoteJobs
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.quote import Quote, QuotedWay, TimeRange, UsablePartition
from burstd.domain.slurm.shape import Gres

MAX_COMPONENTS = 32
MAX_TIME_LIMIT_S = 100 * 366 * 86400.0
QUOTE_TIMEOUT_S = 10.0
_BUDGET = "budget"
_UNSEEN_BUDGET = "a budget does not allow it; that of its account is not looked at"
_Count = Annotated[int, Field(ge=0, le=10**15)]
_Names = Annotated[tuple[ShortText, ...], Field(max_length=10_000)]
router = APIRouter(prefix="/v1")


class GresRequest(RequestBody):
    """``gpu:v100:2``."""

    name: ShortText
    type: ShortText = ""
    count: _Count


_Gres = Annotated[tuple[GresRequest, ...], Field(max_length=100)]


class QuoteJobRequest(RequestBody):
    """A job, or a component of a het job; its fields are Job's."""

    id: ShortText = ""
    """Of one that is in the queue already."""
    partitions: Annotated[tuple[ShortText, ...], Field(min_length=1, max_length=100)]
    name: ShortText = ""
    account: ShortText = ""
    qos: ShortText = ""
    tasks: Annotated[int, Field(ge=1, le=10**9)] = 1
    nodes: Annotated[int, Field(ge=1, le=10**6)] = 1
    nodes_max: _Count = 0
    cpus: Annotated[int, Field(ge=1, le=10**9)] = 1
    cpus_per_node: _Count = 0
    memory_mib: _Count = 0
    memory_per_cpu: bool = False
    memory_whole: bool = False
    gres_per_node: _Gres = ()
    gres_per_job: _Gres = ()
    constraint: ShortText = ""
    exclusive: bool = False
    exclusive_user: bool = False
    time_limit_s: Annotated[float, Field(ge=0, le=MAX_TIME_LIMIT_S, allow_inf_nan=False)] = 0.0
    node_list: _Names = ()
    excluded_nodes: _Names = ()
    comment: ShortText = ""
    """Only words that speak to burstd."""
    requeue: bool = True

    def job(self, user: str) -> Job:
        """As a row of the queue."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        for name in ("gres_per_node", "gres_per_job"):
            values[name] = tuple(Gres(gres.name, gres.type, gres.count) for gres in values[name])
        return Job(user=user, state=JobState.PENDING, submitted=0.0, **values)


class UsablePartitionRequest(RequestBody):
    """UsablePartition."""

    name: ShortText
    time_limit_s: Annotated[float, Field(ge=0, le=MAX_TIME_LIMIT_S, allow_inf_nan=False)] | None = None
    memory_mib: _Count | None = None
    memory_per_cpu: bool | None = None
    memory_whole: bool | None = None
    exclusive: bool | None = None
    exclusive_user: bool | None = None

    def partition(self) -> UsablePartition:
        """As a value of the domain."""
        return UsablePartition(**{name: getattr(self, name) for name in type(self).model_fields})


class QuoteRequest(RequestBody):
    """The components of one job, and the partitions that its user may name."""

    jobs: Annotated[tuple[QuoteJobRequest, ...], Field(min_length=1, max_length=MAX_COMPONENTS)]
    usable_partitions: Annotated[tuple[UsablePartitionRequest, ...], Field(max_length=1000)] = ()


@router.post("/quote")
def post_quote(body: QuoteRequest, caller: CallerDep, backend: BackendDep) -> QuotesView:
    """What a job of the caller's would meet: each way to run it, with start, end, cost, and what selects it."""
    require_slurm(require_latest_loop(backend)[0])
    jobs = tuple(job.job(caller.user) for job in body.jobs)
    # A caller may name any account. What is told of it would tell its figures, were it only whether there is a way.
    known = {job.account for job in jobs} if caller.admin else visible_accounts(caller, backend)
    decided = tuple(job if job.account in known else replace(job, account="") for job in jobs)
    usable = tuple(partition.partition() for partition in body.usable_partitions)
    found = backend.command(QuoteJobs(decided, usable, caller.actor), QUOTE_TIMEOUT_S).quotes
    return QuotesView(
        now=found[0].now,
        idle=backend.reader.idle_mode,
        quotes=[
            _quote(one, asked, unseen="" if asked.account in known else asked.account)
            for one, asked in zip(found, jobs, strict=True)
        ],
    )


def _quote(quote: Quote, asked: Job, *, unseen: str) -> QuoteView:
    hidden = bool(unseen)
    return QuoteView.from_fields(
        quote,
        tasks=asked.tasks,
        unseen_account=unseen,
        summary=_UNSEEN_BUDGET if hidden and quote.by == _BUDGET else quote.summary,
        ways=[_way(way, hidden=hidden) for way in quote.ways],
        changes=[option_change_view(change) for change in quote.changes],
        budgets=[budget_view(line) for line in quote.budgets],
    )


def _way(way: QuotedWay, *, hidden: bool) -> QuotedWayView:
    offer = way.offer
    money = {
        name: None if amount is None else money_view(amount, way.currency)
        for name, amount in (("expected", way.expected), ("worst", way.worst))
    }
    return QuotedWayView.from_fields(
        way,
        line=f"#SBATCH {way.options}" if way.options else "",
        offer=offer.id if offer else "",
        market=offer.market if offer else "",
        price_per_hour=money_view(offer.price, offer.currency) if offer else None,
        start=_range(way.start),
        end=_range(way.end),
        reason=_UNSEEN_BUDGET if hidden and way.by == _BUDGET else way.reason,
        **money,
    )


def _range(times: TimeRange | None) -> TimeRangeView | None:
    return None if times is None else TimeRangeView.from_fields(times)
