"""burstctl stage"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.api.answers.text import ago, duration_text, elapsed_text, local_time_text, plural, remaining_text
from burstd.cli.commands.event import print_history
from burstd.cli.output import Cell, ConsoleOutput, progress_bar, styled_state
from burstd.cli.session import ApiClient, ExitCode, confirm, staged_job_ids, with_client
from burstd.cli.watch import listing
from burstd.domain.units import size_text

if TYPE_CHECKING:
    from burstd.api.answers.staging import StagingDetailView, StagingListView, StagingUsageView, TransferView, UsageView

app = typer.Typer(help="The data of jobs: what is on its way, what is held, who takes up what.", no_args_is_help=True)
_FINAL_STATES = frozenset({"delivered", "held", "cleared"})

_TRANSFER_NAMES = {"in": "to the store", "link": "links to its sources"}
_TRANSFER_HEADS = ("", "", "DONE>", "RATE>", "ETA>", "HITS>")
StagedJobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's number.", autocompletion=staged_job_ids)
]


@app.command("status")
@listing
def stage_status(
    burstd: ApiClient,
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Only this job.", autocompletion=staged_job_ids)] = "",
    every: Annotated[bool, typer.Option("--all", "-a", help="Also what is over, newest first.")] = False,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    number: Annotated[int, typer.Option("-n", min=1, max=1000, help="With --all, at most so many.")] = 100,
) -> None:
    """Each job's data and its transfers: how far, how fast, how long still, what was there already.

    With --watch until the end of JOB's data.
    """
    from burstd.api.answers.staging import StagingDetailView, StagingListView

    if job and (every or user):
        burstd.fail(ExitCode.USAGE, "Name a job, or choose several with --all and --user.")

    if job:
        answer = burstd.get_json(f"/stage/{job}")
        burstd.show(StagingDetailView, answer, lambda out, one: _print_job(out, one, history=not burstd.watching))
        if answer["job"]["state"] in _FINAL_STATES:
            raise typer.Exit(ExitCode.OK)
        return
    params: dict[str, str | int | float] = {"user": user} if user else {}
    answer = burstd.get_json("/stage", params | ({"all": "true", "limit": number} if every else {}))
    burstd.show(StagingListView, answer, print_staging_list)


@app.command("retry")
@with_client
def retry_stage(burstd: ApiClient, job: StagedJobArgument) -> None:
    """Let a job's data that is held go on from where it stopped."""
    burstd.run_command("POST", f"/stage/{job}/retry")


@app.command("discard")
@with_client
def discard_output(
    burstd: ApiClient,
    job: StagedJobArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Give up the output that a job's nodes still have, so that they may go. It cannot be taken back."""
    from burstd.api.answers.staging import StagingDetailView

    if not yes:
        answer = burstd.get_json(f"/stage/{job}")
        if burstd.json:
            burstd.fail(ExitCode.USAGE, "With --json nobody is asked: say --yes.")
        nodes = ", ".join(burstd.parse(StagingDetailView, answer).job.nodes) or "its nodes"
        confirm(burstd, f"Output of job {job} on {nodes} that is not home yet will be lost. Give it up?")
    burstd.run_command("POST", f"/stage/{job}/discard")


@app.command("evict")
@with_client
def evict(
    burstd: ApiClient,
    dataset: Annotated[str, typer.Option(metavar="NAME[@VERSION]", help="This data set.")] = "",
    tree: Annotated[str, typer.Option(metavar="DIGEST", help="This input, by its digest (status JOB --json).")] = "",
    user: Annotated[str, typer.Option(metavar="USER", help="What only this user has staged.")] = "",
    unneeded: Annotated[bool, typer.Option("--unneeded", help="All that no job needs.")] = False,
) -> None:
    """Remove input from the store; never what a waiting or running job needs. It is sent again when it is asked for.

    Users remove what they have staged themselves, administrators anybody's.
    """
    chosen = [(kind, name) for kind, name in (("dataset", dataset), ("tree", tree), ("user", user)) if name]
    if unneeded:
        chosen.append(("unneeded", ""))
    if len(chosen) != 1:
        burstd.fail(ExitCode.USAGE, "Choose one of --dataset, --tree, --user and --unneeded.")
    kind, name = chosen[0]
    burstd.run_command("POST", "/stage/evict", {"kind": kind, "name": name})


@app.command("usage")
@listing
def stage_usage(burstd: ApiClient) -> None:
    """What the store holds, and who takes up how much of his quota."""
    from burstd.api.answers.staging import StagingUsageView

    burstd.show(StagingUsageView, burstd.get_json("/stage/usage"), _print_usage)


def print_staging_list(out: ConsoleOutput, answer: StagingListView) -> None:
    """All jobs, each with its transfers below it."""
    _note_if_off(out, answer)
    now = answer.now
    if not answer.jobs:
        out.line("No job has data here.")
    else:
        out.table(
            ("JOB", "USER", "STATE", "SINCE>", "IN>", "SENT>", "OUT>", "WHY*"),
            [
                (
                    job.job,
                    job.user,
                    styled_state(job.state),
                    elapsed_text(job.since, now),
                    _size_or_blank(job.bytes_in),
                    _size_or_blank(job.bytes_sent) if job.staged else "",
                    _size_or_blank(job.bytes_out),
                    job.error or job.reason,
                )
                for job in answer.jobs
            ],
        )
    moving = [(job.job, transfer) for job in answer.jobs for transfer in job.transfers]
    if moving:
        out.blank()
        out.table(("JOB", *_TRANSFER_HEADS), [(job, *_transfer_row(transfer)) for job, transfer in moving])
    _print_retained_nodes(out, answer)
    if answer.more:
        out.note("There is more (-n).", "dim")


def _print_job(out: ConsoleOutput, answer: StagingDetailView, *, history: bool) -> None:
    """One job: its inputs, outputs, transfers."""
    _note_if_off(out, answer)
    job, now = answer.job, answer.now
    ready = ""
    if job.estimated_ready:
        ready = local_time_text(job.estimated_ready, now)
        ready += (
            f", was there at {local_time_text(job.staged, now)}"
            if job.staged
            else f" (in {remaining_text(job.estimated_ready, now)})"
        )
    hits = f", {size_text(job.bytes_hits)} were there already" if job.bytes_hits else ""
    out.pairs([
        ("job", f"{job.job} of {job.user}" + (f" ({job.account})" if job.account else "")),
        ("data", Text.assemble(styled_state(job.state), f" for {elapsed_text(job.since, now)}: {job.reason}")),
        ("error", Text(job.error, "bold red")),
        ("goes on", f"from {job.resume}, when told to (burstctl stage retry {job.job})" if job.resume else ""),
        ("tried", f"{job.attempts} times" if job.attempts > 1 else ""),
        ("ended", f"{job.job_state} {job.exit_code}".strip()),
        ("input", f"{size_text(job.bytes_in)}, {size_text(job.bytes_sent)} sent{hits}" if job.staged else ""),
        ("expected", ready),
        ("output", size_text(job.bytes_out) if job.bytes_out else ""),
        ("scratch", size_text(job.scratch_bytes) if job.scratch_bytes else ""),
        ("nodes", ", ".join(job.nodes)),
        ("store", job.store),
    ])  # fmt: skip
    if job.inputs:
        out.blank()
        out.table(("INPUT", "", "FROM*", "SIZE>", "FILES>"), [
            (i.name, "in place" if i.place else i.access.replace("_", " "), i.dataset or i.source,
             "" if i.place or i.bytes is None else size_text(i.bytes),
             "" if i.place or i.entries is None else str(i.entries))
            for i in job.inputs
        ])  # fmt: skip
    if job.outputs:
        out.blank()
        out.table(("OUTPUT", "TO*", "ON"), [(o.pattern, o.destination, o.when) for o in job.outputs])
    for collected in job.collected:
        out.note(
            f"{collected.node}: {size_text(collected.bytes)} in {plural(collected.entries, 'file')} is in the store",
            "dim",
        )
    for taken in job.checkpoints:
        out.note(
            f"checkpoint {taken.path}, taken {ago(taken.taken, now)}: {size_text(taken.bytes)}, "
            f"{size_text(taken.bytes_sent)} sent in {taken.seconds:.1f} s",
            "dim",
        )
    if job.checkpoint_error:
        out.note(f"! {job.checkpoint_error}", "yellow")
    if job.transfers:
        out.blank()
        out.table(_TRANSFER_HEADS, [_transfer_row(transfer) for transfer in job.transfers])
    _print_retained_nodes(out, answer)
    if history:
        print_history(out, answer.history, now)


def _print_usage(out: ConsoleOutput, answer: StagingUsageView) -> None:
    """The store, quotas, usage."""
    _note_if_off(out, answer)
    store, now = answer.store, answer.now
    if store is None:
        return
    if store.looked:
        free = f", {size_text(store.free)} free" if store.free is not None else ""
        left = f", {plural(store.leftovers, 'leftover')} to be removed" if store.leftovers else ""
        out.line(
            (f"store {store.name}", "bold"),
            f" ({store.kind}): {size_text(store.bytes)} in {plural(store.objects, 'object')}{free}{left},"
            f" looked {ago(store.looked, now)}",
        )
    else:
        out.line((f"store {store.name}", "bold"), f" ({store.kind}): not read yet")
    if store.error:
        out.note(f"! {store.error}", "bold red")
    for head, rows in (("USER", answer.users), ("ACCOUNT", answer.projects)):
        if rows:
            out.blank()
            out.table((head, "USED>", "QUOTA>", ""), [_usage_row(row) for row in rows])


def _transfer_row(transfer: TransferView) -> Sequence[Cell]:
    done, total = transfer.bytes_done, transfer.bytes_total
    amount = f"{size_text(done)} of {size_text(total)}" if total else size_text(done)
    return (
        _TRANSFER_NAMES.get(transfer.name, transfer.name),
        progress_bar(done, total),
        amount,
        f"{size_text(round(transfer.rate))}/s" if transfer.rate else "",
        duration_text(transfer.eta_s) if transfer.eta_s is not None else "",
        size_text(transfer.bytes_hits) if transfer.bytes_hits else "",
    )


def _usage_row(row: UsageView) -> Sequence[Cell]:
    used, quota = row.bytes, row.quota
    over = quota is not None and used > quota
    return (
        row.name,
        Text(size_text(used), "bold red" if over else ""),
        "none" if quota is None else size_text(quota),
        "" if quota is None else progress_bar(min(used, quota), quota),
    )


def _print_retained_nodes(out: ConsoleOutput, answer: StagingListView | StagingDetailView) -> None:
    for retained in answer.kept:
        left = remaining_text(retained.until, answer.now)
        out.note(
            f"{retained.node} is kept {left} more for the output of job {retained.job}, then both are gone:"
            f" {retained.reason}",
            "bold yellow",
        )


def _note_if_off(out: ConsoleOutput, answer: StagingListView | StagingDetailView | StagingUsageView) -> None:
    if not answer.on:
        out.note("burstd stages nothing: its settings have no table [staging].", "yellow", 0)


def _size_or_blank(size: int) -> str:
    return size_text(size) if size else ""
