"""burstctl compare"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import duration_text, money_sums_text, parse_month, plural, utc_date_text
from burstd.cli.session import ApiClient, ExitCode, job_ids, with_client

if TYPE_CHECKING:
    from burstd.api.answers.compare import BasisView, CompareView, CostFigureView, TimeFigureView
    from burstd.cli.output import ConsoleOutput

_JobArgument = Annotated[
    str, typer.Argument(metavar="[JOB]", help="123, 123_7 or 123+1, which is over.", autocompletion=job_ids)
]


@with_client
def compare(
    burstd: ApiClient,
    job: _JobArgument = "",
    user: Annotated[str, typer.Option(help="Jobs of this user.")] = "",
    project: Annotated[str, typer.Option(help="Jobs of this project (account).")] = "",
    month: Annotated[
        str, typer.Option(metavar="MONTH", help="Jobs that ended in it (UTC): 2026-10; default: this month.")
    ] = "",
) -> None:
    """Times and costs of jobs on the site's own nodes beside those on clouds, measured or estimated.

    Of one job, or the sums over all of a month.
    """
    from burstd.api.answers.compare import CompareView

    if job and (user or project or month):
        burstd.fail(ExitCode.USAGE, "Say a job, or --user, --project and --month.")
    params: dict[str, str | int | float] = {"job": job, "user": user, "account": project}
    if month:
        try:
            params |= zip(("since", "until"), parse_month(month), strict=True)
        except ValueError as error:
            burstd.fail(ExitCode.USAGE, f"--month: {error}.")
    burstd.show(CompareView, burstd.get_json("/compare", params), print_comparison)


def print_comparison(out: ConsoleOutput, answer: CompareView) -> None:
    """Times and costs at both places, and on what each rests."""
    whose = [f"{word} {name}" for word, name in (("of", answer.user), ("of project", answer.account)) if name]
    period = f"{utc_date_text(answer.since)} to {utc_date_text(answer.until)}"
    if answer.job:
        out.line((f"Job {answer.job} {' '.join(whose)}", "bold"), f" ({answer.name})")
    else:
        jobs = f"{plural(answer.jobs, 'job')} {' '.join(whose)}".strip()
        out.line((jobs, "bold"), f" that ended from {period}")
    if answer.jobs:
        _print_figures(out, answer)
    first = answer.first_run
    if first is not None and first > answer.told_since:
        out.note(f"The first run on record ended on {utc_date_text(first)}.", "yellow")


def _print_figures(out: ConsoleOutput, answer: CompareView) -> None:
    here, there, jobs = answer.here, answer.there, answer.jobs
    rows = [
        (title, _time_text(one), _time_text(other), _both_text(one.basis, other.basis, jobs))
        for title, one, other in (
            ("wait", here.wait, there.wait), ("run", here.run, there.run),
            ("submission to end", here.completion, there.completion),
        )
    ]  # fmt: skip
    rows += [
        ("cost, used price", _cost_text(here.used), "", f"here {_basis_text(here.used.basis, jobs)}"),
        ("cost, marginal price", _cost_text(here.marginal), "", f"here {_basis_text(here.marginal.basis, jobs)}"),
        ("cost, charged", "", _cost_text(there.charged), f"there {_basis_text(there.charged.basis, jobs)}"),
    ]
    out.table(("", "HERE>", "THERE>", "*"), rows)
    out.blank()
    for group in answer.groups:
        if group.utilisation is not None:
            since = f"{utc_date_text(group.since)} to {utc_date_text(answer.until)}"
            out.note(
                f"Group {group.group}: {plural(group.nodes, 'node')}, used {_percent(group.utilisation)} from {since}."
            )
    if answer.break_even is not None:
        out.note(f"Own nodes cost as much as there when {_percent(answer.break_even)} of their hours are used.")
    else:
        out.note(f"No break-even: {answer.break_even_reason}.")
    out.note(f"Like jobs: same user, name, nodes, CPUs and GPUs; they ended since {utc_date_text(answer.told_since)}.")
    for sentence in answer.limits:
        out.note(sentence)


def _percent(part: Decimal) -> str:
    return f"{100 * part:.1f} %"


def _time_text(figure: TimeFigureView) -> str:
    return "-" if figure.seconds is None else duration_text(figure.seconds)


def _cost_text(figure: CostFigureView) -> str:
    return "-" if figure.costs is None else money_sums_text(figure.costs)


def _both_text(here: BasisView, there: BasisView, jobs: int) -> str:
    return f"here {_basis_text(here, jobs)}; there {_basis_text(there, jobs)}"


def _basis_text(basis: BasisView, jobs: int) -> str:
    """``measured``; ``12 measured, 3 estimated by 20 like jobs``."""
    parts = [
        (basis.measured, "measured"),
        (basis.like, f"estimated by {plural(basis.like_jobs, 'like job')}"),
        (basis.others, f"estimated by {basis.other_jobs} other{'' if basis.other_jobs == 1 else 's'}"),
        (basis.assumed, "taken to be the same, no speed is known"),
        (basis.unknown, f"not known: {basis.reason}"),
    ]
    return ", ".join(text if number == jobs else f"{number} {text}" for number, text in parts if number)
