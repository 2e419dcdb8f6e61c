"""burstctl plan, hold, unhold"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli.output import ConsoleOutput, abbreviated_list, plural, print_json, styled_state
from burstd.cli.scale import print_result
from burstd.cli.session import JsonOption, SocketOption, api_client


def plan(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """What the next loop would do, from a fresh snapshot; changes nothing."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.request("POST", "/plan")
    if burstd.json:
        print_json(answer)
        return
    out = ConsoleOutput()
    if answer["paused"]:
        out.line(("On hold", "bold yellow"), f" (burstctl unhold): {answer['paused']}")
    for failed in answer["failed"]:
        out.line(("! ", "bold red"), f"{failed}; no node is booted or terminated until it works again")
    if not answer["steps"]:
        out.line("Nothing to do.")
    else:
        out.line((f"The next loop would take {plural(len(answer['steps']), 'step')}:", "bold"))
        out.table((">", "*"), [(f"{i}.", step["text"]) for i, step in enumerate(answer["steps"], 1)])
    if answer["wants"]:
        out.blank()
        out.table(
            ("POOL", "NODES>", "CAUSE", "JOBS", "WHY*"),
            [
                (w["pool"], str(w["nodes"]), w["cause"], abbreviated_list(w["jobs"], 3), w["reason"])
                for w in answer["wants"]
            ],
        )
    if answer["words"]:
        out.blank()
        out.table(
            ("DECIDED BY", "", "ABOUT", "WHY*"),
            [
                (
                    w["by"],
                    styled_state(w["verdict"]),
                    abbreviated_list([a.replace(":", " ", 1) for a in w["about"]], 2),
                    w["reason"],
                )
                for w in answer["words"]
            ],
        )


def hold(
    ctx: typer.Context,
    reason: Annotated[str, typer.Argument(help="Why; shown in status.")],
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Boot no node and terminate no wanted node until unhold."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("PUT", "/hold", {"reason": reason}))


def unhold(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """Go on after hold."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("DELETE", "/hold"))
