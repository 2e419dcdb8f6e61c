"""burstctl plan, hold, unhold, scale, confirm"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import abbreviated_list, parse_duration, plural
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, pool_names, with_client
from burstd.cli.watch import listing

if TYPE_CHECKING:
    from burstd.api.answers.plan import PlanView


class ConfirmSubject(StrEnum):
    """What burstd may be in doubt about."""

    RECORD = "record"
    CLOCK = "clock"


@listing
def plan(burstd: ApiClient) -> None:
    """What the next loop would do, from a fresh snapshot; changes nothing."""
    from burstd.api.answers.plan import PlanView

    burstd.show(PlanView, burstd.request("POST", "/plan"), _print_plan)


def _print_plan(out: ConsoleOutput, answer: PlanView) -> None:
    if answer.paused:
        out.line(("On hold", "bold yellow"), f" (burstctl unhold): {answer.paused}")
    for failed in answer.failed:
        out.line(("! ", "bold red"), f"{failed}; no node is booted or terminated until it works again")
    if not answer.steps:
        out.line("Nothing to do.")
    else:
        out.line((f"The next loop would take {plural(len(answer.steps), 'step')}:", "bold"))
        out.table((">", "*"), [(f"{i}.", step.text) for i, step in enumerate(answer.steps, 1)])
    if answer.wants:
        out.blank()
        out.table(
            ("POOL", "NODES>", "CAUSE", "JOBS", "WHY*"),
            [(w.pool, str(w.nodes), w.cause, abbreviated_list(w.jobs, 3), w.reason) for w in answer.wants],
        )
    if answer.words:
        out.blank()
        out.table(
            ("DECIDED BY", "", "ABOUT", "WHY*"),
            [
                (
                    w.by,
                    styled_state(w.verdict),
                    abbreviated_list([a.replace(":", " ", 1) for a in w.about], 2),
                    w.reason,
                )
                for w in answer.words
            ],
        )


@with_client
def hold(burstd: ApiClient, reason: Annotated[str, typer.Argument(help="Why; shown in status.")]) -> None:
    """Boot no node and terminate no wanted node until unhold."""
    burstd.run_command("PUT", "/hold", {"reason": reason})


@with_client
def unhold(burstd: ApiClient) -> None:
    """Go on after hold."""
    burstd.run_command("DELETE", "/hold")


@with_client
def scale(
    burstd: ApiClient,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool.", autocompletion=pool_names)],
    nodes: Annotated[int | None, typer.Argument(metavar="N", min=0, help="How many nodes.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exactly so many (default).")] = False,
    floor: Annotated[bool, typer.Option("--floor", help="At least so many.")] = False,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="At most so many.")] = False,
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="Ends by itself: 90s, 15m, 2h, 3d.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="Take all pins of the pool back.")] = False,
) -> None:
    """Pin a pool's number of nodes, or take the pins back."""
    if clear:
        if nodes is not None or exact or floor or ceiling or lasting:
            burstd.fail(ExitCode.USAGE, "--clear takes no number and no other option.")
        burstd.run_command("DELETE", f"/pools/{pool}/pin")
        return
    if nodes is None:
        burstd.fail(ExitCode.USAGE, f"Say how many nodes: burstctl scale {pool} 4 (or --clear).")
    if exact + floor + ceiling > 1:
        burstd.fail(ExitCode.USAGE, "Choose one of --exact, --floor and --ceiling.")
    body: dict[str, object] = {"nodes": nodes, "kind": "floor" if floor else "ceiling" if ceiling else "exact"}
    if lasting:
        try:
            body["for_s"] = parse_duration(lasting)
        except ValueError as error:
            burstd.fail(ExitCode.USAGE, f"--for: {error}.")
    burstd.run_command("PUT", f"/pools/{pool}/pin", body)


@with_client
def confirm(
    burstd: ApiClient, what: Annotated[ConfirmSubject, typer.Argument(help="What is right although burstd doubts it.")]
) -> None:
    """Say that the record, or the head's clock, is right, where an alarm of burstctl status doubts it."""
    burstd.run_command("POST", f"/confirm/{what.value}")
