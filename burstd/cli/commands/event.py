"""burstctl event"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from burstd.api.answers.text import local_time_text
from burstd.cli.output import STYLES, ConsoleOutput
from burstd.cli.plain_text import print_json_line
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, job_ids, node_names, with_client

if TYPE_CHECKING:
    from burstd.api.answers.nodes import EventsView, EventView

app = typer.Typer(help="What happened, in order.", no_args_is_help=True)
FOLLOW_INTERVAL_S = 0.5
RECONNECT_DELAY_S = 2.0

JobOption = Annotated[str, typer.Option(help="About this job and the nodes made for it.", autocompletion=job_ids)]
NodeOption = Annotated[str, typer.Option(help="About this node and its last claims.", autocompletion=node_names)]
ClaimOption = Annotated[str, typer.Option(help="About this claim.")]


@app.command("list")
@with_client
def list_events(
    burstd: ApiClient,
    job: JobOption = "",
    node: NodeOption = "",
    claim: ClaimOption = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Not before: 2h (ago), 2026-09-21, ...T14:00.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="At most so many, the last ones.")] = 50,
) -> None:
    """The last events, oldest first."""
    from burstd.api.answers.nodes import EventsView

    params = _filter_params(job, node, claim) | {"limit": number} | burstd.parse_times(since=since)
    burstd.show(EventsView, burstd.get_json("/events", params), _print_list)


def _print_list(out: ConsoleOutput, answer: EventsView) -> None:
    if answer.events:
        _print_events(out, answer)
    else:
        out.line("Nothing happened.")


@app.command("follow")
@with_client
def follow_events(
    burstd: ApiClient,
    job: JobOption = "",
    node: NodeOption = "",
    claim: ClaimOption = "",
    number: Annotated[int, typer.Option("-n", min=1, max=10_000, help="Begin with so many past ones.")] = 10,
) -> None:
    """Events as they happen, until Ctrl-C; with --json one a line. Goes on when the daemon is started again."""
    from burstd.api.answers.nodes import EventsView

    params = _filter_params(job, node, claim)
    answer = burstd.get_json("/events", params | {"limit": number})
    begun = burstd.parse(EventsView, answer).now
    out = None if burstd.json else ConsoleOutput()
    try:
        while True:
            page = burstd.parse(EventsView, answer)
            if out is None:
                for event in answer["events"]:
                    print_json_line(event)
            elif page.events:
                # The day of what was printed is not that of now when it is read.
                _print_events(out, page.model_copy(update={"now": begun}), heads=False)
            time.sleep(FOLLOW_INTERVAL_S)
            answer = _next_page(burstd, params | {"after": max(1, page.last), "limit": 1000}, answer)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.OK) from None


def _next_page(burstd: ApiClient, params: dict[str, str | int | float], before: dict[str, Any]) -> Any:
    try:
        status, answer = burstd.request_status("GET", "/events", params=params)
    except DaemonUnreachable as error:
        typer.echo(f"burstctl: {str(error).splitlines()[0]} Trying again.", err=True)
        time.sleep(RECONNECT_DELAY_S)
        return before | {"events": []}
    if status != 200:
        burstd.fail(ExitCode.UNREACHABLE, answer.get("error", f"The daemon answered {status}."))
    return answer


def _event_rows(events: Iterable[EventView], now: datetime) -> list[tuple[str, str, Text, str]]:
    """Time, subject, what became of it, why and by whom."""
    return [(local_time_text(e.time, now), _subject_text(e), _transition_text(e), _reason_text(e)) for e in events]


def _subject_text(event: EventView) -> str:
    kind, _, name = event.subject.partition(":")
    if event.node:
        return str(event.node)
    return f"{kind} {name}".strip() if kind != "meta" else str(name)


def _transition_text(event: EventView) -> Text:
    new = event.new or "over"
    arrow = f"{event.old} > " if event.old and event.old != event.new else ""
    return Text.assemble((arrow, "dim"), (new, STYLES.get(new, "")))


def _reason_text(event: EventView) -> str:
    who = "" if event.by in ("burstd", "") else f" ({event.by})"
    return f"{event.reason}{who}".strip()


def _print_events(out: ConsoleOutput, answer: EventsView, *, heads: bool = True) -> None:
    rows = _event_rows(answer.events, answer.now)
    out.table(("TIME", "ABOUT", "", "WHY*") if heads else ("", "", "", "*"), rows)


def print_history(out: ConsoleOutput, events: Sequence[EventView], now: datetime) -> None:
    """What happened to one subject; nothing where there is no event."""
    if events:
        out.blank()
        rows = [(when, became, why) for when, _, became, why in _event_rows(events, now)]
        out.table(("TIME", "", "WHY*"), rows)


def _filter_params(job: str, node: str, claim: str) -> dict[str, str | int | float]:
    return {name: value for name, value in (("job", job), ("node", node), ("claim", claim)) if value}
