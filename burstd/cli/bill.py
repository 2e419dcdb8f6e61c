"""burstctl bill"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from burstd.cli.output import Paper, money, print_json, sums
from burstd.cli.session import Code, Json, Session, Socket, session
from burstd.cli.times import day, length, parse_time, utc_now


class By(StrEnum):
    """What the bill is split by."""

    USER = "user"
    ACCOUNT = "account"
    JOB = "job"
    POOL = "pool"
    PROVIDER = "provider"
    CLAIM = "claim"


def bill(
    ctx: typer.Context,
    by: Annotated[By, typer.Option(help="Split it by this.")] = By.USER,
    since: Annotated[str, typer.Option(metavar="TIME", help="From: 7d (ago), 2026-09-01; default: this month.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="To; default: now.")] = "",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """What machines cost, dearest first; running ones count up to now. Then what is left of the budgets."""
    burstd = session(ctx, json, socket)
    params: dict[str, str | int | float] = {"group": by.value}
    for name, text in (("since", since), ("until", until)):
        if text:
            params[name] = _time(burstd, name, text)
    answer = burstd.get("/bill", params)
    if burstd.json:
        print_json(answer)
        return
    paper = Paper()
    paper.line((f"{sums(answer['total'])}", "bold"), f" from {day(answer['since'])} to {day(answer['until'])}")
    if answer["lines"]:
        paper.table((by.value.upper(), "COST>", "MACHINE TIME>", "MACHINES>"), [
            (line["key"] or "(nobody's)", money(line["cost"]), length(line["machine_s"]), str(line["claims"]))
            for line in answer["lines"]
        ])  # fmt: skip
    if answer["budgets"]:
        paper.blank()
        paper.table(("BUDGET", "PERIOD", "LIMIT>", "SPENT>", "PROMISED>", "LEFT>", "*"), [
            (f"{b['kind']} {b['name']}".strip() or "whole site", b["period"], *map(money, (b[a] for a in _AMOUNTS)),
             b["fault"])
            for b in answer["budgets"]
        ])  # fmt: skip


_AMOUNTS = ("limit", "spent", "committed", "left")


def _time(burstd: Session, name: str, text: str) -> float:
    try:
        return parse_time(text, utc_now())
    except ValueError as error:
        burstd.fail(Code.USAGE, f"--{name}: {error}.")
