"""burstctl simulate --compare"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from burstd.cli.offline.study_answer import answer_study, write_page
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import ApiClient, ExitCode

if TYPE_CHECKING:
    from burstd.simulate.buy_or_rent.alternatives import AddedReplay
    from burstd.simulate.buy_or_rent.report import BuyOrRentReport
    from burstd.simulate.study import Study

_TIMES = 7
"""Columns of the table up to those of money."""
_NUMBERS = re.compile(r"\d{1,6}(,\d{1,6}){0,15}", re.ASCII)


def show_buy_or_rent(
    burstctl: ApiClient,
    study: Study,
    added: str,
    group: str,
    committed: Sequence[str],
    html: Path | None,
    plots: Path | None,
) -> None:
    """Prints what more GPUs on premises would have cost and brought, and writes the page and the plots."""
    from burstd.simulate.buy_or_rent.prices import BuyOrRentError, parse_commitments
    from burstd.simulate.buy_or_rent.replay import Question, replay_buy_or_rent

    if not _NUMBERS.fullmatch(added):
        burstctl.fail(ExitCode.USAGE, f"--compare {added!r} is no list of numbers, 16 at most; write 8,16,32")
    try:
        question = Question([int(number) for number in added.split(",")], group, parse_commitments(committed))
    except BuyOrRentError as error:
        burstctl.fail(ExitCode.USAGE, str(error))
    found = answer_study(burstctl, study, lambda prepared: replay_buy_or_rent(prepared, question, _progress))
    files: list[Path] = []
    if html is not None:
        from burstd.simulate.buy_or_rent.page import render_page

        write_page(burstctl, html, render_page(found))
        files.append(html)
    if plots is not None:
        files += _write_plots(burstctl, plots, found)
    if burstctl.json:
        sys.stdout.write(found.json_text())
        return
    print_buy_or_rent(found)
    if files:
        ConsoleOutput().line(f"Written: {', '.join(map(str, files))}")


def _progress(replay: AddedReplay) -> None:
    """Tells a person who waits which replay is done."""
    if sys.stderr.isatty():
        sys.stderr.write(f"+{replay.units}{', burst' if replay.burst else ''}: {replay.jobs} jobs\n")


def _write_plots(burstctl: ApiClient, folder: Path, found: BuyOrRentReport) -> list[Path]:
    from burstd.plots.files import NoPngError, write_png, write_svg
    from burstd.simulate.buy_or_rent.plots import plots_of

    try:
        drawn = write_svg(folder, plots_of(found))
        try:
            return drawn + write_png(drawn)
        except NoPngError as error:
            sys.stderr.write(f"{error}\n")
            return drawn
    except OSError as error:
        burstctl.fail(ExitCode.NEGATIVE, f"{error.filename or folder} cannot be written: {error.strerror or error}")


def print_buy_or_rent(found: BuyOrRentReport) -> None:
    """For a terminal."""
    from burstd.simulate.buy_or_rent.columns import alternative_columns, alternative_rows
    from burstd.simulate.buy_or_rent.page import facts

    out = ConsoleOutput()
    out.line((f"{found.title}: buy, rent or burst", "bold"), " (simulated)")
    out.pairs(facts(found))
    out.blank()
    heads = [f"{found.unit}>", "", *(f"{column.head}>" for column in alternative_columns(found))]
    rows = [*alternative_rows(found)]
    if not out.table(heads, rows, only_if_fits=True):
        # Times and use, then money, so that a narrow window has every figure whole.
        out.table(heads[:_TIMES], [row[:_TIMES] for row in rows])
        out.blank()
        out.table((*heads[:2], *heads[_TIMES:]), [(*row[:2], *row[_TIMES:]) for row in rows])
    out.blank()
    for sentence in found.verdict:
        out.line(sentence)
    for note in found.notes:
        out.note(note, "dim", indent=0)
