"""Cost and wait against the GPUs (or CPUs) that are added."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from burstd.plots.line_chart import Line, LineChart, line_chart_svg
from burstd.simulate.buy_or_rent.report import AlternativeReport, BuyOrRentReport
from burstd.simulate.report.wording import unit_for

_Figure = Callable[[AlternativeReport], float | None]


def plots_of(report: BuyOrRentReport) -> Mapping[str, str]:
    """SVG by the name of its file, without an extension."""
    return {"cost": line_chart_svg(_costs(report)), "wait": line_chart_svg(_waits(report))}


def _costs(report: BuyOrRentReport) -> LineChart:
    most = max(float(one.cost) for one in report.alternatives)
    size, word = next((s, w) for s, w in ((1e6, "million "), (1e3, "thousand "), (1.0, "")) if most >= s or s == 1.0)

    def full(one: AlternativeReport) -> float:
        return float(one.cost) / size

    def marginal(one: AlternativeReport) -> float | None:
        return None if one.marginal is None else float(one.marginal) / size

    lines: list[Line] = []
    for way in report.ways:
        for burst in (False, True):
            name = f"{way.name}{' + burst' if burst else ', no cloud'}"
            colour = len(lines)
            lines.append(_line(report, name, full, way.name, burst=burst, colour=colour))
    first = report.ways[0].name
    lines.append(_line(report, f"{first} + burst, marginal", marginal, first, burst=True, colour=1, dashed=True))
    return LineChart(
        f"Cost of {report.days} (simulated)", f"{report.unit} added to the site", f"cost ({word}{report.currency})",
        lines,
    )  # fmt: skip


def _waits(report: BuyOrRentReport) -> LineChart:
    # All ways of adding have the same waits.
    way = report.ways[0].name
    unit, size = unit_for(max((one.p90_wait_s or 0.0 for one in report.alternatives), default=0.0))

    def share(of: _Figure) -> _Figure:
        return lambda one: None if (value := of(one)) is None else value / size

    p90, p50 = share(lambda one: one.p90_wait_s), share(lambda one: one.p50_wait_s)
    lines: list[Line] = []
    for burst, place in ((False, "no cloud"), (True, "bursting")):
        lines.append(_line(report, f"90 %, {place}", p90, way, burst=burst, colour=int(burst)))
        lines.append(_line(report, f"median, {place}", p50, way, burst=burst, colour=int(burst), dashed=True))
    return LineChart("Wait of jobs (simulated)", f"{report.unit} added to the site", f"wait ({unit})", lines)


def _line(
    report: BuyOrRentReport, name: str, figure: _Figure, way: str, *, burst: bool, colour: int, dashed: bool = False
) -> Line:
    points = [
        (float(one.added), figure(one)) for one in report.alternatives if one.burst is burst and one.way in {"", way}
    ]
    return Line(name, points, colour, dashed)
