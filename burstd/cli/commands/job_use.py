"""What a job used, in burstctl job show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burstd.api.answers.text import ago, duration_text, money_text
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode
from burstd.domain.units import memory_text

if TYPE_CHECKING:
    from burstd.api.answers.job_use import GpuUseView, JobUseView, NodeUseView

MAX_NODES = 10
"""Of a job on more, those are printed that used least."""
_LITTLE_IDLE_S = 360.0
"""Of less idle time, over all GPUs, no sum is printed: it is 0.0 hours, or nearly."""
_SHARES = {"mig": "part (MIG)", "shard": "shared"}


def find_use(burstd: ApiClient, job_id: str) -> Any:
    """The answer about what a job used; None where nothing is known of it."""
    try:
        status, answer = burstd.request_status("GET", f"/jobs/{job_id}/use")
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))
    return None if status == 404 else burstd.answer_or_exit(status, answer)


def write_plot(burstd: ApiClient, job_id: str, file: Path) -> None:
    """Writes the picture, to standard output where ``file`` is ``-``; ends the program where that cannot be."""
    answer = burstd.get_json(f"/jobs/{job_id}/use/plot")
    if str(file) == "-":
        sys.stdout.write(f"{answer['svg']}\n")
        return
    try:
        file.write_text(str(answer["svg"]), encoding="utf-8")
    except OSError as error:
        burstd.fail(ExitCode.NEGATIVE, f"{file} cannot be written: {error.strerror}.")


def print_use(out: ConsoleOutput, use: JobUseView) -> None:
    """A table of its nodes, one of its GPUs, idle GPU hours with their cost, and advice."""
    out.blank()
    state = f"run {use.restarts + 1}" if use.restarts else "its run"
    ended = f"ended {ago(use.ended, use.now)}" if use.ended else "so far"
    out.line(("Used", "bold"), f" by {state}, {ended}", f"; {use.missing}" if use.missing else "")
    nodes = use.nodes
    if len(nodes) > MAX_NODES:
        nodes = sorted(nodes, key=lambda node: (-sum(gpu.idle_s for gpu in node.gpus), node.cpus_mean))[:MAX_NODES]
        out.line(f"{_range_text(use.nodes)} Least was used by:")
    out.table(
        ("NODE", "CPUS>", "MEAN>", "PEAK>", "MEMORY>", "MEAN>", "PEAK>", "READ>", "WRITTEN>", "MEASURED>"),
        [_node_row(node) for node in nodes],
    )
    if len(nodes) < len(use.nodes):
        out.note(f"and {len(use.nodes) - len(nodes)} more nodes (--json has all)")
    gpus = [_gpu_row(node, gpu) for node in nodes for gpu in node.gpus]
    if gpus:
        out.blank()
        out.table(("NODE", "GPU>", "MODEL", "MEAN>", "PEAK>", "MEMORY>", "OF>", "IDLE>", "IDLE NOW>", ""), gpus)
    if use.gpu_idle_seconds >= _LITTLE_IDLE_S:
        cost = " and ".join(money_text(amount) for amount in use.gpu_idle_cost)
        paid = f", which cost about {cost}" if cost else ""
        hours = use.gpu_idle_seconds / 3600
        out.note(f"{hours:.1f} of {use.gpu_seconds / 3600:.1f} GPU hours were idle{paid}.", "yellow")
    for sentence in use.advice:
        out.note(f"{sentence}.", "bold")


def _range_text(nodes: list[NodeUseView]) -> str:
    cpus, memory = [node.cpus_mean for node in nodes], [node.memory_peak_mib for node in nodes]
    most = " to ".join(dict.fromkeys([memory_text(min(memory)), memory_text(max(memory))]))
    return (
        f"Its {len(nodes)} nodes used {min(cpus):.1f} to {max(cpus):.1f} CPUs on average and {most} of memory at most."
    )


def _node_row(node: NodeUseView) -> tuple[str, ...]:
    length = duration_text(node.measured_s)
    return (
        node.node, str(node.cpus or ""), f"{node.cpus_mean:.1f}", f"{node.cpus_peak:.1f}",
        memory_text(node.memory_mib) if node.memory_mib else "", memory_text(node.memory_mean_mib),
        memory_text(node.memory_peak_mib), _moved(node.read_mib), _moved(node.written_mib),
        f"{length} (cut)" if node.cut else length,
    )  # fmt: skip


def _gpu_row(node: NodeUseView, gpu: GpuUseView) -> tuple[str, ...]:
    return (
        node.node, str(gpu.index), gpu.model, _percent(gpu.utilisation_mean), _percent(gpu.utilisation_peak),
        memory_text(gpu.memory_peak_mib), memory_text(gpu.memory_mib), duration_text(gpu.idle_s),
        duration_text(gpu.idle_now_s) if gpu.idle_now_s and not node.ended else "", _SHARES.get(gpu.share, ""),
    )  # fmt: skip


def _percent(value: float | None) -> str:
    return f"{value:.0f} %" if value is not None else "?"


def _moved(mebibytes: int | None) -> str:
    return memory_text(mebibytes) if mebibytes is not None else "?"
