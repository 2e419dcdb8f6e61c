"""What all plots share: the document, its colours, round ticks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, log10

from markupsafe import escape

from burstd.domain.units import memory_text

_LIGHT = ("#0068a8", "#c14f00", "#00805c", "#9c3a8a", "#7d6200", "#8c1d4e", "#43399c", "#4d4d4d")
_DARK = ("#5db5ee", "#ff9450", "#39cfa3", "#e59bd6", "#e0c04a", "#f487b0", "#aea4f5", "#bdbdbd")
"""Of series, on light and on dark ground."""


def _series(colours: Sequence[str]) -> str:
    return " ".join(f".s{n} {{ stroke: {one} }} .t{n} {{ fill: {one} }}" for n, one in enumerate(colours))


SERIES_COLOURS = len(_LIGHT)
STYLE = f"""
.back {{ fill: #ffffff }} text {{ fill: #1b1f24 }} .soft {{ fill: #555d66 }} .line {{ stroke: #d4dae0; fill: none }}
.peak {{ fill: #5790fc; fill-opacity: .25 }} .mean {{ stroke: #2563c9; stroke-width: 1.5; fill: none }}
{_series(_LIGHT)}
@media screen and (prefers-color-scheme: dark) {{
.back {{ fill: #14171a }} text {{ fill: #e6e8ea }} .soft {{ fill: #a9b1b9 }} .line {{ stroke: #343b43 }}
.mean {{ stroke: #86bdf7 }}
{_series(_DARK)}
}}
"""
"""The colours of the pages, light and dark. Of a series ``sN`` strokes and ``tN`` fills, N below SERIES_COLOURS."""


def svg_document(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """A picture that stands by itself; light or dark as its reader prefers. Sizes in pixels."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">',
        f"<style>{STYLE}</style>",
        f"<title>{escape(title)}</title>",
        f'<rect class="back" width="{width}" height="{height}"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def value_ticks(most: float, format_tick: Callable[[float], str]) -> list[float]:
    """Round values from 0 to ``most``, five at most: MiB are round in the unit that they are written in."""
    unit = 1.0
    while format_tick is memory_text and most / unit >= 1024:
        unit *= 1024
    rough = most / unit / 4
    tenth = 10.0 ** floor(log10(rough))
    step = unit * next(tenth * n for n in (1, 2, 2.5, 5, 10) if tenth * n >= rough * 0.999)
    return [step * n for n in range(int(most / step * 1.001) + 1)]
