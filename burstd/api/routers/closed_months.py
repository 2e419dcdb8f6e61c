"""Closed months, for administrators: ``burstctl bill verify`` and ``burstctl bill charges``."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Path

from burstd.api.answers.base import money_view
from burstd.api.answers.plan import BillMonthView, ClosedMonthView, MonthFileView
from burstd.api.backend import Backend
from burstd.api.dependencies import AdminDep, ApiError, BackendDep
from burstd.db import StoreReader
from burstd.domain.billing.closing import ClosedMonth, close_month, days_of, month_file
from burstd.domain.billing.costs import by_month

Month = Annotated[str, Path(pattern=r"^[0-9]{4}-(0[1-9]|1[0-2])$")]

_MAX_AWAITED = 12

router = APIRouter(prefix="/v1/bill/months")


def bill_months(reader: StoreReader, since: float, until: float, *, admin: bool) -> list[BillMonthView]:
    """The months of a bill. Others than administrators are not told of claims."""
    closed = {month.month: month for month in reader.closed_months()}
    names = [month for month, _ in by_month(since, until)]
    first, claims = reader.awaited_claims() if admin and not closed.keys() >= {*names} else ("", [])
    waits_for = {first: [claim.id for claim in claims[:_MAX_AWAITED]]}
    return [
        BillMonthView.from_fields(closed[name])
        if name in closed
        else BillMonthView(month=name, waits_for=waits_for.get(name, []))
        for name in names
    ]


@router.get("/{month}")
def get_closed_month(month: Month, _: AdminDep, backend: BackendDep) -> ClosedMonthView:
    """A closed month, and what is on record of it now: the same, unless somebody changed it."""
    closed = _closed(backend, month)
    found = close_month(month, closed.closed, backend.reader.charges_of_days(days_of(month), closed.rule))
    return ClosedMonthView.from_fields(
        closed,
        totals=[money_view(amount, currency) for currency, amount in closed.totals.items()],
        found_charges=found.charges,
        found_sha256=found.sha256,
    )


@router.get("/{month}/charges")
def get_charges(month: Month, day: date, _: AdminDep, backend: BackendDep) -> MonthFileView:
    """The lines of a day in the file of a closed month."""
    closed = _closed(backend, month)
    number = (day - date(1970, 1, 1)).days
    if number not in days_of(month):
        raise ApiError(422, f"{day} is no day of {month}.")
    lines = month_file(backend.reader.charges_of_days(range(number, number + 1), closed.rule), head=False)
    return MonthFileView(csv="".join(lines))


def _closed(backend: Backend, month: str) -> ClosedMonth:
    months = {one.month: one for one in backend.reader.closed_months()}
    if month not in months:
        raise ApiError(404, f"{month} is not closed.", months)
    return months[month]
