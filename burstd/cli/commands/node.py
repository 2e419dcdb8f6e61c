"""burstctl node"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.cli.commands.event import print_history
from burstd.cli.output import ConsoleOutput, abbreviated_list, ago, elapsed_text, money_text, styled_state
from burstd.cli.session import ApiClient, node_names, pool_names, with_client

if TYPE_CHECKING:
    from burstd.api.answers.nodes import NodeDetailView, NodesView, NodeView

app = typer.Typer(help="Nodes and the machines behind them.", no_args_is_help=True)
NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODES...", help="Host lists (gpu[1-4]) or claim ids.", autocompletion=node_names)
]


@app.command("list")
@with_client
def list_nodes(
    burstd: ApiClient,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also slots without a machine.")] = False,
    pool: Annotated[str, typer.Option(help="Only this pool.", autocompletion=pool_names)] = "",
    state: Annotated[str, typer.Option(help="Only this state: booting, in_service, failed ...")] = "",
) -> None:
    """Nodes with a machine, and slots that are held."""
    from burstd.api.answers.nodes import NodesView

    answer = burstd.get_json("/nodes", {"all": str(every).lower()})
    answer["nodes"] = [n for n in answer["nodes"] if pool in ("", n["pool"]) and state in ("", n["state"])]
    none = "No such node." if pool or state else "No node has a machine, and no slot is held."
    burstd.show(NodesView, answer, lambda out, found: _print_nodes(out, found, none))


def _print_nodes(out: ConsoleOutput, answer: NodesView, none: str) -> None:
    if not answer.nodes:
        out.line(none)
        return
    now = answer.now
    out.table(
        ("NODE", "STATE", "SINCE>", "COST>", "INSTANCE", "FOR*"),
        [
            (n.slot, _state_text(n), ago(n.since, now, ""), money_text(n.cost), n.instance, _purpose_text(n))
            for n in answer.nodes
        ],
    )


@app.command("show")
@with_client
def show_node(
    burstd: ApiClient,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="A node's name or a claim's id.", autocompletion=node_names)
    ],
) -> None:
    """One node, or one claim (past ones too), with its history."""
    from burstd.api.answers.nodes import NodeDetailView

    burstd.show(NodeDetailView, burstd.get_json(f"/nodes/{node}"), _print_node)


def _print_node(out: ConsoleOutput, answer: NodeDetailView) -> None:
    n, now = answer.node, answer.now
    slot_hold, slurm = n.held, n.slurm
    out.pairs([
        ("node", f"{n.slot} (pool {n.pool})"),
        ("state", Text.assemble(_state_text(n), f" for {elapsed_text(n.since, now)}" if n.since else "")),
        ("reason", n.reason),
        ("error", n.error),
        ("held", f"by {slot_hold.by}, {ago(slot_hold.since, now)}: {slot_hold.reason}" if slot_hold else ""),
        ("made for", _purpose_text(n) if n.claim else ""),
        ("offer", f"{n.offer} at {money_text(n.price_per_hour)}/h" if n.offer else ""),
        ("cost so far", money_text(n.cost, 4)),
        ("instance", n.instance),
        ("address", n.address),
        ("image", n.image),
        ("claim", n.claim),
        ("asked for", f"{n.attempts} times" if n.attempts > 1 else ""),
        ("Slurm", f"{slurm.state}{' ' + slurm.reason if slurm.reason else ''}" if slurm else ""),
        ("reservation", slurm.reservation if slurm else ""),
    ])  # fmt: skip
    print_history(out, answer.history, now)


@app.command("drain")
@with_client
def drain_nodes(
    burstd: ApiClient,
    nodes: NodesArgument,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown to others.")] = "",
) -> None:
    """Keep new jobs off; when the running ones have ended the machine goes, and none comes back until released."""
    burstd.run_command("POST", "/nodes/hold", {"nodes": nodes, "reason": reason})


@app.command("release")
@with_client
def release_nodes(burstd: ApiClient, nodes: NodesArgument) -> None:
    """Let drained nodes back into use."""
    burstd.run_command("POST", "/nodes/release", {"nodes": nodes})


def _state_text(node: NodeView) -> Text:
    text = styled_state(node.state)
    if node.error:
        text.append(f" ({node.error})", "red")
    if node.held and node.claim:
        text.append(", held", "yellow")
    return text


def _purpose_text(node: NodeView) -> str:
    if node.held and not node.claim:
        return f"{node.held.reason} ({node.held.by})"
    if node.jobs:
        return f"job {abbreviated_list(node.jobs, 3)}" + (" (gang)" if node.gang else "")
    return {"demand": "jobs", "floor": "a policy's minimum", "pin": "burstctl scale",
            "slurm": "Slurm's own call"}.get(node.cause, "")  # fmt: skip
