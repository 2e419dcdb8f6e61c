"""Finds places for the labels of points where none covers a point or another label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from burstd.simulate.plots.frame import Frame

_HEIGHT = 15.0
_LETTER = 7.3
_POINT = 9.0
PixelPoint = tuple[float, float]


@dataclass(frozen=True, slots=True)
class LabelBox:
    """A rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: LabelBox) -> float:
        """The area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.bottom, other.bottom) - max(self.top, other.top)
        return wide * high if wide > 0 and high > 0 else 0.0


def place_labels(
    frame: Frame, points: Sequence[PixelPoint], texts: Sequence[str], lines: Sequence[LabelBox]
) -> list[LabelBox]:
    """For each point, in pixels, where its label goes: as near as it can be, and rather not on one of the lines."""
    taken = [LabelBox(x - _POINT, y - _POINT, x + _POINT, y + _POINT) for x, y in points]
    found: dict[int, LabelBox] = {}
    for place in sorted(range(len(points)), key=lambda n: (points[n][1], points[n][0])):
        boxes = _candidates(*points[place], len(texts[place]) * _LETTER + 4)
        worst = [
            (sum(map(box.overlap, taken)) + 4 * _outside(box, frame) + sum(map(box.overlap, lines)) / 4 + 3 * away, n)
            for n, (away, box) in enumerate(boxes)
        ]
        best = boxes[min(worst)[1]][1]
        taken.append(best)
        found[place] = best
    return [found[place] for place in range(len(points))]


def _candidates(x: float, y: float, width: float) -> list[tuple[float, LabelBox]]:
    half = _HEIGHT / 2
    boxes = []
    for away in (10.0, 22.0, 36.0, 52.0, 70.0, 90.0):
        up, down, slant = y - away - half, y + away + half, away * 0.75
        rows = [(y, away, -away - width)] if away < 40 else []
        rows += [(y - slant - 4, slant, -slant - width), (y + slant + 4, slant, -slant - width)]
        beside = [(at, x + dx) for at, *both in rows for dx in both] + [(at, x - width / 2) for at in (up, down)]
        boxes += [(away, LabelBox(left, at - half, left + width, at + half)) for at, left in beside]
    return boxes


def _outside(box: LabelBox, frame: Frame) -> float:
    """How much of the label would be cut off, as an area."""
    inside = box.overlap(LabelBox(frame.left + 2, frame.top, frame.right + 8, frame.bottom - 2))
    return (box.right - box.left) * (box.bottom - box.top) - inside
