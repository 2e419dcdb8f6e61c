"""A bar chart of costs by day, as a picture (SVG)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from decimal import Decimal

from markupsafe import Markup

Bars = defaultdict[date, defaultdict[str, Decimal]]
"""Cost by day and kind of use."""
_COLOURS = {"work": "#2563c9", "boot": "#86b6f0", "idle": "#e0a030", "other": "#8a8f96"}
"""Of a bar from below; other kinds are together."""
_MAX_BARS = 62
"""Of more days, bars are of months."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 210, 70, 16, 28, 24
_LABEL, _LINE = 56, 14
"""Width of the name of a bar, and height of a line of text."""


def bars_svg(bars: Bars) -> tuple[str, Markup]:
    """What a bar is of, ``day`` or ``month``, and the picture. Days without costs are empty."""
    first, last = min(bars), max(bars)
    days = (last - first).days + 1
    monthly = days > _MAX_BARS
    named: dict[str, defaultdict[str, Decimal]] = {}
    for day in (first + timedelta(days=n) for n in range(days)):
        bar = named.setdefault(f"{day:%Y-%m}" if monthly else f"{day:%m-%d}", defaultdict(Decimal))
        for kind, cost in bars.get(day, {}).items():
            bar[kind if kind in _COLOURS else "other"] += cost
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-size="12"',
        f'font-family="sans-serif"><title>Costs from {first} to {last}</title>',
        *_legend(),
        *_drawn(named),
        "</svg>",
    ]
    return "month" if monthly else "day", Markup("\n".join(lines))  # noqa: S704  # days and numbers


def _legend() -> Iterator[str]:
    for place, (kind, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + place * 90
        yield f'<rect x="{x}" y="2" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="12" fill="#1c2126">{kind}</text>'


def _drawn(bars: Mapping[str, Mapping[str, Decimal]]) -> Iterator[str]:
    """Corrections that are negative are drawn below the axis."""
    most, least = (
        max(sum((sign * cost for cost in bar.values() if sign * cost > 0), Decimal(0)) for bar in bars.values())
        for sign in (1, -1)
    )
    step, bottom = (_WIDTH - _LEFT - _RIGHT) / len(bars), _HEIGHT - _BOTTOM
    scale = (bottom - _TOP) / float(most + least or 1)
    axis = bottom - float(least) * scale
    for cost in (Decimal(0), *(mark for mark in (most / 2, most, -least) if abs(float(mark)) * scale >= _LINE)):
        y = axis - float(cost) * scale
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d9dee3"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#59636e">{float(cost):.4g}</text>'
    width = min(step * 0.8, 60.0)
    every = max(1, round(_LABEL / step))
    for number, (name, bar) in enumerate(bars.items()):
        middle, above, below = _LEFT + step * (number + 0.5), axis, axis
        for kind, colour in _COLOURS.items():
            if cost := bar.get(kind, Decimal(0)):
                height = abs(float(cost)) * scale
                y = below if cost < 0 else above - height
                above, below = min(above, y), max(below, y + height)
                yield (
                    f'<rect x="{middle - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
                    f'fill="{colour}"/>'
                )
        if number % every == 0:
            yield f'<text x="{middle:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#59636e">{name}</text>'
