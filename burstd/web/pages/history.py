"""Jobs, machines, GPUs, waits and money over time, from an hour to a year."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from burstd.api.answers.history import HistoryView
from burstd.api.routers.history import get_history
from burstd.web.rendering import PageDep

Span = Literal["hour", "day", "week", "month", "year"]
SPANS_S: Mapping[Span, float] = {
    "hour": 3600.0, "day": 86400.0, "week": 7 * 86400.0, "month": 31 * 86400.0, "year": 366 * 86400.0,
}  # fmt: skip
MAX_ROWS = 48
"""Of a table; a chart has all points."""
MAX_LINES = 8
_JOBS = {"site/jobs_pending": "waiting", "site/jobs_running": "running"}
_MACHINES = {f"site/machines_{phase}": phase for phase in ("busy", "idle", "ready", "booting", "leaving", "failed")}
_GPUS = {"site/gpus_pending": "asked for", "site/gpus_used": "in use", "site/gpus_idle": "idle in the cloud"}
_WAITS = {"site/wait_median_s": "half had waited at most", "site/wait_p90_s": "nine tenths had waited at most",
          "site/wait_s": "mean"}  # fmt: skip
_PATTERNS = (*_JOBS, *_MACHINES, *_GPUS, *_WAITS, "site/money_per_hour.*", "pool/*/wait_s")
_TIME_UNITS = ((2 * 3600, 3600, "hours"), (120, 60, "minutes"), (0, 1, "seconds"))
"""The first of them whose first number of seconds a chart reaches; how many seconds it has."""

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Line:
    """One series; None: nothing is known of that time."""

    label: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture, and its table."""

    title: str
    unit: str
    lines: Sequence[Line]
    stacked: bool = False

    def rows(self, times: Sequence[datetime]) -> list[tuple[datetime, list[float | None]]]:
        """At most MAX_ROWS moments at equal distances, the last one among them."""
        every = -(-len(times) // MAX_ROWS)
        places = range((len(times) - 1) % every, len(times), every)
        return [(times[at], [line.values[at] for line in self.lines]) for at in places]


@router.get("/history")
def history_page(page: PageDep, *, span: Span = "day") -> HTMLResponse:
    """As ``burstctl history``."""
    now, views = page.backend.now(), page.request.app.state.histories
    since = now - SPANS_S[span]
    view: HistoryView = views.get(
        (page.caller, span), now, lambda: get_history(page.caller, page.backend, since=since, series=list(_PATTERNS))
    )
    charts = history_charts(view)
    data = {
        "times": [time.timestamp() for time in view.times],
        "charts": [
            {"unit": chart.unit, "stacked": chart.stacked, "labels": [line.label for line in chart.lines],
             "values": [line.values for line in chart.lines]}
            for chart in charts
        ],
    }  # fmt: skip
    return page.render(
        "history.html", "History", span=span, spans=list(SPANS_S), view=view, charts=charts, data=data,
        day=SPANS_S[span] > SPANS_S["day"],
    )  # fmt: skip


def history_charts(view: HistoryView) -> list[Chart]:
    """The charts of which anything is known."""
    known: dict[str, Sequence[float | None]] = {one.name: one.values for one in view.series}

    def lines(names: Mapping[str, str]) -> list[Line]:
        return [Line(label, known[name]) for name, label in names.items() if name in known]

    waits = sorted(one.subject for one in view.series if one.measure == "wait_s")[:MAX_LINES]
    money = [
        Line(one.currency, [None if value is None else float(value) for value in one.values])
        for one in view.money
        if one.measure.startswith("money_per_hour.")
    ]
    charts = [
        Chart("Jobs", "jobs", lines(_JOBS)),
        Chart("Machines", "machines", lines(_MACHINES), stacked=True),
        Chart("GPUs", "GPUs", lines(_GPUS)),
        Chart("Cost of machines", f"{' or '.join(line.label for line in money)} per hour", money),
        _wait_chart("Wait of the jobs that started", lines(_WAITS)),
        _wait_chart("Mean wait by pool", lines({f"{s}/wait_s": s.partition("/")[2] for s in waits})),
    ]
    return [chart for chart in charts if chart.lines]


def _wait_chart(title: str, lines: Sequence[Line]) -> Chart:
    """In the unit in which its longest wait is a short number."""
    most = max((value for line in lines for value in line.values if value is not None), default=0.0)
    seconds, unit = next((seconds, unit) for least, seconds, unit in _TIME_UNITS if most >= least)

    def value(wait_s: float | None) -> float | None:
        return None if wait_s is None else round(wait_s / seconds, 3)

    return Chart(title, unit, [Line(line.label, [value(wait_s) for wait_s in line.values]) for line in lines])
