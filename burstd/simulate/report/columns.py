"""The table of chains: its columns, for a terminal and for a page alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from burstd.simulate.report import wording
from burstd.simulate.report.report import ChainReport, SimulationReport

_Cell = Callable[[ChainReport], str]
_NOTHING = "\N{EN DASH}"
_ALWAYS = {"mean_wait_s", "p50_wait_s", "p95_wait_s", "max_wait_s", "bounded_slowdown", "cost", "waste", "cloud_jobs"}


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A figure of the report, for people. ``about`` explains it."""

    figure: str
    head: str
    description: str
    cell: _Cell
    in_main_table: bool = True
    """In the terminal's table, and in the first one of the page."""
    only_page: bool = False


def report_columns(report: SimulationReport) -> list[ReportColumn]:
    """Those that say something: none for spot machines where none was lost."""
    chains = report.chains
    return [column for column in _all(report) if column.figure in _ALWAYS or any(map(_says(column), chains))]


def table_heads(report: SimulationReport) -> tuple[str, ...]:
    """Of the table for a terminal; ``>`` stands behind what is flush right."""
    return (
        "chain",
        *(f"{column.head}>" for column in report_columns(report) if column.in_main_table and not column.only_page),
    )


def table_rows(report: SimulationReport) -> Iterator[tuple[str, ...]]:
    """Of the same table; the best values have a star."""
    shown = [column for column in report_columns(report) if column.in_main_table and not column.only_page]
    for chain in report.chains:
        yield (chain.chain, *(f"{c.cell(chain)}{'*' if c.figure in chain.best else ' '}" for c in shown))


def summary_sentences(report: SimulationReport) -> Iterator[str]:
    """Each chain that is no baseline beside ``immediate``, in a sentence."""
    immediate = next((chain for chain in report.chains if chain.chain == "immediate"), None)
    for chain in report.chains:
        against = chain.against_immediate
        if immediate is None or chain.baseline or against is None or against.cloud_gpu_hours is None:
            continue
        p95, its_p95 = wording.format_duration(chain.p95_wait_s), wording.format_duration(immediate.p95_wait_s)
        yield (
            f"{chain.chain}: {_used(against.cloud_gpu_hours, _hours(report.chains))}, "
            f"mean wait {_by(against.mean_wait_s)}; p95 {p95}, that of immediate {its_p95}"
        )


def _used(share: float, hours: str) -> str:
    if abs(share) < 0.005:
        return f"as many cloud {hours} as immediate"
    return f"{abs(share) * 100:.0f} % {'fewer' if share < 0 else 'more'} cloud {hours} than immediate"


def _by(seconds: float) -> str:
    if abs(seconds) < 0.5:
        return "the same"
    return f"{wording.format_duration(abs(seconds))} {'longer' if seconds > 0 else 'shorter'}"


def _hours(chains: Sequence[ChainReport]) -> str:
    return "GPU-hours" if any(chain.cloud_gpu_hours for chain in chains) else "node-hours"


def _says(column: ReportColumn) -> Callable[[ChainReport], bool]:
    def says(chain: ChainReport) -> bool:
        return bool(getattr(chain, column.figure))

    return says


def _all(report: SimulationReport) -> list[ReportColumn]:
    chains = report.chains
    currency = next((f" ({chain.currency})" for chain in chains if chain.currency), "")
    return [
        _wait(chains, "mean_wait_s", "mean wait", "from submission to start, mean of all jobs"),
        _wait(chains, "p50_wait_s", "p50", "half of the jobs waited at most so long"),
        _wait(chains, "p95_wait_s", "p95", "95 % of the jobs waited at most so long"),
        _wait(chains, "max_wait_s", "max", "the longest wait"),
        ReportColumn(
            "bounded_slowdown",
            "slowdown",
            "bounded slowdown: mean of (wait + run) / run, runs under 10 s as 10 s",
            lambda c: "\N{INFINITY}" if c.bounded_slowdown is None else f"{c.bounded_slowdown:,.2f}",
        ),
        ReportColumn(
            "cloud_gpu_hours",
            "cloud GPU-h",
            "paid for, from launch to end, with boot and idle time",
            lambda c: wording.format_amount(c.cloud_gpu_hours),
        ),
        ReportColumn(
            "cloud_node_hours",
            "cloud node-h",
            "the same, in machines",
            lambda c: wording.format_amount(c.cloud_node_hours),
            in_main_table=not any(chain.cloud_gpu_hours for chain in chains),
        ),
        ReportColumn("cost", f"cost{currency}", "of the cloud machines", lambda c: f"{c.cost:,.2f}"),
        ReportColumn("waste", "waste", "share of the paid time without a job on the machine", _share("waste")),
        _more("against_immediate", f"{_hours(chains)} to immediate", "used beside immediate", _against_hours),
        _more("against_immediate", "mean wait to immediate", "mean wait beside that of immediate", _against_wait),
        _counted("cloud_jobs", "cloud jobs", "jobs that ran on cloud machines"),
        _counted("unfinished", "unfinished", "jobs that had not ended when the replay was stopped"),
        _counted("impossible", "impossible", "jobs that no node can ever run; they count nowhere else"),
        _counted("launches", "launches", "cloud machines started", chief=False),
        _counted("stockouts", "stockouts", "launches that the cloud had no machine for", chief=False),
        _counted("interruptions", "taken back", "spot machines that were taken back", chief=False),
        ReportColumn(
            "used_site", "site used", "share of the site that was in use", _share("used_site"), in_main_table=False
        ),
    ]


def _wait(chains: Sequence[ChainReport], figure: str, head: str, about: str) -> ReportColumn:
    found = [getattr(chain, figure) for chain in chains]
    unit, size = wording.unit_for(median([wait for wait in found if wait] or [0.0]))
    return ReportColumn(figure, f"{head} ({unit})", about, lambda c: wording.in_unit(getattr(c, figure), size))


def _counted(figure: str, head: str, about: str, *, chief: bool = True) -> ReportColumn:
    return ReportColumn(figure, head, about, lambda chain: f"{getattr(chain, figure):,}", chief)


def _more(figure: str, head: str, about: str, cell: _Cell) -> ReportColumn:
    """For the page only."""
    return ReportColumn(figure, head, about, cell, only_page=True)


def _share(figure: str) -> _Cell:
    return lambda chain: wording.format_share(getattr(chain, figure))


def _against_hours(chain: ChainReport) -> str:
    against = chain.against_immediate
    return (
        _NOTHING
        if against is None or against.cloud_gpu_hours is None
        else wording.format_change(against.cloud_gpu_hours)
    )


def _against_wait(chain: ChainReport) -> str:
    return (
        _NOTHING
        if chain.against_immediate is None
        else wording.format_duration_change(chain.against_immediate.mean_wait_s)
    )
