"""burstctl bill"""

from __future__ import annotations

from datetime import UTC
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
    utc_date_text,
)
from burstd.cli.commands.bill_files import write_csv, write_focus
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, ExitCode, with_client

if TYPE_CHECKING:
    from burstd.api.answers.plan import BillLineView, BillView

app = typer.Typer()


class BillFormat(StrEnum):
    """How the bill is written."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    FOCUS = "focus"


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
@with_client
def bill(
    burstd: ApiClient,
    by: Annotated[BillGroup | None, typer.Option(help="Split it by this (default: user); project is account.")] = None,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From the day of: 7d (ago), 2026-09-01; default: this month.")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="To the end of the day of; default: now.")] = "",
    month: Annotated[str, typer.Option(metavar="MONTH", help="This month (UTC): 2026-10.")] = "",
    form: Annotated[
        BillFormat, typer.Option("--format", help="csv: a row for each line and kind; focus: FOCUS 1.2, each charge.")
    ] = BillFormat.TEXT,
) -> None:
    """What machines cost, in whole days (UTC), dearest first, and for what; running ones count up to now.

    Then what is left of the budgets.
    """
    from burstd.api.answers.plan import BillView

    if burstd.json and form not in (BillFormat.TEXT, BillFormat.JSON):
        burstd.fail(ExitCode.USAGE, "Say --format or --json, not both.")
    params: dict[str, str | int | float] = {**_period(burstd, since, until, month)}
    if form is BillFormat.FOCUS:
        if by is not None:
            burstd.fail(ExitCode.USAGE, "--by is of text, json and csv: this format has each charge.")
        write_focus(burstd, params)
        return
    params["group"] = "account" if by is BillGroup.PROJECT else (by or BillGroup.USER).value
    answer = burstd.get_json("/bill", params)
    if form is BillFormat.CSV:
        write_csv(burstd.parse(BillView, answer))
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


def _bill_key(line: BillLineView) -> str:
    return f"{line.key}{' (volumes)' if line.volumes else ''}".strip() or "(nobody's)"


def print_bill(out: ConsoleOutput, answer: BillView) -> None:
    """The bill, and what is left of the budgets."""
    out.line(
        (f"{money_sums_text(answer.total)}", "bold"),
        f" from {utc_date_text(answer.since)} to {utc_date_text(answer.until)}",
    )
    if answer.converted is not None:
        out.line(converted_text(answer.converted))
    if answer.lines:
        out.table(
            (answer.group.upper(), "COST>", "MACHINE TIME>", "MACHINES>", "*"),
            [
                (
                    _bill_key(line),
                    money_text(line.cost),
                    duration_text(line.machine_s),
                    str(line.claims),
                    bill_parts_text(line.parts),
                )
                for line in answer.lines
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
