"""burstctl quote"""

from __future__ import annotations

import grp
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burstd.api.answers.text import (
    abbreviated_list,
    duration_text,
    money_text,
    plural,
    rough_duration_text,
)
from burstd.cli.commands.job import print_changes
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, with_client
from burstd.domain.billing.use import IdleMode
from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.job import Job, JobState

if TYPE_CHECKING:
    from datetime import datetime

    from burstd.api.answers.base import Money
    from burstd.api.answers.plan import BudgetView
    from burstd.api.answers.quote import QuotedWayView, QuotesView, QuoteView, TimeRangeView
    from burstd.slurm.commands.sbatch import SbatchAnswer, SubmitDefaults

_SBATCH_TIMEOUT_S = 30.0
_SCRIPT_BYTES = 1 << 20
"""Of a script, in which #BURST lines are looked for; Slurm's own limit is 4 MiB."""
_SENT = (
    "partitions", "name", "account", "qos", "tasks", "nodes", "nodes_max", "cpus", "cpus_per_node", "memory_mib",
    "memory_per_cpu", "memory_whole", "constraint", "exclusive", "exclusive_user", "time_limit_s", "node_list",
    "excluded_nodes", "requeue",
)  # fmt: skip
"""Fields of a job that burstd is told as they are."""
_CHARGED_FOR_IDLE = {
    IdleMode.BY_USE: ", for which the jobs that run on a machine are charged by their work,",
    IdleMode.TO_CAUSE: ", for which the jobs that a machine was started for are charged,",
}
"""Elsewhere nobody is."""
_BRIEF_VERDICTS = {"impossible": "cannot start", "wait": "waits"}


@with_client
def quote(
    burstd: ApiClient,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] WORDS...", help="As for sbatch: options follow after --, then the script."),
    ] = None,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Your job that waits, in the place of WORDS.")] = "",
    brief: Annotated[bool, typer.Option("--brief", help="A line or two: what the job meets as it is.")] = False,
) -> None:
    """What a job would meet before you submit it: each way to run it, with start, end, cost, and what selects it.

    WORDS are sbatch's own options, then the script: burstctl quote -p burst -t 4:00:00 job.sh. Slurm reads them (sbatch
    --test-only), and burstd is told what the job asks for, not the script. Nothing is submitted and no machine is
    started.
    """
    from burstd.api.answers.quote import QuotesView

    if bool(job) == bool(words):
        raise typer.BadParameter("either the words of an sbatch or --job", param_hint="WORDS")
    answer = _quote_waiting_job(burstd, job) if job else _quote_words(burstd, words or [])
    burstd.show(QuotesView, answer, print_brief if brief else print_quotes)


def _quote_waiting_job(burstd: ApiClient, job_id: str) -> dict[str, Any]:
    """Of a job in the queue, its own partitions alone."""
    from burstd.api.answers.base import current_user
    from burstd.planner.demand.pending_reasons import pending_reason
    from burstd.slurm.commands.jobs import read_job
    from burstd.slurm.commands.run import SlurmCommands

    try:
        jobs = [one for one in read_job(SlurmCommands(), job_id) if one.state is JobState.PENDING]
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"{error}.")
    if not jobs:
        burstd.fail(ExitCode.NEGATIVE, f"Job {job_id} does not wait.")
    if jobs[0].user != current_user():
        burstd.fail(ExitCode.FORBIDDEN, f"Job {job_id} is {jobs[0].user}'s: {jobs[0].user} may ask.")
    answer = burstd.request("POST", "/quote", {"jobs": [{**_body(one), "id": one.id} for one in jobs]})
    waits = dict.fromkeys(one.reason for one in jobs if not pending_reason(one.reason).needs_nodes)
    return {**answer, "waits_for": list(waits)}


def _quote_words(burstd: ApiClient, words: Sequence[str]) -> dict[str, Any]:
    """Of a job that is not submitted, also in other partitions."""
    from burstd.slurm.commands.sbatch import refusals, usable_partitions

    said, jobs, defaults, script = _asked_jobs(burstd, words)
    groups = {_group_name(gid) for gid in {*os.getgroups(), os.getegid()}}
    who = groups, gethostname().partition(".")[0]
    # Components of a het job stay where they are.
    usable = usable_partitions(said.components[0], defaults, *who) if len(jobs) == 1 else []
    body = {"jobs": [_body(job) for job in jobs], "usable_partitions": [asdict(one) for one in usable]}
    answer = burstd.request("POST", "/quote", body)
    refused = [why for job in jobs for why in refusals(job, defaults, *who)] + _limits(burstd, jobs, defaults)
    return {**answer, "slurm": said.message, "refused": said.refused, "waits_for": refused + _waits_for(said, script)}


def _asked_jobs(burstd: ApiClient, words: Sequence[str]) -> tuple[SbatchAnswer, list[Job], SubmitDefaults, str]:
    """What sbatch says, the job or the components of a het job, Slurm's defaults, and the script's own #BURST lines."""
    from burstd.api.answers.base import current_user
    from burstd.slurm.commands.run import SlurmCommands
    from burstd.slurm.commands.sbatch import TEST_ONLY, SbatchFailed, parse_answer, read_defaults, requested_job
    from burstd.slurm.hostlist import HostlistError

    try:
        done = subprocess.run(
            [*TEST_ONLY, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
            encoding="utf-8", errors="replace", timeout=_SBATCH_TIMEOUT_S,
        )  # fmt: skip
        said = parse_answer(done.stderr, done.returncode)
        defaults = read_defaults(SlurmCommands(), current_user())
        path, text = _script(words)
        return said, [requested_job(one, defaults, path) for one in said.components], defaults, text
    except FileNotFoundError:
        burstd.fail(ExitCode.NEGATIVE, "sbatch is not installed here: run burstctl quote where you submit jobs.")
    except subprocess.TimeoutExpired:
        burstd.fail(ExitCode.UNREACHABLE, f"sbatch gave no answer within {_SBATCH_TIMEOUT_S:.0f} s.")
    except (SbatchFailed, HostlistError) as error:
        burstd.fail(ExitCode.USAGE, f"{error}.".replace("..", "."))
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"{error}.")


def _limits(burstd: ApiClient, jobs: Sequence[Job], defaults: SubmitDefaults) -> list[str]:
    """Of QOS and associations."""
    from burstd.api.answers.base import current_user
    from burstd.slurm.commands.limits import read_limits
    from burstd.slurm.commands.run import SlurmCommands

    qos = {name for job in jobs for name in defaults.qos_of(job)}
    try:
        return read_limits(SlurmCommands(), defaults.enforced, current_user(), os.getuid(), jobs[0].account, qos)
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"{error}.")


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _script(words: Sequence[str]) -> tuple[str, str]:
    """Name and text of the script: the first word that is a file with an interpreter. ``wrap`` and ``sbatch`` as Slurm
    calls jobs without one.

    The name tells which jobs are like this one, the text whether it has #BURST lines; neither is needed for the rest.
    """
    for word in words:
        try:
            # A pipe, such as that of -o, is not waited for, and has nothing to read.
            with open(word, "rb", opener=_without_waiting) as file:
                text = file.read(_SCRIPT_BYTES) or b""
        except (OSError, ValueError):
            continue
        if text.startswith(b"#!"):
            return Path(word).name, text.decode("utf-8", "replace")
    return ("wrap" if any(word.startswith("--wrap") for word in words) else "sbatch"), ""


def _body(job: Job) -> dict[str, Any]:
    from burstd.domain.slurm.comment import is_for_burstd

    body: dict[str, Any] = {name: getattr(job, name) for name in _SENT}
    for name in ("gres_per_node", "gres_per_job"):
        body[name] = [{"name": g.name, "type": g.type, "count": g.count} for g in getattr(job, name)]
    if is_for_burstd(job.comment):
        body["comment"] = job.comment
    return body


def _waits_for(said: SbatchAnswer, script: str) -> list[str]:
    from burstd.slurm.commands.sbatch import delays

    found = list(dict.fromkeys(option for one in said.components for option in delays(one)))
    of_burstd = [line.split()[1:2] for line in script.splitlines() if line.startswith("#BURST ")]
    if ["volume"] in of_burstd:
        found.append("volumes of its #BURST lines, which leave it the pool and the place of their disks alone")
    if any(words != ["volume"] for words in of_burstd):
        found.append("data of its #BURST lines")
    return found


def print_quotes(out: ConsoleOutput, answer: QuotesView) -> None:
    """What the job asks for, what Slurm and burstd say of it, its ways, and how budgets stand."""
    several = len(answer.quotes) > 1
    for number, one in enumerate(answer.quotes):
        if number:
            out.blank()
        name = f"Component {number}" if several else "The job"
        verdict = styled_state(one.verdict)
        out.line((name, "bold"), f" asks for {one.asks}.")
        out.note(f"It is expected to run {_run_text(one)}.")
        if one.tasks > 1:
            out.note(f"It is an array of {plural(one.tasks, 'task')}: times are of the first, costs of all.")
        out.note(f"As it is: {verdict.plain}: {one.summary}.")
        if one.unseen_account:
            out.note(
                f"Account {one.unseen_account}, its budget and its past jobs are not looked at: burstd knows no job of "
                "yours in it.",
                "yellow",
            )
        if not number:
            _print_slurm(out, answer)
        _print_ways(out, answer, one)
        for budget in one.budgets:
            out.note(f"Budget of {_budget_text(budget)}.")
    if several:
        out.note("All components start together: the latest counts.")


def print_brief(out: ConsoleOutput, answer: QuotesView) -> None:
    """A line for each component: when and where it starts as it is, and at what cost, or why not; one for budgets."""
    if answer.refused:
        out.line(f"burstd: Slurm refuses it as it is: {answer.slurm}")
        return
    waits = f"waits first ({', '.join(answer.waits_for)}); then " if answer.waits_for else ""
    for number, one in enumerate(answer.quotes):
        component = f"component {number} " if len(answer.quotes) > 1 else ""
        out.line(f"burstd: {component}{waits}{_brief_text(answer, one)}")
    budgets = dict.fromkeys(f"budget of {_budget_text(budget)}" for one in answer.quotes for budget in one.budgets)
    unseen = {one.unseen_account for one in answer.quotes} - {""}
    budgets |= dict.fromkeys(f"account {name} is not looked at before your first job in it" for name in sorted(unseen))
    if budgets:
        out.line(f"burstd: {'; '.join(budgets)}")


def _brief_text(answer: QuotesView, one: QuoteView) -> str:
    ways = [(len(way.options.split()), way.start.p50, way) for way in one.ways if way.taken and way.start is not None]
    if not ways:
        return f"{_BRIEF_VERDICTS.get(one.verdict, one.verdict)}: {one.summary}"
    _, at, way = min(ways, key=lambda found: found[:2])
    first = "the first task " if one.tasks > 1 else ""
    times, left_s = _times(answer.now, way.start), (at - answer.now).total_seconds()
    text = f"{first}starts {rough_duration_text(left_s)} (90 %: {times[1]}), {_way_text(way)}"
    if cost := _cost_text(way.expected, one.tasks):
        worst = _cost_text(way.worst, one.tasks)
        costs = "all cost" if one.tasks > 1 else "costs"
        text += f"; {costs} about {cost}, {f'{worst} at most' if worst else 'and it has no time limit'}"
        text += ", besides idle time of its machines" * bool(way.pool and answer.idle in _CHARGED_FOR_IDLE)
    return text


def _budget_text(budget: BudgetView) -> str:
    left = budget.fault or f"{money_text(budget.left)} left of {money_text(budget.limit)} ({budget.period})"
    return f"{budget.kind} {budget.name}: {left}"


def _print_slurm(out: ConsoleOutput, answer: QuotesView) -> None:
    if answer.refused:
        out.note(f"Slurm refuses it as it is: {answer.slurm}.", "yellow")
    elif answer.slurm:
        out.note(f"Slurm says: {answer.slurm}.")
    if answer.waits_for:
        out.note(f"Not counted is what it may wait for besides: {', '.join(answer.waits_for)}.", "yellow")


def _run_text(one: QuoteView) -> str:
    length = rough_duration_text(one.run_s, "")
    if one.run_basis == "time limit":
        return f"{length}: by its time limit, for no run like it is known"
    if one.run_basis == "none":
        return f"{length}: a guess, for it has no time limit and no run like it is known"
    return f"{length} (by {one.run_basis})"


def _print_ways(out: ConsoleOutput, answer: QuotesView, one: QuoteView) -> None:
    taken = [way for way in one.ways if way.taken]
    others = [way for way in one.ways if not way.taken]
    if taken:
        out.blank()
        out.table(
            ("", "WAY*", "STARTS", "90 %", "ENDS", "90 %", "COST>", "TO LIMIT>"),
            [
                (str(number), _way_text(way), *_times(answer.now, way.start), *_times(answer.now, way.end),
                 _cost_text(way.expected, one.tasks), _worst_text(way, one.tasks))
                for number, way in enumerate(taken, 1)
            ],
        )  # fmt: skip
        out.note(
            "90 %: by then with that chance. COST: its share, and the boot. TO LIMIT: whole machines, or what a budget "
            f"reserves. Idle time{_CHARGED_FOR_IDLE.get(answer.idle, '')} and further runs are not in them.",
            "dim",
        )
        out.blank()
        for number, way in enumerate(taken, 1):
            out.command(way.line or "nothing to add", f"{number}  ", "green" if way.line else "")
    else:
        out.note("No way is open.", "bold red")
    print_changes(out, one.changes)
    if others:
        out.blank()
        out.line(("Not taken", "bold"))
        for way in others:
            price = f" for {money_text(way.price_per_hour)}/h" if way.price_per_hour and way.start else ""
            by = f"{way.by}: " if way.by and way.by not in ("demand", "placement") else ""
            out.note(f"{_way_text(way)}{price}: {by}{way.reason}", "yellow")


def _cost_text(money: Money | None, tasks: int) -> str:
    return money_text(money and money.model_copy(update={"amount": money.amount * tasks}))


def _worst_text(way: QuotedWayView, tasks: int) -> str:
    return _cost_text(way.worst, tasks) or ("no limit" if way.expected else "")


def _way_text(way: QuotedWayView) -> str:
    if not way.pool:
        return f"{'on premises' if way.start else 'partition'}: {', '.join(way.partitions)}"
    if way.names:
        return f"{way.pool}: {abbreviated_list(way.names, 3)}"
    count = f"{way.nodes} x " if way.nodes > 1 else ""
    return f"{way.pool}: {count}{way.offer.split('/')[-2]} {way.market}" if way.offer else way.pool


def _times(now: datetime, times: TimeRangeView | None) -> tuple[str, str]:
    if times is None:
        return "", ""
    return _in(now, times.p50), _in(now, times.p90)


def _in(now: datetime, at: datetime) -> str:
    left = (at - now).total_seconds()
    return duration_text(left) if left >= 1 else "at once"
