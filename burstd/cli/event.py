"""burstctl event"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.text import Text

from burstd.cli import complete
from burstd.cli.output import STYLES, ConsoleOutput, JsonObject, print_json, print_json_line
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, JsonOption, SocketOption, api_client
from burstd.cli.times import epoch_now, local_time_text, parse_time

app = typer.Typer(help="What happened, in order.", no_args_is_help=True)
FOLLOW_INTERVAL_S = 0.5
RECONNECT_DELAY_S = 2.0

JobOption = Annotated[
    str, typer.Option(help="About this job and the nodes made for it.", autocompletion=complete.job_ids)
]
NodeOption = Annotated[
    str, typer.Option(help="About this node and its last claims.", autocompletion=complete.node_names)
]
ClaimOption = Annotated[str, typer.Option(help="About this claim.")]


@app.command("list")
def list_events(
    ctx: typer.Context,
    job: JobOption = "",
    node: NodeOption = "",
    claim: ClaimOption = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Not before: 2h (ago), 2026-09-21, ...T14:00.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="At most so many, the last ones.")] = 50,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """The last events, oldest first."""
    burstd = api_client(ctx, json, socket)
    params = _filter_params(job, node, claim) | {"limit": number}
    if since:
        params["since"] = _parse_since(burstd, since)
    answer = burstd.get("/events", params)
    if burstd.json:
        print_json(answer)
        return
    if not answer["events"]:
        ConsoleOutput().line("Nothing happened.")
        return
    _print_events(ConsoleOutput(), answer["events"], answer["now"])


@app.command("follow")
def follow_events(
    ctx: typer.Context,
    job: JobOption = "",
    node: NodeOption = "",
    claim: ClaimOption = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Begin with so many past ones.")] = 10,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Events as they happen, until Ctrl-C; with --json one a line. Goes on when the daemon is started again."""
    burstd = api_client(ctx, json, socket)
    params = _filter_params(job, node, claim)
    answer = burstd.get("/events", params | {"limit": number})
    out = None if burstd.json else ConsoleOutput()
    try:
        while True:
            for event in answer["events"]:
                if out is None:
                    print_json_line(event)
            if out is not None and answer["events"]:
                _print_events(out, answer["events"], answer["now"], heads=False)
            time.sleep(FOLLOW_INTERVAL_S)
            answer = _next_page(burstd, params | {"after": max(1, answer["last"]), "limit": 1000}, answer)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.OK) from None


def _next_page(burstd: ApiClient, params: dict[str, str | int | float], before: JsonObject) -> JsonObject:
    try:
        status, answer = burstd.request_status("GET", "/events", params=params)
    except DaemonUnreachable as error:
        typer.echo(f"burstctl: {str(error).splitlines()[0]} Trying again.", err=True)
        time.sleep(RECONNECT_DELAY_S)
        return before | {"events": []}
    if status != 200:
        burstd.fail(ExitCode.UNREACHABLE, answer.get("error", f"The daemon answered {status}."))
    found: JsonObject = answer
    return found


def event_rows(events: Iterable[JsonObject], now: str) -> list[tuple[str, str, Text, str]]:
    """Time, subject, what became of it, why and by whom."""
    return [(local_time_text(e["time"], now), _subject_text(e), _transition_text(e), _reason_text(e)) for e in events]


def _subject_text(event: JsonObject) -> str:
    kind, _, name = event["subject"].partition(":")
    if event["node"]:
        return str(event["node"])
    return f"{kind} {name}".strip() if kind != "meta" else str(name)


def _transition_text(event: JsonObject) -> Text:
    new = event["new"] or "over"
    arrow = f"{event['old']} > " if event["old"] and event["old"] != event["new"] else ""
    return Text.assemble((arrow, "dim"), (new, STYLES.get(new, "")))


def _reason_text(event: JsonObject) -> str:
    who = "" if event["by"] in ("burstd", "") else f" ({event['by']})"
    return f"{event['reason']}{who}".strip()


def _print_events(out: ConsoleOutput, events: Iterable[JsonObject], now: str, *, heads: bool = True) -> None:
    out.table(("TIME", "ABOUT", "", "WHY*") if heads else ("", "", "", "*"), event_rows(events, now))


def _filter_params(job: str, node: str, claim: str) -> dict[str, str | int | float]:
    return {name: value for name, value in (("job", job), ("node", node), ("claim", claim)) if value}


def _parse_since(burstd: ApiClient, text: str) -> float:
    try:
        return parse_time(text, epoch_now())
    except ValueError as error:
        burstd.fail(ExitCode.USAGE, f"--since: {error}.")
