"""burstctl history"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from csv import writer
from typing import TYPE_CHECKING, Annotated

import typer

from burstd.api.answers.text import duration_text, local_time_text, money_text
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import safe_text
from burstd.cli.session import ApiClient, ExitCode, with_client

if TYPE_CHECKING:
    from decimal import Decimal

    from burstd.api.answers.history import HistoryView, MoneySeriesView, SeriesView

_BARS = " ▁▂▃▄▅▆▇█"
_WIDTH = 40
DEFAULT_SERIES = ("site/*", "pool/*/machines_busy", "pool/*/wait_s")


@with_client
def history(
    burstd: ApiClient,
    series: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SERIES]...", help="Names or patterns: 'site/*', 'pool/gpu/*', 'project/*/wait_s'."),
    ] = None,
    since: Annotated[str, typer.Option(metavar="TIME", help="From: 7d (ago), 2026-09-01.")] = "7d",
    until: Annotated[str, typer.Option(metavar="TIME", help="To; default: now.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print a row for each step, a column for each series.")] = False,
) -> None:
    """Demand, machines, waits and money over time."""
    from urllib.parse import urlencode

    from burstd.api.answers.history import HistoryView

    times = burstd.parse_times(since=since, until=until)
    query = urlencode([*times.items(), *(("series", name) for name in series or DEFAULT_SERIES)])
    if csv and burstd.json:
        burstd.fail(ExitCode.USAGE, "Say --csv or --json, not both.")
    answer = burstd.get_json(f"/history?{query}")
    if csv:
        write_csv(burstd.parse(HistoryView, answer))
    else:
        burstd.show(HistoryView, answer, print_series)


def write_csv(answer: HistoryView) -> None:
    """To standard output: UTC times, and values in the units of the API; empty where nothing is known."""
    columns: list[SeriesView | MoneySeriesView] = [*answer.series, *answer.money]
    rows = writer(sys.stdout, lineterminator="\n")
    rows.writerow(["time", *(safe_text(one.name) for one in columns)])
    for time, *values in zip(answer.times, *(one.values for one in columns), strict=True):
        rows.writerow([f"{time:%Y-%m-%dT%H:%M:%SZ}", *values])


def print_series(out: ConsoleOutput, answer: HistoryView, width: int = _WIDTH) -> None:
    """A line for each series, with at most ``width`` bars."""
    if not answer.series and not answer.money:
        out.line("Nothing is on record of this time that fits, or that you may see.")
        return
    begin, end = (local_time_text(time, answer.now) for time in (answer.since, answer.until))
    out.line(f"from {begin} to {end}, in steps of {duration_text(answer.step_s)}")
    out.table(
        ("SERIES", "LAST>", "MEAN>", "MAX>", ""),
        [*(_row(one, width) for one in answer.series), *(_money_row(one, width) for one in answer.money)],
    )


def _row(series: SeriesView, width: int) -> tuple[str, str, str, str, str]:
    known = [value for value in series.values if value is not None]
    unit = duration_text if series.measure.startswith("wait_") else _number_text
    most = max((value for value in (series.peaks or series.values) if value is not None), default=0.0)
    mean = sum(known) / len(known) if known else 0.0
    return series.name, unit(known[-1]) if known else "", unit(mean), unit(most), bars(series.values, width)


def _money_row(series: MoneySeriesView, width: int) -> tuple[str, str, str, str, str]:
    from decimal import Decimal

    from burstd.api.answers.base import Money

    known = [value for value in series.values if value is not None]
    most = max((value for value in (series.peaks or series.values) if value is not None), default=None)
    mean = sum(known, Decimal(0)) / len(known) if known else None

    def text(amount: Decimal | None) -> str:
        return "" if amount is None else money_text(Money(amount=amount, currency=series.currency))

    drawn = bars([None if value is None else float(value) for value in series.values], width)
    return series.name, text(known[-1] if known else None), text(mean), text(most), drawn


def _number_text(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def bars(values: Sequence[float | None], width: int = _WIDTH) -> str:
    """The values as bars from zero to the largest, neighbours averaged where there are more; a dot: not known."""
    columns = min(width, len(values))
    found = []
    for column in range(columns):
        some = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        known = [value for value in some if value is not None]
        found.append(sum(known) / len(known) if known else None)
    most = max((value for value in found if value is not None), default=0.0)
    steps = len(_BARS) - 1
    return "".join("·" if v is None else _BARS[max(0, round(steps * v / most)) if most > 0 else 0] for v in found)
