"""Jobs on the site's own nodes beside clouds: ``burstctl compare``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Annotated

from fastapi import APIRouter, Query

from burstd.api.answers.base import sum_by_currency
from burstd.api.answers.compare import (
    BasisView,
    CompareView,
    CostFigureView,
    HereView,
    SiteGroupUseView,
    ThereView,
    TimeFigureView,
)
from burstd.api.auth import Caller
from burstd.api.backend import SLICE, Backend
from burstd.api.dependencies import ApiError, BackendDep, CallerDep, Timestamp, require_latest_loop
from burstd.api.routers.jobs import require_slurm
from burstd.api.routers.status import bill_window
from burstd.db import RunFilter
from burstd.domain.billing.compare import Basis, Comparison, Place, PlacedRun, Side, TimeFigure, compare
from burstd.domain.billing.costs import MICRO, month_of, month_start, next_month
from burstd.domain.billing.site_cost import SiteCosts
from burstd.domain.billing.site_prices import break_even, site_prices
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot

_DIGITS = Context(prec=6)
_PRICED = {Place.HERE: "with a price of [site.cost]", Place.THERE: "with a charge"}
_NO_USE = "only administrators are told how much nodes of the site were used"
_Name = Annotated[str, Query(max_length=200)]

router = APIRouter(prefix="/v1")


@router.get("/compare")
def get_comparison(
    caller: CallerDep,
    backend: BackendDep,
    job: _Name = "",
    user: _Name = "",
    account: _Name = "",
    since: Timestamp | None = None,
    until: Timestamp | None = None,
) -> CompareView:
    """Times and costs of jobs on the site's own nodes beside those on clouds, measured or estimated.

    ``job``: that one, in the month in which it ended. Else all that ended in a time, as in ``/v1/bill``, of a user or
    an account. Who is no administrator sees his own jobs; only his like jobs tell, and nothing is read of others.
    """
    if user and not caller.can_see_user(user):
        raise ApiError(403, f"You are {caller.user}, and see your own jobs only.")
    user = user if caller.admin else caller.user
    snapshot, now = require_latest_loop(backend)[0], backend.now()
    require_slurm(snapshot)
    run = backend.reader.last_run(job, user) if job else None
    if job:
        if run is None:
            mine = "" if caller.admin else " as yours"
            task = f" Of an array name a task: {job}_1." if job.isdecimal() else ""
            raise ApiError(404, f"No run of job {job} that is over is on record{mine}.{task}")
        month = month_of(run.ended)
        since, until, user, account = month_start(month), month_start(next_month(month)), run.user, ""
    begin, end = bill_window(now, since, until)
    told_since = month_start(month_of(begin - 1))
    backend.precedence().wait()
    nodes = _site_nodes(snapshot, backend.site_costs())
    groups = _group_uses(backend, nodes, begin, end) if caller.admin else []
    found = _compared(backend, told_since, RunFilter(begin, end, job, user, account), run, caller)
    utilisation = {group.group: group.utilisation for group in groups if group.utilisation is not None}
    numbers = {name: {_gpus(node) for node in some} for name, some in nodes.items()}
    gpus = {name: min(some) for name, some in numbers.items() if len(some) == 1}
    prices = site_prices(found.here.cost.amounts, backend.site_costs(), utilisation, gpus)
    charged = {currency: amount * MICRO for currency, amount in found.there.cost.amounts.items()}
    even, reason = None, "costs are not known of all jobs at both places"
    if not found.here.cost.basis.unknown and not found.there.cost.basis.unknown:
        even, reason = break_even(prices, charged, snapshot.rates)
    here, there, used_reason = found.here, found.there, prices.used_reason if caller.admin else _NO_USE
    return CompareView(
        now=now, since=begin, until=end, told_since=told_since,
        first_run=backend.reader.first_run_ended("" if caller.admin else user),
        job=job, name=run.name if run is not None else "", user=user, account=account, jobs=found.jobs,
        here=HereView(
            **_times(here, Place.HERE, caller),
            used=_cost(prices.used, here.cost.basis, Place.HERE, caller, prices.reason or used_reason),
            marginal=_cost(
                prices.marginal, here.cost.basis, Place.HERE, caller, prices.reason or prices.marginal_reason
            ),
        ),
        there=ThereView(
            **_times(there, Place.THERE, caller), charged=_cost(charged, there.cost.basis, Place.THERE, caller)
        ),
        groups=groups, break_even=None if even is None else _DIGITS.create_decimal(even), break_even_reason=reason,
        limits=list(found.limits),
    )  # fmt: skip


def _compared(backend: Backend, since: float, wanted: RunFilter, run: EndedJob | None, caller: Caller) -> Comparison:
    """``run``: of the one job that is wanted. Where like jobs tell all of it, no others are read."""
    read = backend.reader.compared_runs
    if run is not None:
        found = compare(_giving_way(backend, read(since, wanted, run)), by_others=False)
        if not (caller.admin and found.needs_others):
            return found
    if not caller.admin:
        return compare(_giving_way(backend, read(since, wanted, user=caller.user)), by_others=False)
    if not backend.comparing.acquire(blocking=False):
        raise ApiError(503, "burstd works out another comparison, one at a time; try again when that is done.")
    try:
        return compare(_giving_way(backend, read(since, wanted)))
    finally:
        backend.comparing.release()


def _giving_way(backend: Backend, runs: Iterable[PlacedRun]) -> Iterator[PlacedRun]:
    """Each slice waits for the decision that is being made: there may be hundreds of them."""
    for number, run in enumerate(runs):
        if number % SLICE == 0:
            backend.precedence().wait()
        yield run


def _group_uses(
    backend: Backend, nodes: Mapping[str, Sequence[Node]], since: float, until: float
) -> list[SiteGroupUseView]:
    costs = backend.site_costs()
    uses = backend.reader.group_uses([group.name for group in costs.groups], since, until)
    found = []
    for group in costs.groups:
        use, number = uses.get(group.name), len(nodes.get(group.name, ()))
        begin = since if use is None else use.since
        part = None
        if use is not None and number and until > begin:
            part = _DIGITS.create_decimal_from_float(min(1.0, use.node_s / (number * (until - begin))))
        found.append(SiteGroupUseView(group=group.name, nodes=number, since=begin, utilisation=part))
    return found


def _site_nodes(snapshot: Snapshot, costs: SiteCosts) -> Mapping[str, Sequence[Node]]:
    """Of each group that has any in Slurm."""
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots}
    nodes = snapshot.slurm.nodes if isinstance(snapshot.slurm, SlurmView) else {}
    found: defaultdict[str, list[Node]] = defaultdict(list)
    for name, node in nodes.items():
        if name not in slots and (group := costs.group_of(name)) is not None:
            found[group.name].append(node)
    return found


def _gpus(node: Node) -> int:
    return sum(gres.count for gres in node.gres if gres.name == "gpu")


def _times(side: Side, place: Place, caller: Caller) -> dict[str, TimeFigureView]:
    return {name: _time(getattr(side, name), place, caller) for name in ("wait", "run", "completion")}


def _time(figure: TimeFigure, place: Place, caller: Caller) -> TimeFigureView:
    basis = figure.basis
    return TimeFigureView(
        seconds=round(figure.seconds, 3) if basis.known else None,
        basis=BasisView.from_fields(basis, reason=_untold(place, caller) if basis.unknown else ""),
    )


def _cost(
    amounts: Mapping[str, Decimal], basis: Basis, place: Place, caller: Caller, reason: str = ""
) -> CostFigureView:
    """``reason``: why the amounts are not what is asked for."""
    if reason:
        basis = Basis(unknown=basis.known + basis.unknown)
    elif basis.unknown:
        reason = _untold(place, caller, _PRICED[place])
    return CostFigureView(
        costs=sum_by_currency((amount, currency) for currency, amount in amounts.items()) if basis.known else None,
        basis=BasisView.from_fields(basis, reason=reason),
    )


def _untold(place: Place, caller: Caller, priced: str = "") -> str:
    """Why nothing tells of a place."""
    if caller.admin:
        return f"no run {' '.join(filter(None, (place, priced)))} is on record"
    return f"none of your like jobs ran {' '.join(filter(None, (place, priced)))}"
