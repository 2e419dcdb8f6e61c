"""burstctl job, explain"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.api.answers.text import (
    abbreviated_list,
    ago,
    duration_text,
    job_end_text,
    money_sums_text,
    money_text,
    plural,
    rough_duration_text,
    site_cost_text,
)
from burstd.cli.commands.job_output import job_logs
from burstd.cli.commands.job_shell import job_shell
from burstd.cli.commands.job_use import find_use, print_use, write_plot
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, JobArgument, with_client
from burstd.cli.watch import listing
from burstd.domain.units import size_text

if TYPE_CHECKING:
    from burstd.api.answers.jobs import (
        CandidateView,
        ExplainView,
        JobDetailView,
        JobsView,
        JobView,
        OptionChangeView,
        PoolCandidatesView,
    )

_MAX_CANDIDATES = 6
_LONG_REASON = 40
"""Characters; a longer reason is printed once for all offers that are refused for it."""
_REFUSED_BY_RULE = "excluded by the pool's rules"
_FORECAST_BASIS = {
    "slurm": "says Slurm's backfill scheduler",
    "queue": "if all before it start first",
    "history": "by how long jobs like it waited",
}
app = typer.Typer(help="Jobs of the burst partitions.", no_args_is_help=True)


@app.command("list")
@listing
def list_jobs(
    burstd: ApiClient,
    user: Annotated[str, typer.Option(help="Only this user's.")] = "",
    waiting: Annotated[bool, typer.Option("--waiting", "-w", help="Only those that wait.")] = False,
) -> None:
    """Jobs in the queue, each with what burstd says about it."""
    from burstd.api.answers.jobs import JobsView

    answer = burstd.get_json("/jobs", {"user": user} if user else None)
    answer["jobs"] = [job for job in answer["jobs"] if not waiting or job["state"] == "PENDING"]
    burstd.show(JobsView, answer, _print_jobs)


def _print_jobs(out: ConsoleOutput, answer: JobsView) -> None:
    if not answer.jobs:
        out.line("No job of a burst partition is in the queue.")
        return
    out.table(
        ("JOB", "USER", "STATE", "WAITS>", "WHY OR WHERE*"),
        [
            (
                _id_text(job),
                job.user,
                styled_state(job.verdict) if job.verdict else job.state.lower(),
                duration_text(job.waiting_s) if job.waiting_s is not None else "",
                job.reason or abbreviated_list(job.nodes),
            )
            for job in answer.jobs
        ],
    )


@app.command("show")
@with_client
def show_job(
    burstd: ApiClient,
    job_id: JobArgument,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write plots of what it used; - prints them.")
    ] = None,
) -> None:
    """One job: what it asks for, what was decided, its nodes, and what it used (also after it has ended)."""
    if svg is not None:
        if burstd.json:
            burstd.fail(ExitCode.USAGE, "--svg writes plots in the place of the answer: leave --json out.")
        write_plot(burstd, job_id, svg)
        return
    from burstd.api.answers.jobs import JobDetailView

    answer = burstd.get_json(f"/jobs/{job_id}")
    answer["use"] = find_use(burstd, job_id)
    burstd.show(JobDetailView, answer, _print_job)


def _print_job(out: ConsoleOutput, answer: JobDetailView) -> None:
    now, job = answer.now, answer.job
    if job is None:
        if answer.end is not None:
            out.line((f"Job {answer.id}", "bold"), f" has ended: {job_end_text(answer.end, now)}.")
            if answer.end.nodes:
                out.note(f"It ran on {abbreviated_list(answer.end.nodes, 20)}.")
        else:
            out.line((f"Job {answer.id}", "bold"), " has left the queue.")
            out.command(f"sacct -j {answer.id}", "  How it ended: ")
        if answer.cost:
            out.note(f"It cost {money_sums_text(answer.cost)}.")
        if answer.site_cost:
            out.note(f"On nodes of the site it cost {site_cost_text(answer.site_cost)}.")
    else:
        waits = f" for {duration_text(job.waiting_s)}" if job.waiting_s is not None else ""
        out.pairs([
            ("job", f"{_id_text(job)} {job.name}".strip()),
            ("user", job.user),
            ("partitions", ", ".join(job.partitions)),
            ("asks for", answer.asks),
            ("state", job.state.lower() + waits),
            ("Slurm says", job.slurm_reason),
            ("nodes", abbreviated_list(job.nodes, 20)),
            ("cost so far", money_sums_text(answer.cost) if answer.cost else ""),
            ("own nodes", site_cost_text(answer.site_cost) if answer.site_cost else ""),
        ])  # fmt: skip
    _print_remarks(out, answer)
    if answer.nodes:
        out.blank()
        out.table(("NODE", "STATE", "SINCE>", "MACHINE COST>", "OFFER", "REASON*"), [
            (n.slot, styled_state(n.state), ago(n.since, now), money_text(n.cost), n.offer, n.reason)
            for n in answer.nodes
        ])  # fmt: skip
    if answer.use is not None:
        print_use(out, answer.use)
    elif answer.no_use:
        out.blank()
        out.line(("Used", "bold"), f": {answer.no_use}")
    elif answer.measured_parts:
        out.blank()
        out.line(("Used", "bold"), f" by its parts: burstctl job show {abbreviated_list(answer.measured_parts)}")


def _print_remarks(out: ConsoleOutput, answer: JobDetailView | ExplainView) -> None:
    if not answer.remarks:
        return
    out.blank()
    out.table(("SAID BY", "", "SINCE>", "WHY*"), [
        (r.by, styled_state(r.verdict), ago(r.since, answer.now, ""), r.reason)
        for r in answer.remarks
    ])  # fmt: skip


app.command("logs")(job_logs)
app.command("shell")(job_shell)


def _id_text(job: JobView) -> str:
    return f"{job.id} (x{job.tasks})" if job.tasks > 1 else job.id


@with_client
def explain(burstd: ApiClient, job_id: JobArgument) -> None:
    """Why a job does or does not start: its options, their cost, and what would start it."""
    from burstd.api.answers.jobs import ExplainView

    burstd.show(ExplainView, burstd.get_json(f"/jobs/{job_id}/explanation"), print_explanation)


def print_explanation(out: ConsoleOutput, answer: ExplainView) -> None:
    """Why a job does or does not start, in sentences and tables."""
    job = answer.job
    verdict_text = styled_state(answer.verdict)
    full_stop = "" if answer.summary.endswith("?") else "."
    out.line(
        (f"Job {answer.id}", "bold"), f" of {job.user}: " if job else ": ",
        (verdict_text.plain, f"bold {verdict_text.style}".strip()), f": {answer.summary}{full_stop}",
    )  # fmt: skip
    if answer.asks:
        out.note(f"It asks for {answer.asks}.")
    if answer.slurm:
        reason = f" ({job.slurm_reason})" if job and job.slurm_reason else ""
        out.note(f"Slurm says: {answer.slurm}{reason}.")
    if answer.fabric:
        out.note(f"{answer.fabric[0].upper()}{answer.fabric[1:]}.")
    for sentence in (_interruption_text(answer), _outlook_text(answer), _cost_text(answer), _data_text(answer)):
        if sentence:
            out.note(sentence)
    for remedy in answer.remedies:
        out.note(f"What would help: {remedy}.", "bold")
    print_changes(out, answer.changes)
    if len(answer.remarks) > 1 or (answer.remarks and job is None):
        _print_remarks(out, answer)
    if answer.serving:
        out.blank()
        paid = any(s.reserved for s in answer.serving)
        out.table(("NODE", "STATE", "SINCE>", *(("AT MOST>",) if paid else ()), "WHY*"), [
            (
                s.slot, styled_state(s.state), ago(s.since, answer.now, ""),
                *((money_text(s.reserved),) if paid else ()), s.reason,
            )
            for s in answer.serving
        ])  # fmt: skip
    for way in answer.ways:
        _print_pool(out, way)


_RUN_BASIS = {"none": "a guess: it has no time limit, and no run like it is known"}


def _interruption_text(answer: ExplainView) -> str:
    last = answer.interruption
    return f"Its run was {last.state} {ago(last.time, answer.now)}: {last.reason}." if last is not None else ""


def _outlook_text(answer: ExplainView) -> str:
    outlook = answer.outlook
    if answer.verdict == "covered":
        line = answer.line
        return f"{line[0].upper()}{line[1:]}." if line.startswith("node") else ""
    if outlook is None or answer.verdict == "impossible":
        return ""
    basis = _FORECAST_BASIS.get(outlook.premises_basis, "")
    if outlook.premises_at is None:
        premises = "never"
    else:
        left = (outlook.premises_at - answer.now).total_seconds()
        premises = f"{rough_duration_text(left)}{f' ({basis})' if basis else ''}"
    if not answer.ways:
        return f"It would start on premises: {premises}."
    if outlook.cloud_s is None:
        cloud = f"not before {outlook.kept_by} ends"
    else:
        cloud = rough_duration_text(outlook.cloud_s) if answer.cost or answer.serving else "no machine is available now"
    return f"It would start on premises: {premises}; in the cloud: {cloud}."


def _cost_text(answer: ExplainView) -> str:
    outlook, cost = answer.outlook, answer.cost
    runs = ""
    if outlook is not None and outlook.run_s and answer.verdict != "impossible":
        basis = _RUN_BASIS.get(outlook.run_basis, outlook.run_basis)
        runs = f"It is expected to run {rough_duration_text(outlook.run_s, '')} ({basis})"
    if cost is None or not (cost.expected or cost.worst):
        return f"{runs}." if runs else ""
    machines = "its shards" if cost.of_shards else f"{cost.nodes} machines" if cost.nodes > 1 else "its machine"
    amounts = [f"about {money_text(cost.expected)}"] if cost.expected else []
    amounts += [f"at most {money_text(cost.worst)} by its time limit"] if cost.worst else ["and it has no time limit"]
    text = f"{machines} would cost {', '.join(amounts)}"
    return f"{runs}; {text}." if runs else f"{text[0].upper()}{text[1:]}."


def _data_text(answer: ExplainView) -> str:
    data = answer.data
    if data is None:
        return ""
    size = f" ({size_text(data.left)} of {size_text(data.size)} to go)" if data.size and data.left else ""
    ready = rough_duration_text((data.ready_at - answer.now).total_seconds()) if data.ready_at else ""
    return f"Its data: {data.state}{size}{f', there {ready}' if ready else ''}{_error_text(data.error)}."


def _error_text(error: str) -> str:
    return f"; {error}" if error else ""


def print_changes(out: ConsoleOutput, changes: Sequence[OptionChangeView]) -> None:
    """Options that would start a job, each with when and where; nothing where there are none."""
    if not changes:
        return
    out.blank()
    out.line(("The smallest changes that would start it", "bold"))
    for change in changes:
        price = f", {money_text(change.price_per_hour)}/h" if change.price_per_hour else ""
        when = f"{rough_duration_text(change.start_s)} on {abbreviated_list(change.where, 3)}{price}"
        out.note(f"{change.before} -> {change.after}: {when}", "green")
        if change.command:
            out.command(change.command, "    ", "dim")


def _print_pool(out: ConsoleOutput, pool: PoolCandidatesView) -> None:
    out.blank()
    state = f"lacks {pool.lacks}" if pool.lacks else f"{pool.free} of {pool.slots} slots free"
    if pool.gpu_memory_limit and not pool.lacks:
        state += f"; limit of a shard's GPU memory: {pool.gpu_memory_limit}"
    out.line((f"Pool {pool.pool}", "bold"), f": {state}")
    if pool.lacks:
        return
    allowed = [c for c in pool.candidates if c.refused != _REFUSED_BY_RULE]
    shown, ruled_out = allowed[:_MAX_CANDIDATES], len(pool.candidates) - len(allowed)
    alike: dict[str, list[str]] = {}
    for candidate in shown:
        text = _candidate_text(candidate).plain
        if candidate.refused and len(text) > _LONG_REASON:
            alike.setdefault(text, []).append(candidate.offer)
    alike = {text: offers for text, offers in alike.items() if len(offers) > 1}
    rows = [(c.offer, _price_text(c), _candidate_text(c)) for c in shown]
    out.table(("", ">", "*"), [row for row in rows if row[2].plain not in alike], indent=2)
    for text, offers in alike.items():
        out.note(f"{', '.join(offers)}: {text}", "yellow")
    if len(allowed) > len(shown):
        out.note(f"and {len(allowed) - len(shown)} more (--json)", "dim")
    if ruled_out:
        out.note(f"The pool's rules leave out {plural(ruled_out, 'other offer')}.", "dim")


def _price_text(candidate: CandidateView) -> str:
    text = f"{money_text(candidate.price_per_hour)}/h" if candidate.price_per_hour else ""
    return f"{text}, {money_text(candidate.price_per_shard, 4)} a shard" if candidate.price_per_shard else text


def _candidate_text(candidate: CandidateView) -> Text:
    if candidate.chosen:
        return Text("chosen" + (f", though {candidate.note}" if candidate.note else ""), "bold green")
    if candidate.refused:
        by = f"{candidate.by}: " if candidate.by else ""
        return Text(f"{by}{candidate.refused}", "yellow")
    return Text(candidate.note or "may be used", "green")
