"""One HTML page of a report: no script, and nothing from anywhere else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from burstd.simulate.plots import marks
from burstd.simulate.plots.course import TimelineData, TimelineScales, timeline_chart
from burstd.simulate.plots.markup import Markup, joined, tag
from burstd.simulate.plots.scatter import ScatterPoint, scatter_chart
from burstd.simulate.plots.spread import DistributionLine, distribution_chart
from burstd.simulate.plots.wording import day_and_time, format_amount, format_duration
from burstd.simulate.report.columns import ReportColumn, report_columns, summary_sentences
from burstd.simulate.report.report import ChainReport, SimulationReport

_HOW = (
    (
        "Each chain of policies had the same jobs, the same site and the same clouds; only its decisions differ. "
        "never, immediate and aged are there to compare with (hollow points): no cloud at all, the cloud for whatever "
        "cannot start now, and the cloud for what has waited for so many seconds."
    ),
    (
        "Look for a chain that lies low and to the left in the first plots: short waits for little money. The dashed "
        "line joins those that no other chain beats in both. Then look at p95: a mean can be short while some jobs "
        "wait long."
    ),
    (
        "Machines, prices, boot times, stockouts and losses are those of a model, given above: the figures tell chains "
        "apart, they are no bill."
    ),
)
_BEST = "Bold on a tint: no chain is better in this figure (in figures of the cloud: no chain that used it)."
_FOOT = "Written by burstctl simulate. The same trace, options and seed ({}) give this page again."
_SCALES = (
    "All chains on the same scales; each slice of time shows the most that it saw. Times are UTC; the dotted line is "
    "the end of the window."
)


def render_page(report: SimulationReport) -> str:
    """The whole document."""
    chains = list(enumerate(report.chains))
    body = [
        _head(report),
        *_section("Chains", *_tables(report, chains)),
        *_section("Wait against what it costs", *_scatters(chains)),
        *_section("Over time", *_courses(report, chains)),
        *_section("How waits are distributed", *_spread(chains)),
        tag("footer", tag("p", _FOOT.format(report.seed))),
    ]  # fmt: skip
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = [
        tag("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", report.title),
        tag("style", Markup(files("burstd.simulate.report").joinpath("page.css").read_text(encoding="utf-8"))),
    ]
    whole = tag("html", tag("head", *head), tag("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _section(title: str, *parts: Markup) -> Iterator[Markup]:
    if any(parts):
        yield tag("h2", title)
        yield from parts


def _head(report: SimulationReport) -> Markup:
    window = report.window
    days = (window.end - window.start).total_seconds() / 86400
    dates = f"{day_and_time(window.start)} to {day_and_time(window.end)} UTC ({format_amount(days)} days)"
    facts = (
        ("trace", report.trace),
        ("window", f"{dates}, {_jobs(report)}"),
        ("site", report.site),
        ("clouds", report.cloud),
        ("seed", str(report.seed)),
    )  # fmt: skip
    listed = [part for name, text in facts if text for part in (tag("dt", name), tag("dd", text))]
    notes = tag("ul", *(tag("li", note) for note in report.notes)) if report.notes else Markup()
    results = joined(*_section("In short", _short(report)), *_section("What was taken for granted", notes))
    reading = joined(*_section("How to read this page", *(tag("p", text) for text in _HOW)))
    halves = [tag("div", part) for part in (results, reading) if part]
    return joined(tag("h1", report.title), tag("dl", *listed, class_="facts"), tag("div", *halves, class_="pair"))


def _jobs(report: SimulationReport) -> str:
    return f"{max((chain.jobs for chain in report.chains), default=0):,} jobs"


def _short(report: SimulationReport) -> Markup:
    items = [tag("li", text) for text in summary_sentences(report)]
    return tag("ul", *items) if items else Markup()


def _tables(report: SimulationReport, chains: list[tuple[int, ChainReport]]) -> Iterator[Markup]:
    shown = report_columns(report)
    for chief, caption in ((True, _BEST), (False, "")):
        part = [column for column in shown if column.in_main_table is chief]
        if part:
            yield tag("div", _table(part, chains, caption), class_="wide")
    meanings = [part for column in shown for part in (tag("dt", column.head), tag("dd", column.description))]
    yield tag("details", tag("summary", "What the columns mean"), tag("dl", *meanings, class_="facts"))


def _table(shown: Sequence[ReportColumn], chains: list[tuple[int, ChainReport]], caption: str) -> Markup:
    head = tag(
        "tr", tag("th", "chain", scope="col"), *(tag("th", c.head, scope="col", title=c.description) for c in shown)
    )
    rows = []
    for place, chain in chains:
        cells = [tag("td", c.cell(chain), class_="best" if c.figure in chain.best else None) for c in shown]
        name = tag("div", marks.legend_sample(place, hollow=chain.baseline), tag("span", _breakable(chain.chain)))
        rows.append(tag("tr", tag("th", name, scope="row"), *cells))
    captions = [tag("caption", caption)] if caption else []
    return tag("table", *captions, tag("thead", head), tag("tbody", *rows))


def _breakable(name: str) -> Markup:
    """A long chain breaks between its policies."""
    first, *others = name.split(",")
    return joined(first, *(joined(",", tag("wbr"), other) for other in others))


def _scatters(chains: list[tuple[int, ChainReport]]) -> Iterator[Markup]:
    in_gpus = any(chain.cloud_gpu_hours for _, chain in chains)
    currency = next((chain.currency for _, chain in chains if chain.currency), "")
    against: list[tuple[str, Callable[[ChainReport], float]]] = [
        ("cloud GPU-hours", lambda c: c.cloud_gpu_hours)
        if in_gpus
        else ("cloud node-hours", lambda c: c.cloud_node_hours)
    ]
    if any(chain.cost for _, chain in chains):
        against.append(
            (f"cost of the cloud ({currency})" if currency else "cost of the cloud", lambda c: float(c.cost))
        )
    waits: list[tuple[str, Callable[[ChainReport], float | None]]] = [
        ("mean wait", lambda c: c.mean_wait_s), ("p95 of waits", lambda c: c.p95_wait_s),
    ]  # fmt: skip
    for title, x in against:
        plots = []
        for wait, y in waits:
            points = [
                ScatterPoint(
                    place, c.chain, x(c), _finite(y(c)), c.baseline,
                    f"{c.chain}: {wait} {format_duration(y(c))}, {format_amount(x(c))} {title}",
                )
                for place, c in chains
            ]  # fmt: skip
            plots.append(scatter_chart(points, wait, title))
        yield tag("div", *plots, class_="pair")


def _finite(value: float | None) -> float:
    return math.inf if value is None else value


def _courses(report: SimulationReport, chains: list[tuple[int, ChainReport]]) -> Iterator[Markup]:
    slices = [
        TimelineData(
            place, c.chain, c.course.time, c.course.pending_jobs, c.course.site_busy, c.course.cloud_nodes,
            c.course.cloud_busy,
        )
        for place, c in chains if c.course.time
    ]  # fmt: skip
    if not slices:
        return
    scales = TimelineScales.for_chains(slices, report.window.end.timestamp(), report.site_size, report.site_unit)
    yield tag("p", _SCALES)
    for one in slices:
        baseline = report.chains[one.chain_index].baseline
        name = tag("h3", marks.legend_sample(one.chain_index, hollow=baseline), one.name)
        yield tag("div", name, tag("div", timeline_chart(one, scales), class_="wide"), class_="whole")


def _spread(chains: list[tuple[int, ChainReport]]) -> Iterator[Markup]:
    lines = [
        DistributionLine(place, c.baseline, c.waits.share, c.waits.wait_s, _waited(c))
        for place, c in chains
        if c.waits.share
    ]
    if not lines:
        return
    items = [tag("li", marks.legend_sample(place, hollow=c.baseline), c.chain) for place, c in chains if c.waits.share]
    key = tag("ul", *items, class_="key")
    yield tag("div", key, tag("div", distribution_chart(lines), class_="wide"), class_="whole")


def _waited(chain: ChainReport) -> str:
    half, most = format_duration(chain.p50_wait_s), format_duration(chain.p95_wait_s)
    return f"{chain.chain}: half of the jobs waited at most {half}, 95 % of them at most {most}"
