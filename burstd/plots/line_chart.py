"""Lines over numbers, each named at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from markupsafe import escape

from burstd.plots.svg import SERIES_COLOURS, svg_document, value_ticks

_WIDTH, _HEIGHT = 960, 540
_LEFT, _TOP, _BOTTOM = 100, 96, 70
_FONT, _SMALL = 16, 14
_CHARACTER = 0.6 * _SMALL
"""About the width of a character of a label."""
_LABEL_GAP = 19
_TO_LABEL = 26
_TICK_GAP = 40


@dataclass(frozen=True, slots=True)
class Line:
    """A series. ``points``: x and y, by x; without y there is no point, and the line has a gap."""

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int = 0
    dashed: bool = False

    def parts(self) -> Iterator[list[tuple[float, float]]]:
        """What is joined."""
        part: list[tuple[float, float]] = []
        for x, y in self.points:
            if y is not None:
                part.append((x, y))
            elif part:
                yield part
                part = []
        if part:
            yield part


@dataclass(frozen=True, slots=True)
class LineChart:
    """All values from 0 on; titles of axes with their units."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line]


def line_chart_svg(chart: LineChart) -> str:
    """The picture; ticks of the x axis stand at the points."""
    lines = [line for line in chart.lines if any(line.parts())]
    values = [point for line in lines for part in line.parts() for point in part]
    most = max((y for _, y in values), default=0.0) or 1.0
    ticks = value_ticks(most, _number)
    top = ceil(most / ticks[1] * 0.999) * ticks[1]
    ticks = [ticks[1] * n for n in range(round(top / ticks[1]) + 1)]
    right = _TO_LABEL + 20 + round(_CHARACTER * max((len(line.name) for line in lines), default=0))
    width, height = _WIDTH - _LEFT - right, _HEIGHT - _TOP - _BOTTOM
    last = max((x for x, _ in values), default=0.0) or 1.0

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return _LEFT + width * point[0] / last, _TOP + height * (1 - point[1] / top)

    def x_of(value: float) -> float:
        return at((value, 0.0))[0]

    def y_of(value: float) -> float:
        return at((0.0, value))[1]

    parts = [
        _text(20, 34, chart.title, size=20, more='font-weight="bold"'),
        _text(20, 68, chart.y_title, "soft", size=_FONT),
        _text(_LEFT + width / 2, _HEIGHT - 18, chart.x_title, "soft", size=_FONT, more='text-anchor="middle"'),
    ]
    for value in ticks:
        parts.append(f'<path class="line" d="M{_LEFT} {y_of(value):.1f}h{width}"/>')
        parts.append(_text(_LEFT - 10, y_of(value) + 5, _number(value), "soft", more='text-anchor="end"'))
    for value in _apart(sorted({x for x, _ in values}), width / last):
        parts.append(f'<path class="line" d="M{x_of(value):.1f} {_TOP + height}v6"/>')
        parts.append(_text(x_of(value), _TOP + height + 24, _number(value), "soft", more='text-anchor="middle"'))
    for line in lines:
        parts += _drawn(line, [[at(point) for point in part] for part in line.parts()])
    parts += _labels([(line, at(list(line.parts())[-1][-1])) for line in lines], _LEFT + width + _TO_LABEL)
    return svg_document(chart.title, _WIDTH, _HEIGHT, parts)


def _drawn(line: Line, parts: Sequence[Sequence[tuple[float, float]]]) -> Iterator[str]:
    dashes = ' stroke-dasharray="7 5"' if line.dashed else ""
    colour = line.colour % SERIES_COLOURS
    for part in parts:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in part)
        yield f'<polyline class="s{colour}" fill="none" stroke-width="2.5"{dashes} points="{points}"/>'
        yield from (f'<circle class="t{colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in part)


def _labels(ends: Sequence[tuple[Line, tuple[float, float]]], left: float) -> Iterator[str]:
    """Names beside the ends of their lines, moved apart where they would overlap."""
    ordered = sorted(ends, key=lambda end: end[1][1])
    places = spread([y for _, (_, y) in ordered], _LABEL_GAP, _HEIGHT - _BOTTOM)
    for (line, (x, y)), place in zip(ordered, places, strict=True):
        colour = line.colour % SERIES_COLOURS
        yield f'<path class="s{colour}" fill="none" d="M{x + 6:.1f} {y:.1f}L{left - 5:.1f} {place:.1f}"/>'
        yield _text(left, place + 5, line.name, f"t{colour}")


def spread(wanted: Sequence[float], gap: float, most: float) -> list[float]:
    """Places near the ``wanted`` ones, which are sorted, at least ``gap`` apart, ``most`` the last if there is room."""
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + gap) if found else place)
    for number in reversed(range(len(found))):
        found[number] = min(found[number], most - gap * (len(found) - 1 - number))
    return found


def _apart(values: Sequence[float], pixels: float) -> list[float]:
    """Those of sorted values that have room for a tick, each so many pixels wide; the last is among them."""
    found: list[float] = []
    for value in reversed(values):
        if not found or (found[-1] - value) * pixels >= _TICK_GAP:
            found.append(value)
    return found[::-1]


def _number(value: float) -> str:
    return f"{value:,.9g}"


def _text(x: float, y: float, text: str, kind: str = "", size: int = _SMALL, more: str = "") -> str:
    of_class = f' class="{kind}"' if kind else ""
    return f'<text{of_class} x="{x:.1f}" y="{y:.1f}" font-size="{size}" {more}>{escape(text)}</text>'
