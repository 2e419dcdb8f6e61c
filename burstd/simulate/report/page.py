"""One HTML page of a report. Its script and style are in it: it loads nothing."""

from __future__ import annotations

import hashlib
import math
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from burstd.simulate.report.columns import report_columns, summary_sentences
from burstd.simulate.report.report import ChainReport, SimulationReport, pareto_front
from burstd.simulate.report.wording import day_and_time, format_amount, format_duration, unit_for

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FAR = 3.0
"""A wait this many times the next one would squeeze all others: its chain stands at the upper edge."""


def render_page(report: SimulationReport) -> str:
    """The whole document."""
    # The licence replaces the script's first line, an address: the page names none.
    script = read_resource("vendor/uplot/uPlot.iife.min.js").partition("\n")[2]
    uplot = f"/*! uPlot\n{read_resource('vendor/uplot/LICENSE')}*/\n{script}"
    scripts = [uplot, read_resource("simulate/report/page.js")]
    style = read_resource("vendor/uplot/uPlot.min.css") + "\n" + read_resource("simulate/report/page.css")
    columns = report_columns(report)
    tables = [[column for column in columns if column.in_main_table is main] for main in (True, False)]
    admitted = f"script-src {' '.join(map(content_hash, scripts))}; style-src {content_hash(style)}"
    return page_template("simulate/report/page.html.j2").render(
        report=report,
        facts=_facts(report),
        sentences=list(summary_sentences(report)),
        tables=[table for table in tables if table],
        data=page_data(report),
        policy=f"default-src 'none'; {admitted}",
        style=Markup(style),  # noqa: S704  # files of this package
        scripts=[Markup(script) for script in scripts],  # noqa: S704
    )


def page_data(report: SimulationReport) -> dict[str, Any]:
    """What ``page.js`` draws: JSON. Waits of a scatter are in its unit, all other times in seconds."""
    courses = [chain.course for chain in report.chains if chain.course.time]
    return {
        "chains": [
            {
                "name": chain.chain,
                "baseline": chain.baseline,
                "course": chain.course.model_dump(mode="json"),
                "wait_s": chain.waits.wait_s,
            }
            for chain in report.chains
        ],
        "scatters": list(_scatters(report.chains)),
        "shares": next((chain.waits.share for chain in report.chains if chain.waits.share), ()),
        "timeline": {
            "end": max((course.time[-1] for course in courses), default=0),
            "window_end": report.window.end.timestamp(),
            "site_size": report.site_size,
            "site_unit": report.site_unit,
        },
    }


def read_resource(path: str) -> str:
    """A file of the package burstd."""
    return files("burstd").joinpath(path).read_text(encoding="utf-8")


def content_hash(text: str) -> str:
    """By which a policy of a page admits a script or a style."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_template(path: str) -> Template:
    """A template of the package burstd; what it shows is escaped."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_without_controls
    )
    return environment.from_string(read_resource(path))


def _without_controls(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", value)
    return value


def _facts(report: SimulationReport) -> list[tuple[str, str]]:
    window = report.window
    days = format_amount((window.end - window.start).total_seconds() / 86400)
    jobs = max((chain.jobs for chain in report.chains), default=0)
    dates = f"{day_and_time(window.start)} to {day_and_time(window.end)} UTC ({days} days), {jobs:,} jobs"
    return [
        ("trace", report.trace), ("window", dates), ("site", report.site), ("clouds", report.cloud),
        ("seed", str(report.seed)),
    ]  # fmt: skip


def _scatters(chains: tuple[ChainReport, ...]) -> Iterator[dict[str, Any]]:
    in_gpus = any(chain.cloud_gpu_hours for chain in chains)
    currency = next((f" ({chain.currency})" for chain in chains if chain.currency), "")
    against: list[tuple[str, list[float]]] = [
        ("cloud GPU-hours", [c.cloud_gpu_hours for c in chains])
        if in_gpus
        else ("cloud node-hours", [c.cloud_node_hours for c in chains])
    ]
    if any(chain.cost for chain in chains):
        against.append((f"cost of the cloud{currency}", [float(c.cost) for c in chains]))
    waits: list[tuple[str, Callable[[ChainReport], float | None]]] = [
        ("mean wait", lambda c: c.mean_wait_s), ("p95 of waits", lambda c: c.p95_wait_s),
    ]  # fmt: skip
    for title, xs in against:
        for wait, figure in waits:
            yield _scatter(chains, title, xs, wait, [figure(chain) for chain in chains])


def _scatter(
    chains: tuple[ChainReport, ...], title: str, xs: list[float], wait: str, waits_s: list[float | None]
) -> dict[str, Any]:
    top = _top(sorted(w for w in waits_s if w is not None))
    unit, size = unit_for(top)
    front = pareto_front([(x, math.inf if w is None else w) for x, w in zip(xs, waits_s, strict=True)])
    points = []
    for chain, x, w, on_front in zip(chains, xs, waits_s, front, strict=True):
        far = w is None or w > top
        points.append({
            "x": x, "y": (top if w is None or far else w) / size, "front": on_front,
            "far": f": {format_duration(w)} \N{UPWARDS ARROW}" if far else "",
            "tip": f"{chain.chain}: {wait} {format_duration(w)}, {format_amount(x)} {title}",
        })  # fmt: skip
    return {"wait": f"{wait} ({unit})", "against": title, "top": top / size, "points": points}


def _top(waits_s: list[float]) -> float:
    """The longest wait drawn to scale: at most a third of the points stand at the edge."""
    left = list(waits_s)
    while len(left) > max(2, len(waits_s) * 2 // 3) and left[-1] > _FAR * max(left[-2], 1.0):
        left.pop()
    return max(left[-1] if left else 0.0, 1.0)
