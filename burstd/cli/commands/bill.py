"""burstctl bill"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import (
    bill_parts_text,
    converted_text,
    duration_text,
    money_sums_text,
    money_text,
    parse_month,
    plural,
    utc_date_text,
)
from burstd.cli.commands.bill_files import (
    write_csv,
    write_focus,
    write_html,
    write_pdf,
    write_site_csv,
    write_site_focus,
)
from burstd.cli.commands.bill_forecast import forecast_bill
from burstd.cli.commands.bill_reconcile import reconcile_bill
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, ExitCode, with_client
from burstd.cli.watch import listing
from burstd.domain.billing.closing import COLUMNS, SITE_COLUMNS

if TYPE_CHECKING:
    from burstd.api.answers.plan import BillLineView, BillMonthView, BillView, ClosedMonthView

app = typer.Typer()
MonthArgument = Annotated[str, typer.Argument(metavar="MONTH", help="2026-10 (UTC).")]


class BillFormat(StrEnum):
    """How the bill is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    SITE_CSV = "site-csv"
    FOCUS = "focus"
    SITE_FOCUS = "site-focus"
    HTML = "html"
    PDF = "pdf"


_WHOLE = {
    BillFormat.FOCUS: write_focus,
    BillFormat.SITE_FOCUS: write_site_focus,
    BillFormat.HTML: write_html,
    BillFormat.PDF: write_pdf,
}


class BillGroup(StrEnum):
    """What the bill is split by."""

    USER = "user"
    ACCOUNT = "account"
    PROJECT = "project"
    JOB = "job"
    PARTITION = "partition"
    POOL = "pool"
    PROVIDER = "provider"
    DAY = "day"
    CLAIM = "claim"


@app.callback(invoke_without_command=True)
@listing
def bill(
    burstd: ApiClient,
    by: Annotated[BillGroup | None, typer.Option(help="Split it by this (default: user); project is account.")] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From the day of: 7d (ago), 2026-09-01; default: this month.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="To the end of the day of; default: now.")] = "",
    month: Annotated[str, typer.Option(metavar="MONTH", help="This month (UTC): 2026-10.")] = "",
    form: Annotated[
        BillFormat,
        typer.Option(
            "--format",
            help="csv: rows; focus: FOCUS 1.2, each charge; site-csv, site-focus: of own nodes; html, pdf: to print.",
        ),
    ] = BillFormat.TEXT,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="By job or claim, so many lines; the others as one.")
    ] = 1000,
) -> None:
    """What machines cost, in whole days (UTC), dearest first, and for what; running ones count up to now.

    Then what is left of the budgets.
    """
    from burstd.api.answers.plan import BillView

    if burstd.json and form not in (BillFormat.TEXT, BillFormat.JSON):
        burstd.fail(ExitCode.USAGE, "Say --format or --json, not both.")
    if burstd.watching and form is not BillFormat.TEXT:
        burstd.fail(ExitCode.USAGE, "--watch goes with the text, or with --json.")
    params: dict[str, str | int | float] = {**_period(burstd, since, until, month)}
    if form in _WHOLE:
        if by is not None:
            burstd.fail(ExitCode.USAGE, f"--by goes with text, json, csv and site-csv; {form} has each charge.")
        _WHOLE[form](burstd, params)
        return
    params["group"] = "account" if by is BillGroup.PROJECT else (by or BillGroup.USER).value
    params["limit"] = limit
    answer = burstd.get_json("/bill", params)
    if form is BillFormat.CSV:
        write_csv(burstd.parse(BillView, answer))
    elif form is BillFormat.SITE_CSV:
        write_site_csv(burstd.parse(BillView, answer))
    elif form is BillFormat.JSON:
        print_json(answer)
    else:
        burstd.show(BillView, answer, print_bill)


def _period(burstd: ApiClient, since: str, until: str, month: str) -> dict[str, float]:
    if month:
        if since or until:
            burstd.fail(ExitCode.USAGE, "Say --month, or --since and --until.")
        try:
            return dict(zip(("since", "until"), parse_month(month), strict=True))
        except ValueError as error:
            burstd.fail(ExitCode.USAGE, f"--month: {error}.")
    times = burstd.parse_times(UTC, since=since, until=until)
    if until:
        # The bill ends with a day, and midnight is the end of the day before.
        times["until"] += 1
    return times


app.command("reconcile")(reconcile_bill)
app.command("forecast")(forecast_bill)


@app.command()
@with_client
def verify(burstd: ApiClient, month: MonthArgument) -> None:
    """Compute the SHA-256 of a closed month again, and say whether its charges are as they were (exit 1: not)."""
    from burstd.api.answers.plan import ClosedMonthView

    answer = burstd.get_json(f"/bill/months/{month}")
    burstd.show(ClosedMonthView, answer, _print_closed_month)
    same_site = answer["site_sha256"] in ("", answer["found_site_sha256"])
    if answer["found_sha256"] != answer["sha256"] or not same_site:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command()
@with_client
def charges(
    burstd: ApiClient,
    month: MonthArgument,
    site: Annotated[
        bool, typer.Option("--site", help="Those of nodes of the site, which are a file of their own.")
    ] = False,
) -> None:
    """Print all charges of a closed month as CSV; sha256sum of it is the month's SHA-256. For administrators."""
    burstd.get_json(f"/bill/months/{month}")
    first, end = (datetime.fromtimestamp(time, UTC).date() for time in parse_month(month))
    for number in range((end - first).days):
        of = {"day": str(first + timedelta(number)), **({"site": "true"} if site else {})}
        answer = burstd.get_json(f"/bill/months/{month}/charges", of)
        if not number:
            sys.stdout.write(",".join(SITE_COLUMNS if site else COLUMNS) + "\n")
        sys.stdout.write(answer["csv"])


def _print_closed_month(out: ConsoleOutput, answer: ClosedMonthView) -> None:
    out.line(
        f"{_month_text(answer)}: {plural(answer.charges, 'charge')}, {money_sums_text(answer.totals)}, "
        f"rule {answer.rule}"
    )
    _print_found(out, answer.sha256, answer.found_charges, answer.found_sha256)
    if answer.site_sha256 and (answer.site_charges or answer.found_site_charges):
        out.line(
            f"Nodes of the site: {plural(answer.site_charges, 'charge')}, {money_sums_text(answer.site_totals)}, "
            f"sha256 {answer.site_sha256}"
        )
        _print_found(out, answer.site_sha256, answer.found_site_charges, answer.found_site_sha256)


def _print_found(out: ConsoleOutput, sha256: str, found: int, found_sha256: str) -> None:
    if found_sha256 == sha256:
        out.line(("Its charges are as they were then.", "green"))
    elif not found:
        out.line(("Its charges are on record no longer; see keep_years in [bill].", "bold red"))
    else:
        out.line((f"! Its charges were changed: {plural(found, 'charge')}, sha256 {found_sha256}", "bold red"))


def _month_text(month: BillMonthView) -> str:
    if month.closed:
        return f"{month.month} closed on {utc_date_text(month.closed)}, sha256 {month.sha256}"
    waits = f": the end is not confirmed of {', '.join(month.waits_for)}" if month.waits_for else ""
    return f"{month.month} open{waits}"


def _bill_key(line: BillLineView) -> str:
    if line.others:
        return f"({line.others} others)"
    return f"{line.key}{' (volumes)' if line.volumes else ''}".strip() or "(nobody's)"


def print_bill(out: ConsoleOutput, answer: BillView) -> None:
    """The bill, and what is left of the budgets."""
    out.line(
        (f"{money_sums_text(answer.total)}", "bold"),
        f" from {utc_date_text(answer.since)} to {utc_date_text(answer.until)}",
    )
    if answer.converted is not None:
        out.line(converted_text(answer.converted))
    for month in answer.months:
        if month.closed or month.month < f"{answer.now:%Y-%m}":
            out.line(_month_text(month))
    if answer.lines:
        out.table(
            (answer.group.upper(), "COST>", "MACHINE TIME>", "MACHINES>", "*"),
            [
                (
                    _bill_key(line),
                    money_text(line.cost),
                    duration_text(line.machine_s),
                    "" if line.others else str(line.claims),
                    bill_parts_text(line.parts),
                )
                for line in answer.lines
            ],
        )
    if answer.site_lines:
        out.blank()
        out.line(
            (money_sums_text(answer.site_total), "bold"),
            " on nodes of the site, by [site.cost], no part of the sum above",
        )
        out.table(
            (answer.group.upper(), "COST>", "NODE TIME>"),
            [
                (
                    f"({line.others} others)" if line.others else line.key or "(all)",
                    money_text(line.cost),
                    duration_text(line.node_s),
                )
                for line in answer.site_lines
            ],
        )
    if answer.budgets:
        out.blank()
        out.table(
            ("BUDGET", "PERIOD", "LIMIT>", "SPENT>", "PROMISED>", "LEFT>", "*"),
            [
                (
                    f"{b.kind} {b.name}".strip() or "whole site",
                    b.period,
                    *map(money_text, (b.limit, b.spent, b.committed, b.left)),
                    b.fault,
                )
                for b in answer.budgets
            ],
        )
