"""burstctl job, burstctl explain"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from burstd.cli import complete
from burstd.cli.output import Answer, Paper, money, names, print_json, styled
from burstd.cli.session import Json, Socket, session
from burstd.cli.times import ago, length

app = typer.Typer(help="Jobs of the burst partitions.", no_args_is_help=True)
JobId = Annotated[str, typer.Argument(metavar="JOB", help="123, 123_7 or 123+1.", autocompletion=complete.jobs)]
_CANDIDATES = 6


@app.command("list")
def list_jobs(
    ctx: typer.Context,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    waiting: Annotated[bool, typer.Option("--waiting", "-w", help="Only those that wait.")] = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Jobs in the queue, each with what burstd says about it."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/jobs", {"user": user} if user else None)
    found = [job for job in answer["jobs"] if not waiting or job["state"] == "PENDING"]
    if burstd.json:
        print_json(answer | {"jobs": found})
        return
    paper = Paper()
    if not found:
        paper.line("No job of a burst partition is in the queue.")
        return
    paper.table(("JOB", "USER", "STATE", "WAITS>", "WHY OR WHERE*"), [
        (
            _id(job), job["user"], styled(job["verdict"]) if job["verdict"] else job["state"].lower(),
            length(job["waiting_s"]) if job["waiting_s"] is not None else "", job["reason"] or names(job["nodes"]),
        )
        for job in found
    ])  # fmt: skip


@app.command("show")
def show_job(ctx: typer.Context, job_id: JobId, json: Json = False, socket: Socket = None) -> None:
    """One job: what it asks for, what was decided, the nodes made for it (also after it has ended)."""
    burstd = session(ctx, json, socket)
    answer = burstd.get(f"/jobs/{job_id}")
    if burstd.json:
        print_json(answer)
        return
    paper, now, job = Paper(), answer["now"], answer["job"]
    if job is None:
        paper.line((f"Job {answer['id']}", "bold"), " has left the queue.")
    else:
        waits = f" for {length(job['waiting_s'])}" if job["waiting_s"] is not None else ""
        paper.pairs([
            ("job", f"{_id(job)} {job['name']}".strip()),
            ("user", job["user"]),
            ("partitions", ", ".join(job["partitions"])),
            ("asks for", answer["asks"]),
            ("state", job["state"].lower() + waits),
            ("Slurm says", job["slurm_reason"]),
            ("nodes", names(job["nodes"], 20)),
        ])  # fmt: skip
    _remarks(paper, answer)
    if answer["nodes"]:
        paper.blank()
        paper.table(("NODE", "STATE", "SINCE>", "COST>", "OFFER", "REASON*"), [
            (n["slot"], styled(n["state"]), ago(n["since"], now), money(n["cost"]), n["offer"], n["reason"])
            for n in answer["nodes"]
        ])  # fmt: skip


def explain(ctx: typer.Context, job_id: JobId, json: Json = False, socket: Socket = None) -> None:
    """Why a job does or does not start: every choice there was, with its reason."""
    burstd = session(ctx, json, socket)
    answer = burstd.get(f"/jobs/{job_id}/explanation")
    if burstd.json:
        print_json(answer)
        return
    paper, job = Paper(), answer["job"]
    paper.line(
        (f"Job {answer['id']}", "bold"), f" of {job['user']}: " if job else ": ", styled_part(answer["verdict"]),
        f": {answer['summary']}.",
    )  # fmt: skip
    if answer["asks"]:
        paper.note(f"It asks for {answer['asks']}.")
    if answer["slurm"]:
        reason = f" ({job['slurm_reason']})" if job and job["slurm_reason"] else ""
        paper.note(f"Slurm says: {answer['slurm']}{reason}.")
    for remedy in answer["remedies"]:
        paper.note(f"What would help: {remedy}.", "bold")
    if len(answer["remarks"]) > 1:
        _remarks(paper, answer)
    if answer["serving"]:
        paper.blank()
        paper.table(("NODE", "STATE", "SINCE>", "WHY*"), [
            (s["slot"], styled(s["state"]), ago(s["since"], answer["now"]) if s["since"] else "", s["reason"])
            for s in answer["serving"]
        ])  # fmt: skip
    for way in answer["ways"]:
        _way(paper, way)


def styled_part(word: str) -> tuple[str, str]:
    """A verdict for a line."""
    text = styled(word)
    return text.plain, f"bold {text.style}".strip()


def _way(paper: Paper, way: Answer) -> None:
    paper.blank()
    state = f"lacks {way['lacks']}" if way["lacks"] else f"{way['free']} of {way['slots']} slots free"
    paper.line((f"Pool {way['pool']}", "bold"), f": {state}")
    if way["lacks"]:
        return
    shown = way["candidates"][:_CANDIDATES]
    paper.table(("", ">", "*"), [
        (c["offer"], f"{money(c['price_per_hour'])}/h" if c["price_per_hour"] else "", _use(c)) for c in shown
    ], indent=2)  # fmt: skip
    if len(way["candidates"]) > len(shown):
        paper.note(f"and {len(way['candidates']) - len(shown)} more (--json)", "dim")


def _use(candidate: Answer) -> Text:
    if candidate["chosen"]:
        return Text("chosen", "bold green")
    return Text(candidate["refused"], "yellow") if candidate["refused"] else Text("may be used", "green")


def _remarks(paper: Paper, answer: Answer) -> None:
    if not answer["remarks"]:
        return
    paper.blank()
    paper.table(("SAID BY", "", "SINCE>", "WHY*"), [
        (r["by"], styled(r["verdict"]), ago(r["since"], answer["now"]) if r["since"] else "", r["reason"])
        for r in answer["remarks"]
    ])  # fmt: skip


def _id(job: Answer) -> str:
    return f"{job['id']} (x{job['tasks']})" if job["tasks"] > 1 else str(job["id"])
