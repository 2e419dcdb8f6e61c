"""burstctl notify"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, ExitCode, with_client

if TYPE_CHECKING:
    from burstd.api.answers.notify import NotifyTestView

app = typer.Typer(help="Messages to people: alarms, budgets, jobs.", no_args_is_help=True)
TEST_TIMEOUT_S = 330.0
"""Longer than a program may take."""


@app.callback()
def notify() -> None:
    """Messages to people: alarms, budgets, jobs."""


@app.command("test")
@with_client
def test_notify(burstd: ApiClient) -> None:
    """Send a test message by each way, and say what came of it. For administrators."""
    from burstd.api.answers.notify import NotifyTestView

    answer = burstd.request("POST", "/notify/test", timeout_s=TEST_TIMEOUT_S)
    burstd.show(NotifyTestView, answer, _print_test)
    if any(way["error"] for way in answer["ways"]) or not answer["ways"]:
        raise typer.Exit(ExitCode.NEGATIVE)


def _print_test(out: ConsoleOutput, answer: NotifyTestView) -> None:
    if not answer.ways:
        out.line("The settings have no way to send messages; see [notify] in burstd.toml.")
        return
    out.table(
        ("WAY", "SECONDS>", "*"),
        [(way.way, f"{way.took_s:.1f}", f"not sent: {way.error}" if way.error else "sent") for way in answer.ways],
    )
