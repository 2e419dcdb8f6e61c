"""A comparison of here and there in words: ``burstctl compare`` and its page."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from burstd.api.answers.text import duration_text, money_sums_text, plural, utc_date_text

if TYPE_CHECKING:
    from burstd.api.answers.compare import BasisView, CompareView, CostFigureView, TimeFigureView


_ONE_PERCENT = Decimal("0.01")


class ComparedRow(NamedTuple):
    """One figure at both places, and what it rests on; empty: it is of the other place only."""

    title: str
    here: str = ""
    here_basis: str = ""
    there: str = ""
    there_basis: str = ""
    note: str = ""
    """What it is for."""


def compared_rows(answer: CompareView) -> Sequence[ComparedRow]:
    """Times, then costs; ``-`` is what is not known."""
    here, there, jobs = answer.here, answer.there, answer.jobs
    return (
        ComparedRow("wait", *_time_texts(here.wait, jobs), *_time_texts(there.wait, jobs)),
        ComparedRow("run", *_time_texts(here.run, jobs), *_time_texts(there.run, jobs)),
        ComparedRow("submission to end", *_time_texts(here.completion, jobs), *_time_texts(there.completion, jobs)),
        ComparedRow("cost, used price", *_cost_texts(here.used, jobs), note="idle hours included: to buy or to rent"),
        ComparedRow("cost, marginal price", *_cost_texts(here.marginal, jobs), note="added: where to run the next"),
        ComparedRow("cost, charged", "", "", *_cost_texts(there.charged, jobs), note="as on the bill"),
    )


def whose_text(answer: CompareView) -> str:
    """``of ada``, ``of project atlas``, both, or nothing."""
    names = (("of", answer.user), ("of project", answer.account))
    return " ".join(f"{word} {name}" for word, name in names if name)


def percent_text(part: Decimal) -> str:
    """``83.1 %``; of less than one, two digits that tell: ``0.019 %``."""
    return f"{100 * part:.2g} %" if 0 < part < _ONE_PERCENT else f"{100 * part:.1f} %"


def break_even_text(answer: CompareView) -> str:
    """A sentence."""
    if answer.break_even is None:
        return f"No break-even: {answer.break_even_reason}."
    return f"Own nodes cost as much as there when {percent_text(answer.break_even)} of their hours are used."


def likeness_text(answer: CompareView) -> str:
    """Which jobs are like jobs, in a sentence."""
    return f"Like jobs: same user, name, nodes, CPUs and GPUs; they ended since {utc_date_text(answer.told_since)}."


def record_text(answer: CompareView) -> str:
    """From when on runs are on record, if that is later than what is asked for; else empty."""
    first = answer.first_run
    if first is None or first <= answer.told_since:
        return ""
    return f"The first run on record ended on {utc_date_text(first)}."


def _time_texts(figure: TimeFigureView, jobs: int) -> tuple[str, str]:
    return "-" if figure.seconds is None else duration_text(figure.seconds), _basis_text(figure.basis, jobs)


def _cost_texts(figure: CostFigureView, jobs: int) -> tuple[str, str]:
    return "-" if figure.costs is None else money_sums_text(figure.costs), _basis_text(figure.basis, jobs)


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
