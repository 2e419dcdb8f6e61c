"""What ``burstctl bill --format`` writes to standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from burstd.cli.plain_text import safe_text
from burstd.cli.session import ApiClient, ExitCode

if TYPE_CHECKING:
    from burstd.api.answers.charges import ChargesView, SiteChargesView
    from burstd.api.answers.plan import BillView

SHEET_TIMEOUT_S = 120.0
"""Longer than four ways through a month of a million jobs take: 15 s of processor time."""


def write_csv(bill: BillView) -> None:
    """A row for each line and kind of use."""
    from burstd.api.bill_files.table import bill_rows, csv_lines

    _write(csv_lines(bill_rows(bill)))


def write_site_csv(bill: BillView) -> None:
    """A row for each line of nodes of the site."""
    from burstd.api.bill_files.table import csv_lines, site_rows

    _write(csv_lines(site_rows(bill)))


def write_focus(burstd: ApiClient, period: Mapping[str, str | int | float]) -> None:
    """A row for each charge, written as pages of them come."""
    from burstd.api.bill_files.focus import focus_rows
    from burstd.api.bill_files.table import csv_lines

    _write(csv_lines(focus_rows(charge_pages(burstd, period))))


def write_site_focus(burstd: ApiClient, period: Mapping[str, str | int | float]) -> None:
    """The same of nodes of the site, written as answers come, day by day."""
    from burstd.api.bill_files.focus import site_focus_rows
    from burstd.api.bill_files.table import csv_lines

    _write(csv_lines(site_focus_rows(_site_days(burstd, period))))


def _site_days(burstd: ApiClient, period: Mapping[str, str | int | float]) -> Iterator[SiteChargesView]:
    from burstd.api.answers.charges import SiteChargesView

    params = dict(period)
    while True:
        day = burstd.parse(SiteChargesView, burstd.get_json("/bill/site-charges", params))
        yield day
        if day.next is None:
            return
        params["day"] = str(day.next)


def write_html(burstd: ApiClient, period: Mapping[str, str | int | float]) -> None:
    """One page, to print."""
    sys.stdout.write(_page(burstd, period))


def write_pdf(burstd: ApiClient, period: Mapping[str, str | int | float]) -> None:
    """The page as PDF."""
    if sys.stdout.isatty():
        burstd.fail(ExitCode.USAGE, "A terminal shows no PDF: burstctl bill --format pdf > bill.pdf")
    try:
        from weasyprint import HTML
    except (ImportError, OSError) as error:  # OSError: Pango is missing
        burstd.fail(
            ExitCode.NEGATIVE,
            f"PDF needs the extra pdf (pip install 'burstd[pdf]') and Pango: {error}. A browser prints --format html.",
        )
    HTML(string=_page(burstd, period)).write_pdf(sys.stdout.buffer)


def _page(burstd: ApiClient, period: Mapping[str, str | int | float]) -> str:
    from burstd.api.answers.plan import BillSheetView
    from burstd.api.bill_files.page import bill_page

    answer = burstd.request("GET", "/bill/sheet", params=period, timeout_s=SHEET_TIMEOUT_S)
    return bill_page(burstd.parse(BillSheetView, answer))


def charge_pages(burstd: ApiClient, period: Mapping[str, str | int | float]) -> Iterator[ChargesView]:
    """All pages of single charges."""
    from burstd.api.answers.charges import ChargesView

    params = dict(period)
    while True:
        page = burstd.parse(ChargesView, burstd.get_json("/bill/charges", params))
        yield page
        if not page.next:
            return
        params["cursor"] = page.next


def _write(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{safe_text(line[:-1])}\n")
