"""burstctl node"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from burstd.cli import complete
from burstd.cli.event import event_rows
from burstd.cli.output import ConsoleOutput, JsonObject, abbreviated_list, money_text, print_json, styled_state
from burstd.cli.scale import print_result
from burstd.cli.session import JsonOption, SocketOption, api_client
from burstd.cli.times import ago, elapsed_text

app = typer.Typer(help="Nodes and the machines behind them.", no_args_is_help=True)
NodesArgument = Annotated[
    list[str],
    typer.Argument(metavar="NODES...", help="Host lists (gpu[1-4]) or claim ids.", autocompletion=complete.node_names),
]
NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="A node's name or a claim's id.", autocompletion=complete.node_names)
]


@app.command("list")
def list_nodes(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also slots without a machine.")] = False,
    pool: Annotated[str, typer.Option(help="Only this pool.", autocompletion=complete.pool_names)] = "",
    state: Annotated[str, typer.Option(help="Only this state: booting, in_service, failed ...")] = "",
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Nodes with a machine, and slots that are held."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get("/nodes", {"all": str(every).lower()})
    found = [n for n in answer["nodes"] if pool in ("", n["pool"]) and state in ("", n["state"])]
    if burstd.json:
        print_json(answer | {"nodes": found})
        return
    out = ConsoleOutput()
    if not found:
        out.line("No such node." if pool or state else "No node has a machine, and no slot is held.")
        return
    now = answer["now"]
    out.table(
        ("NODE", "STATE", "SINCE>", "COST>", "INSTANCE", "FOR*"),
        [
            (
                n["slot"],
                _state_text(n),
                ago(n["since"], now) if n["since"] else "",
                money_text(n["cost"]),
                n["instance"],
                _purpose_text(n),
            )
            for n in found
        ],
    )


@app.command("show")
def show_node(
    ctx: typer.Context,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name or a claim's id.", autocompletion=complete.node_names)
    ],
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """One node, or one claim (past ones too), with its history."""
    burstd = api_client(ctx, json, socket)
    answer = burstd.get(f"/nodes/{node}")
    if burstd.json:
        print_json(answer)
        return
    out, n, now = ConsoleOutput(), answer["node"], answer["now"]
    slot_hold, slurm = n["held"], n["slurm"]
    out.pairs([
        ("node", f"{n['slot']} (pool {n['pool']})"),
        ("state", Text.assemble(_state_text(n), f" for {elapsed_text(n['since'], now)}" if n["since"] else "")),
        ("reason", n["reason"]),
        ("error", n["error"]),
        ("held", f"by {slot_hold['by']}, {ago(slot_hold['since'], now)}: {slot_hold['reason']}" if slot_hold else ""),
        ("made for", _purpose_text(n) if n["claim"] else ""),
        ("offer", f"{n['offer']} at {money_text(n['price_per_hour'])}/h" if n["offer"] else ""),
        ("cost so far", money_text(n["cost"], 4)),
        ("instance", n["instance"]),
        ("address", n["address"]),
        ("image", n["image"]),
        ("claim", n["claim"]),
        ("asked for", f"{n['attempts']} times" if n["attempts"] > 1 else ""),
        ("Slurm", f"{slurm['state']}{' ' + slurm['reason'] if slurm['reason'] else ''}" if slurm else ""),
        ("reservation", slurm["reservation"] if slurm else ""),
    ])  # fmt: skip
    if answer["history"]:
        out.blank()
        out.table(("TIME", "", "WHY*"), [(row[0], row[2], row[3]) for row in event_rows(answer["history"], now)])


@app.command("drain")
def drain_nodes(
    ctx: typer.Context,
    nodes: NodesArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown to others.")] = "",
    json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Keep new jobs off; when the running ones have ended the machine goes, and none comes back until released."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("POST", "/nodes/hold", {"nodes": nodes, "reason": reason}))


@app.command("release")
def release_nodes(
    ctx: typer.Context, nodes: NodesArgument, json: JsonOption = False, socket: SocketOption = None
) -> None:
    """Let drained nodes back into use."""
    burstd = api_client(ctx, json, socket)
    print_result(burstd, burstd.request("POST", "/nodes/release", {"nodes": nodes}))


def _state_text(node: JsonObject) -> Text:
    text = styled_state(node["state"])
    if node["error"]:
        text.append(f" ({node['error']})", "red")
    if node["held"] and node["claim"]:
        text.append(", held", "yellow")
    return text


def _purpose_text(node: JsonObject) -> str:
    if node["held"] and not node["claim"]:
        return f"{node['held']['reason']} ({node['held']['by']})"
    if node["jobs"]:
        return f"job {abbreviated_list(node['jobs'], 3)}" + (" (gang)" if node["gang"] else "")
    return {"demand": "jobs", "floor": "a policy's minimum", "pin": "burstctl scale",
            "slurm": "Slurm's own call"}.get(node["cause"], "")  # fmt: skip
