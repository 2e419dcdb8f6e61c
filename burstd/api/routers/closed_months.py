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
from burstd.domain.billing.closing import ClosedMonth, close_month, days_of, month_file, site_month_file
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
    reader, days = backend.reader, days_of(month)
    found = close_month(
        month, closed.closed, reader.charges_of_days(days, closed.rule), reader.site_charges_of_days(days)
    )  # fmt: skip
    return ClosedMonthView.from_fields(
        closed,
        totals=[money_view(amount, currency) for currency, amount in closed.totals.items()],
        found_charges=found.charges,
        found_sha256=found.sha256,
        site_totals=[money_view(amount, currency) for currency, amount in closed.site_totals.items()],
        found_site_charges=found.site_charges,
        found_site_sha256=found.site_sha256,
    )


@router.get("/{month}/charges")
def get_charges(month: Month, day: date, _: AdminDep, backend: BackendDep, site: bool = False) -> MonthFileView:
    """The lines of a day in the file of a closed month; with ``site`` in that of nodes of the site."""
    closed = _closed(backend, month)
    number = (day - date(1970, 1, 1)).days
    if number not in days_of(month):
        raise ApiError(422, f"{day} is no day of {month}.")
    if site and not closed.site_sha256:
        raise ApiError(404, f"{month} was closed without nodes of the site, by a burstd of before.")
    reader, days = backend.reader, range(number, number + 1)
    lines = (
        site_month_file(reader.site_charges_of_days(days), head=False)
        if site
        else month_file(reader.charges_of_days(days, closed.rule), head=False)
    )
    return MonthFileView(csv="".join(lines))


def _closed(backend: Backend, month: str) -> ClosedMonth:
    months = {one.month: one for one in backend.reader.closed_months()}
    if month not in months:
        raise ApiError(404, f"{month} is not closed.", months)
    return months[month]
