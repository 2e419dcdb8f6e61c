"""How a chain is told from others: colour, shape of its points and dashes of its line; baselines are hollow.

The colours are classes ``c0`` to ``c9`` of the page's style, which has them for a light and a dark page.
"""

from __future__ import annotations

import math

from burstd.simulate.plots.markup import Markup, number, tag

_COLOURS = 10
_DASHES = (None, "8 3", "2 3", "10 3 2 3", "14 4", "6 2 2 2 2 2", "4 4")
_SHAPES: tuple[tuple[int, float], ...] = ((0, 0.0), (4, 0.125), (3, 0.0), (4, 0.0), (3, 0.5), (5, 0.0), (6, 0.0))
"""Corners (0: a circle), and by what part of a turn the first one is away from the top."""


def colour(place: int) -> str:
    """The class of the chain at this place."""
    return f"c{place % _COLOURS}"


def dashes(place: int) -> str | None:
    """Of its line."""
    return _DASHES[place % len(_DASHES)]


def marker(place: int, x: float, y: float, *, hollow: bool, size: float = 6.0) -> Markup:
    """Its point."""
    corners, turn = _SHAPES[place % len(_SHAPES)]
    look = f"mark {colour(place)}{' hollow' if hollow else ''}"
    if not corners:
        return tag("circle", cx=x, cy=y, r=size * 0.9, class_=look)
    reach = size * (1.25 if corners < 5 else 1.1)
    angles = [2 * math.pi * (n / corners + turn) for n in range(corners)]
    points = " ".join(f"{number(x + reach * math.sin(a))},{number(y - reach * math.cos(a))}" for a in angles)
    return tag("polygon", points=points, class_=look)


def legend_sample(place: int, *, hollow: bool) -> Markup:
    """For legends: a piece of its line with its point."""
    line = tag("line", x1=1, y1=8, x2=35, y2=8, class_=f"line {colour(place)}", stroke_dasharray=dashes(place))
    point = marker(place, 18, 8, hollow=hollow, size=5)
    return tag("svg", line, point, width=36, height=16, viewBox="0 0 36 16", class_="sample", aria_hidden="true")
