"""The distribution of waits: which share of the jobs waited at most how long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from burstd.simulate.plots import axes, marks
from burstd.simulate.plots.frame import Frame, drawing
from burstd.simulate.plots.markup import Markup, number, tag

_WIDTH, _HEIGHT = 1140.0, 420.0
_SHARES = [axes.Tick(n / 5, f"{n * 20} %") for n in range(6)]


@dataclass(frozen=True, slots=True)
class DistributionLine:
    """A chain: shares of its jobs and the longest wait of each share, in seconds; None: it never started."""

    chain_index: int
    hollow: bool
    shares: Sequence[float]
    waits_s: Sequence[float | None]
    tip: str


def distribution_chart(lines: Sequence[DistributionLine]) -> Markup:
    """One line a chain, on a logarithmic axis."""
    longest = max((wait for line in lines for wait in line.waits_s if wait is not None), default=0.0)
    ticks = axes.waits(longest)
    end = max(longest, ticks[-2].value)
    ticks = [tick for tick in ticks if tick.value <= end]
    frame = Frame(56, 30, _WIDTH - 76, _HEIGHT - 78, (1.0, end), (0, 1), x_scale=_log)
    parts = [*frame.y_axis(_SHARES, "share of jobs that waited at most so long")]
    parts += frame.x_axis(ticks, "wait (logarithmic, from 1 s)")
    parts += [drawn for line in lines for drawn in _drawn(frame, line)]
    return drawing(
        _WIDTH, _HEIGHT, "Distribution of waits, a line for each chain; further up and left is better", parts
    )


def _log(value: float) -> float:
    return math.log10(max(value, 1.0))


def _drawn(frame: Frame, line: DistributionLine) -> list[Markup]:
    """From the share that waited no more than a second to the share that ever started."""
    pairs = [(wait, part) for part, wait in zip(line.shares, line.waits_s, strict=True) if wait is not None]
    if not pairs:
        return []
    at_once = max((part for wait, part in pairs if wait <= 1.0), default=0.0)
    later = [(frame.at_x(wait), frame.at_y(part)) for wait, part in pairs if wait > 1.0]
    path = f"M{number(frame.left)} {number(frame.at_y(at_once))}"
    path += "".join(f"L{number(x)} {number(y)}" for x, y in later) + f"H{number(frame.right)}"
    look, title = f"line {marks.colour(line.chain_index)}", tag("title", line.tip)
    drawn = [tag("path", title, d=path, class_=look, stroke_dasharray=marks.dashes(line.chain_index))]
    marked = [later[len(later) * n // 4] for n in (1, 2, 3)] if len(later) > 8 else []
    return drawn + [marks.marker(line.chain_index, x, y, hollow=line.hollow, size=4.5) for x, y in marked]
