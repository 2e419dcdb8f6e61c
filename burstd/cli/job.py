"""burstctl job"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli import complete
from burstd.cli.output import ConsoleOutput, JsonObject, abbreviated_list, money_text, print_json, styled_state
from burstd.cli.session import JsonOption, SocketOption, api_client
from burstd.cli.times import ago, duration_text

app = typer.Typer(help="Jobs of the burst partitions.", no_args_is_help=True)
JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="123, 123_7 or 123+1.", autocompletion=complete.job_ids)
]


@app.command("list")
def list_jobs(
    ctx: typer.Context,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    waiting: Annotated[bool, typer.Option("--waiting", "-w", help="Only those that wait.")] = False,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Jobs in the queue, each with what burstd says about it."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get("/jobs", {"user": user} if user else None)
    found = [job for job in answer["jobs"] if not waiting or job["state"] == "PENDING"]
    if burstd.json:
        print_json(answer | {"jobs": found})
        return
    out = ConsoleOutput()
    if not found:
        out.line("No job of a burst partition is in the queue.")
        return
    out.table(
        ("JOB", "USER", "STATE", "WAITS>", "WHY OR WHERE*"),
        [
            (
                _id_text(job),
                job["user"],
                styled_state(job["verdict"]) if job["verdict"] else job["state"].lower(),
                duration_text(job["waiting_s"]) if job["waiting_s"] is not None else "",
                job["reason"] or abbreviated_list(job["nodes"]),
            )
            for job in found
        ],
    )


@app.command("show")
def show_job(ctx: typer.Context, job_id: JobArgument, json: JsonOption = False, socket: SocketOption = None) -> None:
    """One job: what it asks for, what was decided, the nodes made for it (also after it has ended)."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get(f"/jobs/{job_id}")
    if burstd.json:
        print_json(answer)
        return
    out, now, job = ConsoleOutput(), answer["now"], answer["job"]
    if job is None:
        out.line((f"Job {answer['id']}", "bold"), " has left the queue.")
    else:
        waits = f" for {duration_text(job['waiting_s'])}" if job["waiting_s"] is not None else ""
        out.pairs([
            ("job", f"{_id_text(job)} {job['name']}".strip()),
            ("user", job["user"]),
            ("partitions", ", ".join(job["partitions"])),
            ("asks for", answer["asks"]),
            ("state", job["state"].lower() + waits),
            ("Slurm says", job["slurm_reason"]),
            ("nodes", abbreviated_list(job["nodes"], 20)),
        ])  # fmt: skip
    print_remarks(out, answer)
    if answer["nodes"]:
        out.blank()
        out.table(("NODE", "STATE", "SINCE>", "COST>", "OFFER", "REASON*"), [
            (n["slot"], styled_state(n["state"]), ago(n["since"], now), money_text(n["cost"]), n["offer"], n["reason"])
            for n in answer["nodes"]
        ])  # fmt: skip


def print_remarks(out: ConsoleOutput, answer: JsonObject) -> None:
    """What was decided about a job, by whom."""
    if not answer["remarks"]:
        return
    out.blank()
    out.table(("SAID BY", "", "SINCE>", "WHY*"), [
        (r["by"], styled_state(r["verdict"]), ago(r["since"], answer["now"]) if r["since"] else "", r["reason"])
        for r in answer["remarks"]
    ])  # fmt: skip


def _id_text(job: JsonObject) -> str:
    return f"{job['id']} (x{job['tasks']})" if job["tasks"] > 1 else str(job["id"])
