"""What a job used, as a picture (SVG): CPUs, memory and the utilisation of each GPU over time, a row for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import escape

from burstd.domain.job_use import JobUse, Series
from burstd.domain.units import memory_text, span_text

MAX_ROWS = 24
"""A job on many nodes has more; the first are drawn."""
MAX_NODES = MAX_ROWS // 2
"""So many nodes fill them: each that has series has CPUs and memory at least."""
_WIDTH, _ROW, _LEFT, _TOP, _PLOT = 900, 110, 190, 40, 70
_RIGHT = 20


@dataclass(frozen=True, slots=True)
class _Row:
    title: str
    note: str
    series: Series
    most: float


def job_use_svg(use: JobUse) -> str:
    """The picture. Colours follow the text's, so that it can be read on a dark page; no script, no style sheet."""
    rows = [row for row in _rows(use) if row.series.mean]
    shown = rows[:MAX_ROWS]
    begin = min((row.series.start for row in shown), default=use.started)
    end = max((row.series.start + row.series.every_s * len(row.series.mean) for row in shown), default=begin)
    height = _TOP + _ROW * max(1, len(shown)) + 20
    when = datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d %H:%M UTC")
    read = sum(node.cpu_series is not None for node in use.nodes)
    more = len(rows) > len(shown) or MAX_NODES <= read < len(use.nodes)
    left_out = f"; the first {len(shown)} plots are drawn" if more else ""
    about = escape(f"Job {use.job} from {when}, {span_text(end - begin)}{left_out}")
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" fill="currentColor">',
        f"<title>{escape(f'What job {use.job} used')}</title>",
        f'<text x="10" y="20" font-size="14">{about}</text>',
    ]
    if not shown:
        parts.append(f'<text font-size="12" x="10" y="{_TOP + 20}">No figures over time are kept of it.</text>')
    for number, row in enumerate(shown):
        parts += _drawn(row, _TOP + _ROW * number, begin, max(end - begin, 1.0))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _rows(use: JobUse) -> list[_Row]:
    found = []
    for node in use.nodes:
        if node.cpu_series is not None:
            note = f"mean {node.cpus_mean:.1f}, peak {node.cpus_peak:.1f}"
            most = float(node.cpus) or node.cpus_peak
            found.append(_Row(f"{node.node} CPUs", note, node.cpu_series, most))
        if node.memory_series is not None:
            note = f"peak {memory_text(node.memory_peak_mib)}"
            most = float(node.memory_mib or node.memory_peak_mib)
            found.append(_Row(f"{node.node} memory", note, node.memory_series, most))
        for gpu in node.gpus:
            if gpu.series is not None:
                note = f"mean {gpu.utilisation_mean or 0:.0f} %, idle {span_text(gpu.idle_s)}"
                found.append(_Row(f"{node.node} GPU {gpu.index}", note, gpu.series, 100.0))
    return found


def _drawn(row: _Row, top: int, begin: float, length: float) -> list[str]:
    width, bottom = _WIDTH - _LEFT - _RIGHT, top + _PLOT
    most = max([row.most, *(peak for peak in row.series.peak if peak is not None)]) or 1.0
    memory = row.title.endswith(" memory")
    mark = memory_text(round(most)) if memory else f"{most:.3g}" + (" %" if " GPU " in row.title else "")

    def x(place: float) -> float:
        return _LEFT + width * (row.series.start + place * row.series.every_s - begin) / length

    def y(value: float) -> float:
        return bottom - _PLOT * value / most

    return [
        f'<text font-size="12" x="10" y="{top + 25}">{escape(row.title)}</text>',
        f'<text font-size="12" x="10" y="{top + 43}" opacity="0.7">{escape(row.note)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 8}" text-anchor="end" font-size="10" opacity="0.7">{escape(mark)}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{width}" height="{_PLOT}" fill="none" stroke="currentColor"/>',
        *(
            f'<rect x="{x(n):.1f}" y="{y(peak):.1f}" width="{max(0.5, x(n + 1) - x(n)):.1f}" '
            f'height="{bottom - y(peak):.1f}" fill="#5790fc" fill-opacity="0.25"/>'
            for n, peak in enumerate(row.series.peak)
            if peak
        ),
        *(
            f'<polyline fill="none" stroke="#2563c9" stroke-width="1.5" points="{line}"/>'
            for line in _lines(row.series, x, y)
        ),
    ]


def _lines(series: Series, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    """The means, joined where nothing is missing between them."""
    lines: list[list[str]] = [[]]
    for n, mean in enumerate(series.mean):
        if mean is None:
            lines.append([])
        else:
            lines[-1] += [f"{x(n):.1f},{y(mean):.1f}", f"{x(n + 1):.1f},{y(mean):.1f}"]
    return [" ".join(points) for points in lines if points]
