"""burstctl project"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from burstd.api.answers.text import duration_text, local_time_text, parse_duration, plural
from burstd.cli.commands.event import print_history
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, ExitCode, completion, confirm, with_client
from burstd.cli.watch import listing

if TYPE_CHECKING:
    from datetime import datetime

    from burstd.api.answers.projects import (
        ProjectChangeView,
        ProjectDetailView,
        ProjectJobView,
        ProjectListView,
        ProjectView,
        ShareView,
    )

BAR_WIDTH = 24
"""Columns of the longest bar."""
SETUP_PATIENCE_S = 30.0
"""How long ``create``, ``set`` and ``delete`` wait for Slurm."""
_POLL_S = 0.3
NONE = "none"

app = typer.Typer(help="Projects: quotas of GPUs, and shares of what others leave.", no_args_is_help=True)
project_names = completion("/projects", "projects", "name")


class BurstOverQuotaWord(StrEnum):
    """Whether machines are started for what a project asks beyond its quota."""

    NEVER = "never"
    BUDGET = "budget"
    ALWAYS = "always"


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The project.", autocompletion=project_names)]
AccountOption = Annotated[str, typer.Option(help="Its Slurm account; 'none' for one that only has children.")]
QuotaOption = Annotated[str, typer.Option(metavar="GPUS", help="GPUs that are always its own: 4, 0.5, 1/3.")]
WeightOption = Annotated[str, typer.Option(metavar="N", help="Its part of what is left; 'none': as its quota.")]
LimitOption = Annotated[str, typer.Option(metavar="GPUS", help="The most it may have; 'none': no limit.")]
PriorityOption = Annotated[int | None, typer.Option(metavar="N", help="Higher ones are served first beyond quotas.")]
ParentOption = Annotated[str, typer.Option(metavar="NAME", help="The project above it; 'none': no such.")]
PartitionsOption = Annotated[str, typer.Option(metavar="NAMES", help="The partitions whose nodes it shares: a,b.")]
FeaturesOption = Annotated[
    str, typer.Option(metavar="NAMES", help="Of these nodes only those with all of a,b; 'none': all.")
]
InteractiveOption = Annotated[str, typer.Option(metavar="TIME", help="Time limit of srun and salloc; 'none'.")]
RuntimeOption = Annotated[str, typer.Option(metavar="TIME", help="Its jobs are not requeued earlier: 10m.")]
ReclaimOption = Annotated[str, typer.Option(metavar="TIME", help="It waits so long for cloud nodes first.")]
BurstOption = Annotated[
    BurstOverQuotaWord | None, typer.Option(help="Whether machines are started for it beyond its quota.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print Slurm's commands only; change nothing.")]


@app.command("list")
@listing
def list_projects(burstd: ApiClient) -> None:
    """Projects: quota, what each runs, is to have and asks for, with a bar."""
    from burstd.api.answers.projects import ProjectListView

    burstd.show(ProjectListView, burstd.get_json("/projects"), print_projects)


@app.command("show")
@with_client
def show_project(burstd: ApiClient, name: NameArgument) -> None:
    """One project, its jobs as far as you may see them, and what was changed of it."""
    from burstd.api.answers.projects import ProjectDetailView

    burstd.show(ProjectDetailView, burstd.get_json(f"/projects/{name}"), _print_project)


@app.command("create")
@with_client
def create_project(
    burstd: ApiClient,
    name: NameArgument,
    account: AccountOption = "",
    quota: QuotaOption = "",
    weight: WeightOption = "",
    limit: LimitOption = "",
    priority: PriorityOption = None,
    parent: ParentOption = "",
    partitions: PartitionsOption = "",
    features: FeaturesOption = "",
    interactive_max: InteractiveOption = "",
    min_runtime: RuntimeOption = "",
    reclaim_after: ReclaimOption = "",
    burst_over_quota: BurstOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Create a project, and what Slurm needs for it: account, QOS, the pair of partitions."""
    values = _values(
        burstd, account, quota, weight, limit, priority, parent, partitions, features, interactive_max,
        min_runtime, reclaim_after, burst_over_quota,
    )  # fmt: skip
    _change(burstd, "POST", name, {"values": values, "dry_run": dry_run})


@app.command("set")
@with_client
def set_project(
    burstd: ApiClient,
    name: NameArgument,
    account: AccountOption = "",
    quota: QuotaOption = "",
    weight: WeightOption = "",
    limit: LimitOption = "",
    priority: PriorityOption = None,
    parent: ParentOption = "",
    partitions: PartitionsOption = "",
    features: FeaturesOption = "",
    interactive_max: InteractiveOption = "",
    min_runtime: RuntimeOption = "",
    reclaim_after: ReclaimOption = "",
    burst_over_quota: BurstOption = None,
    reset: Annotated[bool, typer.Option("--reset", help="Go back to what burstd.toml says.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Change a project. Without any option: set Slurm up for it again."""
    values = _values(
        burstd, account, quota, weight, limit, priority, parent, partitions, features, interactive_max,
        min_runtime, reclaim_after, burst_over_quota,
    )  # fmt: skip
    _change(burstd, "PUT", name, {"values": values, "reset": reset, "dry_run": dry_run})


@app.command("delete")
@with_client
def delete_project(
    burstd: ApiClient,
    name: NameArgument,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a project that 'project create' made, and Slurm's side of it. Refused while jobs of it are queued."""
    if not yes and not dry_run:
        if burstd.json:
            burstd.fail(ExitCode.USAGE, "With --json nobody is asked: say --yes.")
        confirm(burstd, f"Project {name} and its limits in Slurm will be deleted. Delete it?")
    _change(burstd, "DELETE", name, {"dry_run": dry_run})


def _values(
    burstd: ApiClient,
    account: str,
    quota: str,
    weight: str,
    limit: str,
    priority: int | None,
    parent: str,
    partitions: str,
    features: str,
    interactive_max: str,
    min_runtime: str,
    reclaim_after: str,
    burst_over_quota: BurstOverQuotaWord | None,
) -> dict[str, object]:
    """The keys of [projects.NAME] that are given; None: as if the key were not there."""
    texts = {"account": account, "quota": quota, "weight": weight, "limit": limit, "parent": parent}
    found: dict[str, object] = {key: None if text == NONE else text for key, text in texts.items() if text}
    for key, text in (("partitions", partitions), ("features", features)):
        if text:
            found[key] = None if text == NONE else text.split(",")
    times = {"interactive_max": interactive_max, "min_runtime": min_runtime, "reclaim_after": reclaim_after}
    for key, text in times.items():
        if text:
            try:
                found[f"{key}_s"] = None if text == NONE else parse_duration(text)
            except ValueError as error:
                burstd.fail(ExitCode.USAGE, f"--{key.replace('_', '-')}: {error}.")
    if priority is not None:
        found["priority"] = priority
    if burst_over_quota is not None:
        found["burst_over_quota"] = burst_over_quota.value
    return found


def _change(burstd: ApiClient, method: str, name: str, body: dict[str, object]) -> None:
    """Has the project changed, waits for Slurm, and prints what came of it."""
    from burstd.api.answers.projects import ProjectChangeView

    answer = burstd.request(method, f"/projects/{name}", body)
    change = burstd.parse(ProjectChangeView, answer)
    burstd.show(ProjectChangeView, answer, _print_change)
    if change.dry_run:
        return
    if why := _wait_for_slurm(burstd, name):
        burstd.fail(ExitCode.NEGATIVE, why)


def _wait_for_slurm(burstd: ApiClient, name: str) -> str:
    """Why Slurm's side is not done within the patience; empty: it is done."""
    deadline = time.monotonic() + SETUP_PATIENCE_S
    while True:
        projects: list[dict[str, Any]] = burstd.get_json("/projects")["projects"]
        project = next((one for one in projects if one["name"] == name), None)
        if project is None or not project["pending"]:
            return ""
        if project["error"] or time.monotonic() > deadline:
            why = project["error"] or f"Slurm has not done it within {SETUP_PATIENCE_S:.0f} s"
            return f"project {name} is on record; Slurm is not ready for it: {why}. burstd goes on trying."
        time.sleep(_POLL_S)


def _print_change(out: ConsoleOutput, answer: ProjectChangeView) -> None:
    if answer.dry_run:
        for command in answer.commands:
            out.command(command)
        if not answer.commands:
            out.line("Slurm is as it should be already.")
        return
    out.line(answer.text)
    if answer.undo:
        out.command(answer.undo, "  to take it back: ", "dim")


def print_projects(out: ConsoleOutput, answer: ProjectListView) -> None:
    """The table with the bars."""
    if answer.accounting_error:
        out.note(f"! limits stay as they are: {answer.accounting_error}", "bold red", 0)
    if not answer.projects:
        out.line("There is no project.")
        return
    depth: dict[str, int] = {"": -1}
    for project in answer.projects:
        depth[project.name] = depth.get(project.parent, -1) + 1
    shares = [(p.quota, p.share) for p in answer.projects if p.account and p.share is not None]
    most = max((max(quota, share.running, share.share) for quota, share in shares), default=0.0)
    out.table(
        ("PROJECT", "QUOTA>", "RUNS>", "OVER>", "SHARE>", "ASKS>", "", "*"),
        [
            (
                "  " * depth[p.name] + p.name, f"{p.quota:g}", *_figures(p.share),
                share_bar(p.quota, p.share.running, p.share.share, most) if p.account and p.share is not None else "",
                _trouble(p),
            )
            for p in answer.projects
        ],
    )  # fmt: skip


def _figures(share: ShareView | None) -> tuple[str, str, str, str]:
    if share is None:
        return "", "", "", ""
    return f"{share.running:g}", f"{share.over_quota:g}", f"{share.share:g}", f"{share.demand:g}"


def _trouble(project: ProjectView) -> str:
    waits = {"set up": "is being set up", "remove": "is being deleted"}.get(project.pending, "")
    return ": ".join(filter(None, (waits, project.error)))


def share_bar(quota: float, running: float, share: float, most: float) -> Text:
    """What runs within the quota, what runs beyond it, what of the quota is idle, and the rest of the share."""
    scale = BAR_WIDTH / most if most else 0.0
    within = min(quota, running)
    ends = [round(gpus * scale) for gpus in (within, running, max(running, quota), max(running, quota, share))]
    parts = (("█", "green"), ("▒", "yellow"), ("·", "green"), ("·", "yellow"))
    text, begin = Text(), 0
    for end, (sign, style) in zip(ends, parts, strict=True):
        text.append(sign * (end - begin), style)
        begin = end
    return text


def _print_project(out: ConsoleOutput, answer: ProjectDetailView) -> None:
    project = answer.project
    out.pairs([
        ("project", project.name + (f" below {project.parent}" if project.parent else "")),
        ("account", project.account),
        ("partitions", ", ".join(project.partitions)),
        ("features", ", ".join(project.features)),
        ("now", project.text),
        ("granted", ", ".join(_grants(project))),
        ("set in", project.origin + (f": {', '.join(project.changed)}" if project.changed else "")),
        ("Slurm", Text(_trouble(project), "bold red")),
    ])  # fmt: skip
    if answer.jobs:
        out.blank()
        out.table(
            ("JOB", "USER", "GPUS>", "STATE", "*"),
            [(j.id, j.user, f"{j.gpus:g}", j.state.lower(), _standing(j, answer.now)) for j in answer.jobs],
        )
    if answer.other_jobs:
        out.note(f"{plural(answer.other_jobs, 'job')} of others", "dim")
    print_history(out, answer.history, answer.now)


def _standing(job: ProjectJobView, now: datetime) -> str:
    if job.requeued_at is not None:
        return f"requeued at {local_time_text(job.requeued_at, now)}"
    return "over quota" if job.over_quota else job.waits_for


def _grants(project: ProjectView) -> Iterable[str]:
    yield f"quota {project.quota:g}"
    yield "weight as its quota" if project.weight is None else f"weight {project.weight:g}"
    yield "no limit" if project.limit is None else f"limit {project.limit:g}"
    if project.priority:
        yield f"priority {project.priority}"
    if project.interactive_max_s:
        yield f"interactive jobs for {duration_text(project.interactive_max_s)}"
    if project.min_runtime_s:
        yield f"jobs run for {duration_text(project.min_runtime_s)} at least"
    if project.reclaim_after_s:
        yield f"takes back after {duration_text(project.reclaim_after_s)}"
    yield f"machines beyond the quota: {project.burst_over_quota}"
