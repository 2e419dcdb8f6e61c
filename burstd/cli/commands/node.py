"""burstctl node"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.api.answers.text import abbreviated_list, ago, elapsed_text, money_text
from burstd.cli.commands.event import print_history
from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption, read_settings
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, node_names, pool_names, with_client
from burstd.cli.watch import listing

if TYPE_CHECKING:
    from burstd.api.answers.nodes import FaultyNodesView, NodeDetailView, NodesView, NodeView, ReferenceView

app = typer.Typer(help="Nodes and the machines behind them.", no_args_is_help=True)
_MAX_ANSWER_BYTES = 512 << 10
_SRUN_TIMEOUT_S = 90.0
_NODE_BUSY_S = 30
"""Seconds after which srun gives up where the node has no room."""
NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODES...", help="Host lists (gpu[1-4]) or claim ids.", autocompletion=node_names)
]


@app.command("list")
@listing
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

    burstd.show(NodeDetailView, burstd.get_json(f"/nodes/{node}"), print_node)


def print_node(out: ConsoleOutput, answer: NodeDetailView) -> None:
    """One node or claim, with its history."""
    from burstd.api.answers.nodes import ON_PREMISES

    n, now = answer.node, answer.now
    slot_hold, slurm = n.held, n.slurm
    out.pairs([
        ("node", f"{n.slot} ({n.pool})" if n.pool == ON_PREMISES else f"{n.slot} (pool {n.pool})"),
        ("state", Text.assemble(_state_text(n), f" for {elapsed_text(n.since, now)}" if n.since else "")),
        ("reason", n.reason),
        ("error", n.error),
        ("line", n.line),
        ("held", f"by {slot_hold.by}, {ago(slot_hold.since, now)}: {slot_hold.reason}" if slot_hold else ""),
        ("made for", _purpose_text(n) if n.claim else ""),
        ("offer", f"{n.offer} at {money_text(n.price_per_hour)}/h" if n.offer else ""),
        ("fabric", n.fabric),
        ("cost so far", money_text(n.cost, 4)),
        ("instance", n.instance),
        ("was node", f"{n.reused_from} until {ago(n.created, now)}" if n.reused_from and n.created else ""),
        ("address", n.address),
        ("image", n.image),
        ("claim", n.claim),
        ("validated", answer.validated),
        ("fabric test", answer.fabric_test),
        ("asked for", f"{n.attempts} times" if n.attempts > 1 else ""),
        ("Slurm", f"{slurm.state}{' ' + slurm.reason if slurm.reason else ''}" if slurm else ""),
        ("free shards", f"{', '.join(slurm.free_shards)} of each GPU" if slurm and slurm.free_shards else ""),
        ("reservation", slurm.reservation if slurm else ""),
    ])  # fmt: skip
    print_history(out, answer.history, now)


@app.command("faults")
@listing
def list_node_faults(
    burstd: ApiClient,
    since: Annotated[str, typer.Option(metavar="TIME", help="From: 90d (ago), 2026-09-01; default: all.")] = "",
) -> None:
    """Nodes on premises that drained themselves for a fault, or that Slurm lost: how often, and the last fault."""
    from burstd.api.answers.nodes import FaultyNodesView

    answer = burstd.get_json("/node-faults", {**burstd.parse_times(since=since)})
    burstd.show(FaultyNodesView, answer, _print_faults)


def _print_faults(out: ConsoleOutput, answer: FaultyNodesView) -> None:
    if not answer.nodes:
        out.line("No node on premises had a fault.")
        return
    out.table(
        ("NODE", "FAULTS>", "LAST>", "FAULT*"),
        [(n.node, str(n.faults), ago(n.last, answer.now), n.reason) for n in answer.nodes],
    )


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


@app.command("watch-script")
@with_client
def watch_script(burstd: ApiClient, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Print the watch over nodes of the site's own, for burstd-node-watch.service; the daemon need not run."""
    from burstd.node.own_nodes import own_watch_script

    typer.echo(own_watch_script(read_settings(burstd, config).health.rules()), nl=False)


@app.command("reference")
@with_client
def reference_node(
    burstd: ApiClient,
    node: Annotated[str, typer.Argument(metavar="[NODE]", help="A node of the site's own, by its name in Slurm.")] = "",
    partition: Annotated[str, typer.Option("--partition", "-p", help="Enter the node through this partition.")] = "",
    file: Annotated[
        str, typer.Option("--file", metavar="FILE", help="Take what --script printed there instead; -: standard input.")
    ] = "",
    script: Annotated[bool, typer.Option("--script", help="Print the script that looks at a node.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Compare with no node any more.")] = False,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Compare machines with a node of the site: looks at NODE through srun. Without NODE: shows the reference."""
    if sum((bool(node or partition) and not file, bool(file), script, clear)) > 1 or (partition and not node):
        burstd.fail(ExitCode.USAGE, "choose one: a NODE (with or without --partition), --file, --script or --clear.")
    if clear:
        burstd.run_command("DELETE", "/reference")
        return
    if file:
        burstd.run_command("PUT", "/reference", {"node": node, "answer": _read_answer(burstd, file)})
        return
    answer = burstd.get_json("/reference", {"node": node})
    if script:
        typer.echo(answer["script"], nl=False)
    elif node:
        said = _facts_through_slurm(burstd, config, node, partition, answer["script"])
        burstd.run_command("PUT", "/reference", {"node": node, "answer": said})
    else:
        from burstd.api.answers.nodes import ReferenceView

        burstd.show(ReferenceView, answer, _print_reference)


def _read_answer(burstd: ApiClient, file: str) -> str:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as stream:
            return stream.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except OSError as error:
        burstd.fail(ExitCode.USAGE, f"{file} cannot be read: {error.strerror}.")


def _facts_through_slurm(burstd: ApiClient, config: Path, node: str, partition: str, script: str) -> str:
    """What the script prints in a job step on the node."""
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
    from burstd.slurm.commands.parsing import parse_records
    from burstd.slurm.commands.run import SlurmCommands

    slurm = read_settings(burstd, config).slurm
    commands = SlurmCommands(timeout_s=_SRUN_TIMEOUT_S, bin_dir=slurm.bin_dir, conf=slurm.conf)
    by_hand = f"burstctl node reference --script | ssh {node} sh | burstctl node reference {node} --file -"
    try:
        found = parse_records(commands("scontrol", "--oneliner", "show", "node", node), "NodeName")
        partition = partition or next(found, {}).get("Partitions", "").partition(",")[0]
        return commands(
            "srun", f"--nodelist={node}", f"--partition={partition}", "--nodes=1", "--ntasks=1",
            f"--immediate={_NODE_BUSY_S}", "--time=2", "--mem=100", "--chdir=/", "--job-name=burstctl-reference",
            "--quiet", "sh", "-c", script,
        )  # fmt: skip
    except (SchedulerRefused, SchedulerUnavailable) as error:
        burstd.fail(ExitCode.NEGATIVE, f"{error}. Without Slurm: {by_hand}")


def _print_reference(out: ConsoleOutput, answer: ReferenceView) -> None:
    if not answer.node:
        out.line("There is no reference: choose one with 'burstctl node reference NODE'.")
        return
    out.pairs([("reference", f"{answer.node}, seen {ago(answer.seen, answer.now)}"), *answer.values.items()])
    for warning in answer.warnings:
        out.note(f"Warning: {warning}.")
    if answer.missing:
        out.note(f"Not looked for when it was seen: {', '.join(answer.missing)}. Take it anew.")


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
