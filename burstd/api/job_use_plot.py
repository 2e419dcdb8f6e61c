"""What a job used, as a picture (SVG): CPUs, memory and the utilisation of each GPU over time, a row for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

from markupsafe import escape

from burstd.domain.job_use import JobUse, Series
from burstd.domain.units import memory_text, span_text
from burstd.plots.svg import svg_document, value_ticks

MAX_ROWS = 24
"""A job on many nodes has more; the first are drawn."""
MAX_NODES = MAX_ROWS // 2
"""So many nodes fill them: each that has series has CPUs and memory at least."""
_WIDTH, _ROW, _LEFT, _TOP, _PLOT = 900, 110, 230, 40, 70
_RIGHT = 20
_MOST_TICKS = 6
_NOTHING = 1e-6
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600 * hours for hours in (1, 2, 3, 6, 12, 24, 48, 96)),
)


@dataclass(frozen=True, slots=True)
class _Row:
    title: str
    note: str
    series: Series
    most: float
    format_tick: Callable[[float], str]


def job_use_svg(use: JobUse) -> str:
    """The picture, which stands by itself; light or dark as its reader prefers."""
    rows = [row for row in _rows(use) if row.series.mean]
    shown = rows[:MAX_ROWS]
    begin = min((row.series.start for row in shown), default=use.started)
    end = max((row.series.start + row.series.every_s * len(row.series.mean) for row in shown), default=begin)
    height = _TOP + _ROW * max(1, len(shown)) + 20
    when = datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d %H:%M UTC")
    read = sum(node.cpu_series is not None for node in use.nodes)
    more = len(rows) > len(shown) or MAX_NODES <= read < len(use.nodes)
    left_out = f"; the first {len(shown)} plots are drawn" if more else ""
    about = escape(f"Job {use.job} from {when}, {span_text(end - begin)}{left_out}; line: mean, area: peak")
    parts = [f'<text x="10" y="20" font-size="14">{about}</text>']
    if not shown:
        parts.append(f'<text font-size="12" x="10" y="{_TOP + 20}">No figures over time are kept of it.</text>')
    for number, row in enumerate(shown):
        parts += _drawn(row, _TOP + _ROW * number, begin, max(end - begin, 1.0))
    return svg_document(f"What job {use.job} used", _WIDTH, height, parts)


def _rows(use: JobUse) -> list[_Row]:
    found = []
    for node in use.nodes:
        if node.cpu_series is not None:
            note = f"mean {node.cpus_mean:.1f}, peak {node.cpus_peak:.1f}"
            most = float(node.cpus) or node.cpus_peak
            found.append(_Row(f"{node.node} CPUs", note, node.cpu_series, most, "{:.3g}".format))
        if node.memory_series is not None:
            note = f"peak {memory_text(node.memory_peak_mib)}"
            most = float(node.memory_mib or node.memory_peak_mib)
            found.append(_Row(f"{node.node} memory", note, node.memory_series, most, memory_text))
        for gpu in node.gpus:
            if gpu.series is not None:
                note = f"mean {gpu.utilisation_mean or 0:.0f} %, idle {span_text(gpu.idle_s)}"
                found.append(_Row(f"{node.node} GPU {gpu.index}", note, gpu.series, 100.0, "{:.3g} %".format))
    return found


def _drawn(row: _Row, top: int, begin: float, length: float) -> list[str]:
    width, bottom = _WIDTH - _LEFT - _RIGHT, top + _PLOT
    most = max([row.most, *(peak for peak in row.series.peak if peak is not None)])
    most = most if most > _NOTHING else 1.0

    def x(time: float) -> float:
        return _LEFT + width * (time - begin) / length

    def y(value: float) -> float:
        return bottom - _PLOT * value / most

    def time_of(place: float) -> float:
        return row.series.start + place * row.series.every_s

    times = time_ticks(begin, length)
    return [
        f'<text font-size="12" x="10" y="{top + 25}">{escape(row.title)}</text>',
        f'<text class="soft" font-size="12" x="10" y="{top + 43}">{escape(row.note)}</text>',
        *(f'<path class="line" d="M{_LEFT} {y(value):.1f}h{width}"/>' for value in value_ticks(most, row.format_tick)),
        *(f'<path class="line" d="M{x(time):.1f} {top}v{_PLOT}"/>' for time in times),
        *(
            f'<text class="soft" font-size="10" x="{_LEFT - 6}" y="{y(value) + 3:.1f}" text-anchor="end">'
            f"{escape(row.format_tick(value))}</text>"
            for value in value_ticks(most, row.format_tick)
        ),
        *(
            f'<text class="soft" font-size="10" x="{x(time):.1f}" y="{bottom + 13}" text-anchor="middle">'
            f"{_clock(time, times)}</text>"
            for time in times
        ),
        f'<rect class="line" x="{_LEFT}" y="{top}" width="{width}" height="{_PLOT}"/>',
        *(
            f'<rect class="peak" x="{x(time_of(n)):.1f}" y="{y(peak):.1f}" '
            f'width="{max(0.5, x(time_of(n + 1)) - x(time_of(n))):.1f}" height="{bottom - y(peak):.1f}"/>'
            for n, peak in enumerate(row.series.peak)
            if peak
        ),
        *(
            f'<polyline class="mean" points="{line}"/>'
            for line in _lines(row.series, lambda place: x(time_of(place)), y)
        ),
    ]


def time_ticks(begin: float, length: float) -> list[float]:
    """Round times of day, by UTC, from ``begin`` for ``length`` seconds, a few of them."""
    weeks = 604800 * ceil(length / _MOST_TICKS / 604800)
    step = next((step for step in _TIME_STEPS_S if length / step <= _MOST_TICKS), weeks)
    first = ceil(begin / step)
    return [float(step * n) for n in range(first, int((begin + length) // step) + 1)]


def _clock(time: float, times: Sequence[float]) -> str:
    """Of one of these ticks, with seconds or as a date where these are what differs."""
    step = times[1] - times[0] if len(times) > 1 else 60.0
    form = "%d %b" if step >= 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    return datetime.fromtimestamp(time, UTC).strftime(form)


def _lines(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    """The means, joined where nothing is missing between them."""
    lines: list[list[str]] = [[]]
    for n, mean in enumerate(series.mean):
        if mean is None:
            lines.append([])
        else:
            lines[-1] += [f"{x(n):.1f},{y(mean):.1f}", f"{x(n + 1):.1f},{y(mean):.1f}"]
    return [" ".join(points) for points in lines if points]
