"""burstctl job"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli import complete
from burstd.cli.output import Answer, Paper, money, names, print_json, styled
from burstd.cli.session import Json, Socket, session
from burstd.cli.times import ago, length

app = typer.Typer(help="Jobs of the burst partitions.", no_args_is_help=True)
JobId = Annotated[str, typer.Argument(metavar="JOB", help="123, 123_7 or 123+1.", autocompletion=complete.jobs)]


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
    remarks(paper, answer)
    if answer["nodes"]:
        paper.blank()
        paper.table(("NODE", "STATE", "SINCE>", "COST>", "OFFER", "REASON*"), [
            (n["slot"], styled(n["state"]), ago(n["since"], now), money(n["cost"]), n["offer"], n["reason"])
            for n in answer["nodes"]
        ])  # fmt: skip


def remarks(paper: Paper, answer: Answer) -> None:
    """What was decided about a job, by whom."""
    if not answer["remarks"]:
        return
    paper.blank()
    paper.table(("SAID BY", "", "SINCE>", "WHY*"), [
        (r["by"], styled(r["verdict"]), ago(r["since"], answer["now"]) if r["since"] else "", r["reason"])
        for r in answer["remarks"]
    ])  # fmt: skip


def _id(job: Answer) -> str:
    return f"{job['id']} (x{job['tasks']})" if job["tasks"] > 1 else str(job["id"])
