"""What machines cost: the bill, and budgets."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Literal, get_args

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from burstd.api.answers.base import Money, utc_time
from burstd.api.answers.charges import ChargesView, SiteChargesView
from burstd.api.bill_files.focus import focus_rows, site_focus_rows
from burstd.api.bill_files.page import bill_page
from burstd.api.bill_files.table import bill_rows, csv_lines, site_rows
from burstd.api.dependencies import ApiError
from burstd.api.routers.bill import get_charges, get_sheet, get_site_charges
from burstd.api.routers.status import current_cost_per_hour
from burstd.db.repositories.bill import BillGrouping
from burstd.web.listing import Filter, PageNumber, list_page
from burstd.web.rendering import Page, PageDep

BillFile = Literal["bill.csv", "site.csv", "focus.csv", "site-focus.csv", "bill.html"]
_SITE_FILES = ("site.csv", "site-focus.csv")
_ROWS_AT_A_TIME = 1000
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
    bill = page.bill(group, *_window(since, until))
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
        files=[name for name in get_args(BillFile) if name not in _SITE_FILES or bill.site_lines],
        forecast=page.forecast() if page.caller.admin and begin is None and end is None else None,
        last_month=(f"{last_month:%Y-%m}-01", f"{last_month:%F}"),
    )


@router.get("/costs/{name}")
def download(
    page: PageDep, name: BillFile, *, group: BillGrouping = "user", since: Filter = "", until: Filter = ""
) -> Response:
    """The bill as a file: ``bill.csv`` is split by ``group``, as ``site.csv`` is, which is of nodes of the site.

    ``focus.csv`` has each charge, ``site-focus.csv`` each of nodes of the site, ``bill.html`` prints.
    """
    begin, end = _window(since, until)
    text: str | Iterator[str]
    if name == "bill.csv":
        text = "".join(csv_lines(bill_rows(page.bill(group, begin, end))))
    elif name == "site.csv":
        text = "".join(csv_lines(site_rows(page.bill(group, begin, end))))
    elif name == "focus.csv":
        text = csv_lines(focus_rows(_charge_pages(page, begin, end)))
    elif name == "site-focus.csv":
        text = csv_lines(site_focus_rows(_site_days(page, begin, end)))
    else:
        text = bill_page(get_sheet(page.caller, page.backend, begin, end))
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    media_type = "text/html" if name == "bill.html" else "text/csv"
    return StreamingResponse(iter([text]) if isinstance(text, str) else text, headers=headers, media_type=media_type)


def _charge_pages(page: Page, since: float | None, until: float | None) -> Iterator[ChargesView]:
    cursor, more = "", True
    while more:
        found = get_charges(page.caller, page.backend, since, until, cursor, _ROWS_AT_A_TIME)
        yield found
        cursor, more = found.next, bool(found.next)


def _site_days(page: Page, since: float | None, until: float | None) -> Iterator[SiteChargesView]:
    day, more = None, True
    while more:
        found = get_site_charges(page.caller, page.backend, since, until, day)
        yield found
        day, more = found.next, found.next is not None


def _window(since: str, until: str) -> tuple[float | None, float | None]:
    begin, end = _day(since, "From"), _day(until, "Until")
    return (
        begin.timestamp() if begin is not None else None,
        (end + timedelta(days=1)).timestamp() if end is not None else None,
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
