"""burstctl plan, hold, unhold"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli.output import Paper, names, plural, print_json, styled
from burstd.cli.scale import say
from burstd.cli.session import Json, Socket, session


def plan(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """What the next loop would do, from a fresh look; nothing of it is done."""
    burstd = session(ctx, json, socket)
    answer = burstd.ask("POST", "/plan")
    if burstd.json:
        print_json(answer)
        return
    paper = Paper()
    if answer["paused"]:
        paper.line(("On hold", "bold yellow"), f" (burstctl unhold): {answer['paused']}")
    for failed in answer["failed"]:
        paper.line(("! ", "bold red"), f"{failed}; nothing is booted or let go until it is mended")
    if not answer["steps"]:
        paper.line("Nothing: everything is as it should be.")
    else:
        paper.line((f"The next loop would take {plural(len(answer['steps']), 'step')}:", "bold"))
        paper.table((">", "*"), [(f"{i}.", step["text"]) for i, step in enumerate(answer["steps"], 1)])
    if answer["wants"]:
        paper.blank()
        paper.table(("POOL", "NODES>", "CAUSE", "JOBS", "WHY*"), [
            (w["pool"], str(w["nodes"]), w["cause"], names(w["jobs"], 3), w["reason"]) for w in answer["wants"]
        ])  # fmt: skip
    if answer["words"]:
        paper.blank()
        paper.table(("DECIDED BY", "", "ABOUT", "WHY*"), [
            (w["by"], styled(w["verdict"]), names([a.replace(":", " ", 1) for a in w["about"]], 2), w["reason"])
            for w in answer["words"]
        ])  # fmt: skip


def hold(
    ctx: typer.Context,
    reason: Annotated[str, typer.Argument(help="Why; shown in status.")],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Boot nothing new and close nothing that is wanted, until unhold."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("PUT", "/hold", {"reason": reason}))


def unhold(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """Go on after hold."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("DELETE", "/hold"))
