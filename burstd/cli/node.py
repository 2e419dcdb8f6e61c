"""burstctl node"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from burstd.cli import complete
from burstd.cli.event import rows_of
from burstd.cli.output import Answer, Paper, money, names, print_json, styled
from burstd.cli.scale import say
from burstd.cli.session import Json, Socket, session
from burstd.cli.times import age, ago

app = typer.Typer(help="Nodes and the machines behind them.", no_args_is_help=True)
Names = Annotated[
    list[str],
    typer.Argument(metavar="NODES...", help="Host lists (gpu[1-4]) or claim ids.", autocompletion=complete.nodes),
]
Node = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name or a claim's id.", autocompletion=complete.nodes)
]


@app.command("list")
def list_nodes(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also slots without a machine.")] = False,
    pool: Annotated[str, typer.Option(help="Only this pool.", autocompletion=complete.pools)] = "",
    state: Annotated[str, typer.Option(help="Only this state: booting, open, failed ...")] = "",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Nodes with a machine, and slots that are held."""
    burstd = session(ctx, json, socket)
    answer = burstd.get("/nodes", {"all": str(every).lower()})
    found = [n for n in answer["nodes"] if pool in ("", n["pool"]) and state in ("", n["state"])]
    if burstd.json:
        print_json(answer | {"nodes": found})
        return
    paper = Paper()
    if not found:
        paper.line("No such node." if pool or state else "No node has a machine, and no slot is held.")
        return
    now = answer["now"]
    paper.table(("NODE", "STATE", "SINCE>", "COST>", "INSTANCE", "FOR*"), [
        (n["slot"], _state(n), ago(n["since"], now) if n["since"] else "", money(n["cost"]), n["instance"], _purpose(n))
        for n in found
    ])  # fmt: skip


@app.command("show")
def show_node(
    ctx: typer.Context,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name or a claim's id.", autocompletion=complete.nodes)
    ],
    json: Json = False,
    socket: Socket = None,
) -> None:
    """One node, or one claim (past ones too), with its history."""
    burstd = session(ctx, json, socket)
    answer = burstd.get(f"/nodes/{node}")
    if burstd.json:
        print_json(answer)
        return
    paper, n, now = Paper(), answer["node"], answer["now"]
    held, slurm = n["held"], n["slurm"]
    paper.pairs([
        ("node", f"{n['slot']} (pool {n['pool']})"),
        ("state", Text.assemble(_state(n), f" for {age(n['since'], now)}" if n["since"] else "")),
        ("reason", n["reason"]),
        ("error", n["error"]),
        ("held", f"by {held['by']}, {ago(held['since'], now)}: {held['reason']}" if held else ""),
        ("made for", _purpose(n) if n["claim"] else ""),
        ("offer", f"{n['offer']} at {money(n['price_per_hour'])}/h" if n["offer"] else ""),
        ("cost so far", money(n["cost"], 4)),
        ("instance", n["instance"]),
        ("address", n["address"]),
        ("image", n["image"]),
        ("claim", n["claim"]),
        ("asked for", f"{n['attempts']} times" if n["attempts"] > 1 else ""),
        ("Slurm", f"{slurm['state']}{' ' + slurm['reason'] if slurm['reason'] else ''}" if slurm else ""),
        ("reservation", slurm["reservation"] if slurm else ""),
    ])  # fmt: skip
    if answer["history"]:
        paper.blank()
        paper.table(("TIME", "", "WHY*"), [(row[0], row[2], row[3]) for row in rows_of(answer["history"], now)])


@app.command("drain")
def drain_nodes(
    ctx: typer.Context,
    nodes: Names,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown to others.")] = "",
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Keep new jobs off; when the running ones have ended the machine goes, and none comes back until released."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", "/nodes/hold", {"nodes": nodes, "reason": reason}))


@app.command("release")
def release_nodes(ctx: typer.Context, nodes: Names, json: Json = False, socket: Socket = None) -> None:
    """Let drained nodes back into use."""
    burstd = session(ctx, json, socket)
    say(burstd, burstd.ask("POST", "/nodes/release", {"nodes": nodes}))


def _state(node: Answer) -> Text:
    text = styled(node["state"])
    if node["error"]:
        text.append(f" ({node['error']})", "red")
    if node["held"] and node["claim"]:
        text.append(", held", "yellow")
    return text


def _purpose(node: Answer) -> str:
    if node["held"] and not node["claim"]:
        return f"{node['held']['reason']} ({node['held']['by']})"
    if node["jobs"]:
        return f"job {names(node['jobs'], 3)}" + (" (gang)" if node["gang"] else "")
    return {"demand": "jobs", "floor": "a policy's minimum", "pin": "burstctl scale",
            "slurm": "Slurm's own call"}.get(node["cause"], "")  # fmt: skip
