"""burstctl route"""

from __future__ import annotations

from typing import Annotated

import typer

from burstd.cli.job import JobArgument
from burstd.cli.output import ConsoleOutput, print_json
from burstd.cli.scale import print_result
from burstd.cli.session import JsonOption, SocketOption, api_client

app = typer.Typer(
    help="Web addresses of ports of your running jobs, on clouds that have them (OpenShift). They are public: whoever "
    "knows one reaches the port, so the program there must ask for a token or password of its own. A job's end closes "
    "them. For yourself alone, use burstctl port-forward.",
    no_args_is_help=True,
)


@app.command("open")
def open_route(
    ctx: typer.Context,
    job_id: JobArgument,
    port: Annotated[
        int, typer.Argument(metavar="PORT", min=1024, max=65535, help="What the job listens at, on all addresses.")
    ],
    node: Annotated[str, typer.Option(help="One of the job's nodes; default: the first.")] = "",
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Give a port of your running job a public web address (https)."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.request("POST", f"/jobs/{job_id}/routes", {"port": port, "node": node})
    if burstd.json:
        print_json(answer)
        return
    out = ConsoleOutput()
    out.line((answer["url"] or "The cluster has not chosen its address so far: burstctl route list.", "bold"))
    out.note(
        f"Port {port} of {answer['node']} is public there, until job {answer['job']} ends: what listens must have a "
        "token or password of its own.",
        "yellow",
    )


@app.command("list")
def list_routes(ctx: typer.Context, json: JsonOption = False, socket: SocketOption = None) -> None:
    """The open ones of your jobs; for administrators, everyone's."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get("/routes")
    if burstd.json:
        print_json(answer)
        return
    out = ConsoleOutput()
    if not answer["routes"]:
        out.line("No route is open.")
        return
    rows = [(r["job"], str(r["port"]), r["node"], r["provider"], r["url"]) for r in answer["routes"]]
    out.table(("JOB", "PORT>", "NODE", "PROVIDER", "ADDRESS*"), rows)


@app.command("close")
def close_route(
    ctx: typer.Context,
    job_id: JobArgument,
    port: Annotated[int, typer.Argument(metavar="PORT", min=0, max=65535, help="Default: all of the job's.")] = 0,
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Close a job's routes."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("DELETE", f"/jobs/{job_id}/routes", params={"port": port}))
