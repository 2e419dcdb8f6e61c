"""burstctl stage"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from burstd.cli.complete import staged_job_ids
from burstd.cli.event import event_rows
from burstd.cli.output import ConsoleOutput, JsonObject, print_json, print_json_line
from burstd.cli.scale import print_result
from burstd.cli.session import ApiClient, ExitCode, JsonOption, SocketOption, api_client
from burstd.cli.stage_pages import print_job_staging, print_staging_list, print_staging_usage

app = typer.Typer(help="The data of jobs: what is on its way, what is held, who takes up what.", no_args_is_help=True)
WATCH_INTERVAL_S = 1.0
_FINAL_STATES = frozenset({"home", "held", "cleared"})

StagedJobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's number.", autocompletion=staged_job_ids)
]


@app.command("status")
def stage_status(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job.", autocompletion=staged_job_ids)] = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Also what is over, newest first.")] = False,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=1000, help="With --all, at most so many.")] = 100,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C or the end of JOB's data.")
    ] = False,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Each job's data and its transfers: how far, how fast, how long still, what was there already."""
    burstd = api_client(ctx, json, socket)
    if job and (every or user):
        burstd.fail(ExitCode.USAGE, "Name a job, or choose several with --all and --user.")

    def answers() -> Iterator[JsonObject]:
        while True:
            answer: JsonObject
            if job:
                answer = burstd.get(f"/stage/{job}")
            else:
                params: dict[str, str | int | float] = {"user": user} if user else {}
                answer = burstd.get("/stage", params | ({"all": "true", "limit": number} if every else {}))
            yield answer
            if not watch or (job and answer["job"]["state"] in _FINAL_STATES):
                return
            time.sleep(WATCH_INTERVAL_S)

    try:
        if burstd.json:
            for answer in answers():
                (print_json_line if watch else print_json)(answer)
        else:
            ConsoleOutput().live_pages(_page_drawer(answer, job, watch) for answer in answers())
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.OK) from None


@app.command("retry")
def retry_stage(
    ctx: typer.Context, job: StagedJobArgument, json: JsonOption = False, socket: SocketOption = None
) -> None:
    """Let a job's data that is held go on from where it stopped."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("POST", f"/stage/{job}/retry"))


@app.command("discard")
def discard_output(
    ctx: typer.Context,
    job: StagedJobArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Give up the output that a job's nodes still have, so that they may go. It cannot be taken back."""
    burstd = api_client(ctx, json, socket)
    if not yes:
        found = burstd.get(f"/stage/{job}")["job"]
        if burstd.json:
            burstd.fail(ExitCode.USAGE, "With --json nobody is asked: say --yes.")
        nodes = ", ".join(found["nodes"]) or "its nodes"
        _confirm(burstd, f"Output of job {job} on {nodes} that is not home yet will be lost. Give it up?")
    print_result(burstd, burstd.request("POST", f"/stage/{job}/discard"))


@app.command("evict")
def evict(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Option(metavar="NAME[@VERSION]", help="This data set.")] = "",
    tree: Annotated[str, typer.Option(metavar="DIGEST", help="This input, by its digest (status JOB --json).")] = "",
    user: Annotated[str, typer.Option(metavar="USER", help="What only this user has staged.")] = "",
    unneeded: Annotated[bool, typer.Option("--unneeded", help="All that no job needs.")] = False,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Remove input from the store; never what a waiting or running job needs. It is sent again when it is asked for."""
    burstd = api_client(ctx, json, socket)
    chosen = [(kind, name) for kind, name in (("dataset", dataset), ("tree", tree), ("user", user)) if name]
    if unneeded:
        chosen.append(("unneeded", ""))
    if len(chosen) != 1:
        burstd.fail(ExitCode.USAGE, "Choose one of --dataset, --tree, --user and --unneeded.")
    kind, name = chosen[0]
    print_result(burstd, burstd.request("POST", "/stage/evict", {"kind": kind, "name": name}))


@app.command("usage")
def stage_usage(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """What the store holds, and who takes up how much of his quota."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get("/stage/usage")
    if burstd.json:
        print_json(answer)
    else:
        print_staging_usage(ConsoleOutput(), answer)


def _page_drawer(answer: JsonObject, job: str, watch: bool) -> Callable[[ConsoleOutput], None]:
    def draw(out: ConsoleOutput) -> None:
        if not job:
            print_staging_list(out, answer)
            return
        print_job_staging(out, answer)
        if answer["history"] and not watch:
            out.blank()
            rows = event_rows(answer["history"], answer["now"])
            out.table(("TIME", "", "WHY*"), [(row[0], row[2], row[3]) for row in rows])

    return draw


def _confirm(burstd: ApiClient, question: str) -> None:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        burstd.fail(ExitCode.USAGE, "Nobody answered; say --yes to do it without being asked.")
    if answer.strip().lower() not in ("y", "yes"):
        burstd.fail(ExitCode.NEGATIVE, "Nothing was done.")
