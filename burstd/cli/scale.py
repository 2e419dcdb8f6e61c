"""burstctl scale"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli import complete
from burstd.cli.output import ConsoleOutput, print_json
from burstd.cli.session import ApiClient, ExitCode, JsonOption, SocketOption, api_client
from burstd.cli.times import parse_duration


def scale(
    ctx: typer.Context,
    pool: Annotated[str, typer.Argument(metavar="POOL", help="The pool.", autocompletion=complete.pool_names)],
    nodes: Annotated[int | None, typer.Argument(metavar="N", min=0, help="How many nodes.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exactly so many (default).")] = False,
    floor: Annotated[bool, typer.Option("--floor", help="At least so many.")] = False,
    ceiling: Annotated[bool, typer.Option("--ceiling", help="At most so many.")] = False,
    lasting: Annotated[str, typer.Option("--for", metavar="TIME", help="Ends by itself: 90s, 15m, 2h, 3d.")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="Take all pins of the pool back.")] = False,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Pin a pool's number of nodes, or take the pins back."""
    burstd = api_client(ctx, json, socket)
    if clear:
        if nodes is not None or exact or floor or ceiling or lasting:
            burstd.fail(ExitCode.USAGE, "--clear takes no number and no other option.")
        print_result(burstd, burstd.request("DELETE", f"/pools/{pool}/pin"))
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
    print_result(burstd, burstd.request("PUT", f"/pools/{pool}/pin", body))


def print_result(burstd: ApiClient, answer: dict[str, object]) -> None:
    """What came of a command."""
    if burstd.json:
        print_json(answer)
    else:
        ConsoleOutput().line(str(answer["text"]))
