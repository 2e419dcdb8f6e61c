"""What machines cost: the bill, and budgets."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.base import Money, utc_time
from burstd.api.dependencies import ApiError
from burstd.api.routers.status import current_cost_per_hour
from burstd.db.repositories.bill import BillGrouping
from burstd.web.listing import Filter, PageNumber, list_page
from burstd.web.rendering import Page, PageDep

_GROUPS = get_args(BillGrouping)
_FIRST_YEAR = 1970
_LABELS = {"account": "project", "claim": "machine"}

router = APIRouter()


@router.get("/costs")
def costs_page(
    page: PageDep,
    *,
    group: BillGrouping = "user",
    since: Filter = "",
    until: Filter = "",
    number: PageNumber = 1,
) -> HTMLResponse:
    """The bill from one day to another, both included (UTC); without them since the first of the month."""
    begin, end = _day(since, "From"), _day(until, "Until")
    bill = page.bill(
        group,
        begin.timestamp() if begin is not None else None,
        (end + timedelta(days=1)).timestamp() if end is not None else None,
    )
    asked = {"group": group, "since": f"{begin:%F}" if begin else "", "until": f"{end:%F}" if end else ""}
    listing = list_page(bill.lines, number, "/costs", asked)
    first = utc_time(page.backend.now()).replace(day=1)
    last_month = first - timedelta(days=1)
    return page.render(
        "costs.html",
        "Costs",
        bill=bill,
        listing=listing,
        groups=[(one, _LABELS.get(one, one)) for one in _GROUPS],
        label=_LABELS.get(group, group),
        asked=asked,
        rate=_rate(page),
        last_month=(f"{last_month:%Y-%m}-01", f"{last_month:%F}"),
    )


def _rate(page: Page) -> list[Money]:
    """Money per hour now, for administrators."""
    latest = page.backend.latest_loop()
    return current_cost_per_hour(latest[0]) if latest is not None and page.caller.admin else []


def _day(value: str, label: str) -> datetime | None:
    """Its beginning; None: none is named."""
    if not value:
        return None
    try:
        found = datetime.fromisoformat(f"{date.fromisoformat(value):%F}T00:00+00:00")
    except ValueError:
        raise ApiError(422, f"{label} must be a day, as 2026-09-21.") from None
    if found.year < _FIRST_YEAR:
        raise ApiError(422, f"{label} must be a day after {_FIRST_YEAR}.")
    return found
