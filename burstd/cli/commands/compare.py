"""burstctl compare"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.compare_text import (
    break_even_text,
    compared_rows,
    likeness_text,
    percent_text,
    record_text,
    whose_text,
)
from burstd.api.answers.text import parse_month, plural, utc_date_text
from burstd.cli.session import ApiClient, ExitCode, job_ids, with_client

if TYPE_CHECKING:
    from burstd.api.answers.compare import CompareView
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
    whose = whose_text(answer)
    if answer.job:
        out.line((f"Job {answer.job} {whose}", "bold"), f" ({answer.name})")
    else:
        period = f"{utc_date_text(answer.since)} to {utc_date_text(answer.until)}"
        out.line((f"{plural(answer.jobs, 'job')} {whose}".strip(), "bold"), f" that ended from {period}")
    if answer.jobs:
        _print_figures(out, answer)
    if record := record_text(answer):
        out.note(record, "yellow")


def _print_figures(out: ConsoleOutput, answer: CompareView) -> None:
    rows = []
    for row in compared_rows(answer):
        places = (("here", row.here_basis), ("there", row.there_basis))
        basis = "; ".join(f"{place} {basis}" for place, basis in places if basis)
        rows.append((row.title, row.here, row.there, basis))
    out.table(("", "HERE>", "THERE>", "*"), rows)
    out.blank()
    for group in answer.groups:
        if group.utilisation is not None:
            since = f"{utc_date_text(group.since)} to {utc_date_text(answer.until)}"
            used = f"used {percent_text(group.utilisation)} from {since}"
            out.note(f"Group {group.group}: {plural(group.nodes, 'node')}, {used}.")
    for sentence in (break_even_text(answer), likeness_text(answer), *answer.limits):
        out.note(sentence)
