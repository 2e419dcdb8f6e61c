"""burstctl stage"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from burstd.cli.complete import staged_jobs
from burstd.cli.event import rows_of
from burstd.cli.output import Answer, Paper, print_json, print_json_line
from burstd.cli.scale import say
from burstd.cli.session import Code, Json, Session, Socket, session
from burstd.cli.stage_pages import one_job, overview, usage_page

app = typer.Typer(help="The data of jobs: what is on its way, what is held, who takes up what.", no_args_is_help=True)
POLL_S = 1.0
_ENDS = frozenset({"home", "held", "cleared"})

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's number.", autocompletion=staged_jobs)]


@app.command("status")
def stage_status(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job.", autocompletion=staged_jobs)] = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Also what is over, newest first.")] = False,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=1000, help="With --all, at most so many.")] = 100,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C or the end of JOB's data.")
    ] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Each job's data and its transfers: how far, how fast, how long still, what was there already."""
    burstd = session(ctx, json, socket)
    if job and (every or user):
        burstd.fail(Code.USAGE, "Name a job, or choose several with --all and --user.")

    def answers() -> Iterator[Answer]:
        while True:
            answer: Answer
            if job:
                answer = burstd.get(f"/stage/{job}")
            else:
                params: dict[str, str | int | float] = {"user": user} if user else {}
                answer = burstd.get("/stage", params | ({"all": "true", "limit": number} if every else {}))
            yield answer
            if not watch or (job and answer["job"]["state"] in _ENDS):
                return
            time.sleep(POLL_S)

    try:
        if burstd.json:
            for answer in answers():
                (print_json_line if watch else print_json)(answer)
        else:
            Paper().redrawn(_page(answer, job, watch) for answer in answers())
    except KeyboardInterrupt:
        raise typer.Exit(Code.OK) from None


@app.command("retry")
def retry_stage(ctx: typer.Context, job: JobId, json: Json = False, socket: Socket = None) -> None:
    """Let a job's data that is held go on from where it stopped."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", f"/stage/{job}/retry"))


@app.command("discard")
def discard_output(
    ctx: typer.Context,
    job: JobId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Give up the output that a job's nodes still have, so that they may go. It cannot be taken back."""
    burstd = session(ctx, json, socket)
    if not yes:
        found = burstd.get(f"/stage/{job}")["job"]
        if burstd.json:
            burstd.fail(Code.USAGE, "With --json nobody is asked: say --yes.")
        nodes = ", ".join(found["nodes"]) or "its nodes"
        _sure(burstd, f"Output of job {job} on {nodes} that is not home yet will be lost. Give it up?")
    say(burstd, burstd.ask("POST", f"/stage/{job}/discard"))


@app.command("evict")
def evict(
    ctx: typer.Context,
    dataset: Annotated[str, typer.Option(metavar="NAME[@VERSION]", help="This data set.")] = "",
    tree: Annotated[str, typer.Option(metavar="DIGEST", help="This input, by its digest (status JOB --json).")] = "",
    user: Annotated[str, typer.Option(metavar="USER", help="What only this user has staged.")] = "",
    unneeded: Annotated[bool, typer.Option("--unneeded", help="All that no job needs.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Remove input from the store; never what a waiting or running job needs. It is sent again when it is asked for."""
    burstd = session(ctx, json, socket)
    chosen = [(kind, name) for kind, name in (("dataset", dataset), ("tree", tree), ("user", user)) if name]
    if unneeded:
        chosen.append(("unneeded", ""))
    if len(chosen) != 1:
        burstd.fail(Code.USAGE, "Choose one of --dataset, --tree, --user and --unneeded.")
    kind, name = chosen[0]
    say(burstd, burstd.ask("POST", "/stage/evict", {"kind": kind, "name": name}))


@app.command("usage")
def stage_usage(ctx: typer.Context, json: Json = False, socket: Socket = None) -> None:
    """What the store holds, and who takes up how much of his quota."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/stage/usage")
    if burstd.json:
        print_json(answer)
    else:
        usage_page(Paper(), answer)


def _page(answer: Answer, job: str, watch: bool) -> Callable[[Paper], None]:
    def draw(paper: Paper) -> None:
        if not job:
            overview(paper, answer)
            return
        one_job(paper, answer)
        if answer["history"] and not watch:
            paper.blank()
            rows = rows_of(answer["history"], answer["now"])
            paper.table(("TIME", "", "WHY*"), [(row[0], row[2], row[3]) for row in rows])

    return draw


def _sure(burstd: Session, question: str) -> None:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        sys.stderr.write("\n")
        burstd.fail(Code.USAGE, "Nobody answered; say --yes to do it without being asked.")
    if answer.strip().lower() not in ("y", "yes"):
        burstd.fail(Code.NO, "Nothing was done.")
