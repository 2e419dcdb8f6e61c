"""Wait against what it costs: a point for each chain, and the front of those that no other one beats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from burstd.simulate.plots import axes, labels, marks
from burstd.simulate.plots.frame import Frame, drawing, shortened
from burstd.simulate.plots.markup import Markup, joined, number, tag
from burstd.simulate.plots.wording import format_duration, unit_for
from burstd.simulate.report.report import pareto_front

_WIDTH, _HEIGHT = 560.0, 380.0
_FAR = 3.0
"""Waits so many times longer than the next one would squeeze all others: they stand at the upper edge."""


@dataclass(frozen=True, slots=True)
class ScatterPoint:
    """A chain: ``x`` as the axis has it, the wait in seconds, infinite where it is not known."""

    chain_index: int
    name: str
    x: float
    wait_s: float
    hollow: bool
    tip: str


def scatter_chart(points: Sequence[ScatterPoint], wait: str, against: str) -> Markup:
    """``wait`` and ``against``: what the axes show, the latter with its unit."""
    top = _top(sorted(point.wait_s for point in points if math.isfinite(point.wait_s)))
    unit, size = unit_for(top)
    y_ticks = axes.from_zero(top / size)
    x_ticks = axes.from_zero(max((point.x for point in points), default=0.0))
    frame = Frame(62, 44, _WIDTH - 86, _HEIGHT - 96, (0, x_ticks[-1].value), (0, max(y_ticks[-1].value, top / size)))
    spots = [(frame.at_x(p.x), frame.at_y(p.wait_s / size) if p.wait_s <= top else frame.top) for p in points]
    texts = [
        shortened(p.name) if p.wait_s <= top else f"{shortened(p.name)}: {_far(p.wait_s)} \N{UPWARDS ARROW}"
        for p in points
    ]
    parts = [*frame.y_axis(y_ticks, f"{wait} ({unit})"), *frame.x_axis(x_ticks, against)]
    steps = _steps(frame, points, spots)
    if steps:
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in steps)
        parts.append(tag("path", tag("title", "Pareto front: no chain is better in both"), d=path, class_="front"))
    lines = [_around(*pair) for pair in pairwise(steps)]
    for point, spot, text, box in zip(
        points, spots, texts, labels.place_labels(frame, spots, texts, lines), strict=True
    ):
        parts.append(_drawn(point, spot, text, box))
    return drawing(_WIDTH, _HEIGHT, f"{wait} against {against}, a point for each chain; lower left is better", parts)


def _far(wait_s: float) -> str:
    return format_duration(wait_s if math.isfinite(wait_s) else None)


def _top(waits: Sequence[float]) -> float:
    """The longest wait that is drawn to scale: at most a third of the points stand at the edge."""
    left = list(waits)
    while len(left) > max(2, len(waits) * 2 // 3) and left[-1] > _FAR * max(left[-2], 1.0):
        left.pop()
    return max(left[-1] if left else 0.0, 1.0)


def _steps(frame: Frame, points: Sequence[ScatterPoint], spots: Sequence[labels.PixelPoint]) -> list[labels.PixelPoint]:
    """The corners of the front: what can be had for so much is what the best chain that costs no more gives."""
    on_it = pareto_front([(point.x, point.wait_s) for point in points])
    best = sorted({spot for spot, first in zip(spots, on_it, strict=True) if first})
    if len(best) < 2:
        return []
    corners = [best[0]]
    for spot in best[1:]:
        corners += [(spot[0], corners[-1][1]), spot]
    return [*corners, (frame.right, corners[-1][1])]


def _around(one: labels.PixelPoint, other: labels.PixelPoint) -> labels.LabelBox:
    left, right = sorted((one[0], other[0]))
    top, bottom = sorted((one[1], other[1]))
    return labels.LabelBox(left - 3, top - 3, right + 3, bottom + 3)


def _drawn(point: ScatterPoint, spot: tuple[float, float], text: str, box: labels.LabelBox) -> Markup:
    x, y = spot
    anchor, at = "middle", (box.left + box.right) / 2
    if box.left >= x:
        anchor, at = "start", box.left + 2
    elif box.right <= x:
        anchor, at = "end", box.right - 2
    middle = (box.top + box.bottom) / 2
    near = (min(max(x, box.left), box.right), min(max(y, box.top), box.bottom))
    lead = []
    if math.dist(near, spot) > 16:
        lead.append(tag("line", x1=x, y1=y, x2=near[0], y2=near[1], class_="lead"))
    mark = marks.marker(point.chain_index, x, y, hollow=point.hollow)
    word = tag("text", text, x=at, y=middle + 4, text_anchor=anchor, class_=f"label {marks.colour(point.chain_index)}")
    return tag("g", tag("title", point.tip), joined(*lead), mark, word)
