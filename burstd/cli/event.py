"""burstctl event"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.text import Text

from burstd.cli import complete
from burstd.cli.output import STYLES, Answer, Paper, print_json, print_json_line
from burstd.cli.session import Code, Json, Session, Socket, Unreachable, session
from burstd.cli.times import clock, parse_time, utc_now

app = typer.Typer(help="What happened, in order.", no_args_is_help=True)
POLL_S = 0.5
RETRY_S = 2.0

Job = Annotated[str, typer.Option(help="About this job and the nodes made for it.", autocompletion=complete.jobs)]
Node = Annotated[str, typer.Option(help="About this node and its last claims.", autocompletion=complete.nodes)]
Claim = Annotated[str, typer.Option(help="About this claim.")]


@app.command("list")
def list_events(
    ctx: typer.Context,
    job: Job = "",
    node: Node = "",
    claim: Claim = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Not before: 2h (ago), 2026-09-21, ...T14:00.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="At most so many, the last ones.")] = 50,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """The last events, oldest first."""
    burstd = session(ctx, json, socket)
    params = _about(job, node, claim) | {"limit": number}
    if since:
        params["since"] = _since(burstd, since)
    answer = burstd.get("/events", params)
    if burstd.json:
        print_json(answer)
        return
    if not answer["events"]:
        Paper().line("Nothing happened.")
        return
    _print(Paper(), answer["events"], answer["now"])


@app.command("follow")
def follow_events(
    ctx: typer.Context,
    job: Job = "",
    node: Node = "",
    claim: Claim = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Begin with so many past ones.")] = 10,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Events as they happen, until Ctrl-C; with --json one a line. Goes on when the daemon is started again."""
    burstd = session(ctx, json, socket)
    params = _about(job, node, claim)
    answer = burstd.get("/events", params | {"limit": number})
    paper = None if burstd.json else Paper()
    try:
        while True:
            for event in answer["events"]:
                if paper is None:
                    print_json_line(event)
            if paper is not None and answer["events"]:
                _print(paper, answer["events"], answer["now"], heads=False)
            time.sleep(POLL_S)
            answer = _next(burstd, params | {"after": max(1, answer["last"]), "limit": 1000}, answer)
    except KeyboardInterrupt:
        raise typer.Exit(Code.OK) from None


def _next(burstd: Session, params: dict[str, str | int | float], before: Answer) -> Answer:
    try:
        status, answer = burstd.talk("GET", "/events", params=params)
    except Unreachable as error:
        typer.echo(f"burstctl: {str(error).splitlines()[0]} Trying again.", err=True)
        time.sleep(RETRY_S)
        return before | {"events": []}
    if status != 200:
        burstd.fail(Code.UNREACHABLE, answer.get("error", f"The daemon answered {status}."))
    found: Answer = answer
    return found


def rows_of(events: Iterable[Answer], now: str) -> list[tuple[str, str, Text, str]]:
    """Time, subject, what became of it, why and by whom."""
    return [(clock(e["time"], now), _about_what(e), _change(e), _why(e)) for e in events]


def _about_what(event: Answer) -> str:
    kind, _, name = event["subject"].partition(":")
    if event["node"]:
        return str(event["node"])
    return f"{kind} {name}".strip() if kind != "meta" else str(name)


def _change(event: Answer) -> Text:
    new = event["new"] or "over"
    arrow = f"{event['old']} > " if event["old"] and event["old"] != event["new"] else ""
    return Text.assemble((arrow, "dim"), (new, STYLES.get(new, "")))


def _why(event: Answer) -> str:
    who = "" if event["by"] in ("burstd", "") else f" ({event['by']})"
    return f"{event['reason']}{who}".strip()


def _print(paper: Paper, events: Iterable[Answer], now: str, *, heads: bool = True) -> None:
    paper.table(("TIME", "ABOUT", "", "WHY*") if heads else ("", "", "", "*"), rows_of(events, now))


def _about(job: str, node: str, claim: str) -> dict[str, str | int | float]:
    return {name: value for name, value in (("job", job), ("node", node), ("claim", claim)) if value}


def _since(burstd: Session, text: str) -> float:
    try:
        return parse_time(text, utc_now())
    except ValueError as error:
        burstd.fail(Code.USAGE, f"--since: {error}.")
