"""burstctl bill"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from burstd.cli.output import ConsoleOutput, money_sums_text, money_text, print_json
from burstd.cli.session import ApiClient, ExitCode, JsonOption, SocketOption, api_client
from burstd.cli.times import duration_text, epoch_now, local_date_text, parse_time


class BillGroup(StrEnum):
    """What the bill is split by."""

    USER = "user"
    ACCOUNT = "account"
    JOB = "job"
    POOL = "pool"
    PROVIDER = "provider"
    CLAIM = "claim"


def bill(
    ctx: typer.Context,
    by: Annotated[BillGroup, typer.Option(help="Split it by this.")] = BillGroup.USER,
    since: Annotated[str, typer.Option(metavar="TIME", help="From: 7d (ago), 2026-09-01; default: this month.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="To; default: now.")] = "",
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """What machines cost, dearest first; running ones count up to now. Then what is left of the budgets."""
    burstd = api_client(ctx, json, socket)
    params: dict[str, str | int | float] = {"group": by.value}
    for name, text in (("since", since), ("until", until)):
        if text:
            params[name] = _parse_time_option(burstd, name, text)
    answer = burstd.get("/bill", params)
    if burstd.json:
        print_json(answer)
        return
    out = ConsoleOutput()
    out.line(
        (f"{money_sums_text(answer['total'])}", "bold"),
        f" from {local_date_text(answer['since'])} to {local_date_text(answer['until'])}",
    )
    if answer["lines"]:
        out.table(
            (by.value.upper(), "COST>", "MACHINE TIME>", "MACHINES>"),
            [
                (
                    line["key"] or "(nobody's)",
                    money_text(line["cost"]),
                    duration_text(line["machine_s"]),
                    str(line["claims"]),
                )
                for line in answer["lines"]
            ],
        )
    if answer["budgets"]:
        out.blank()
        out.table(
            ("BUDGET", "PERIOD", "LIMIT>", "SPENT>", "PROMISED>", "LEFT>", "*"),
            [
                (
                    f"{b['kind']} {b['name']}".strip() or "whole site",
                    b["period"],
                    *map(money_text, (b[a] for a in _BUDGET_AMOUNTS)),
                    b["fault"],
                )
                for b in answer["budgets"]
            ],
        )


_BUDGET_AMOUNTS = ("limit", "spent", "committed", "left")


def _parse_time_option(burstd: ApiClient, name: str, text: str) -> float:
    try:
        return parse_time(text, epoch_now())
    except ValueError as error:
        burstd.fail(ExitCode.USAGE, f"--{name}: {error}.")
