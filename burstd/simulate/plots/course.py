"""How things went, chain by chain: cloud nodes, pending jobs and the site over time, on the same scales for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from burstd.simulate.plots import axes, marks
from burstd.simulate.plots.frame import Frame, Scale, drawing
from burstd.simulate.plots.markup import Markup, number, tag
from burstd.simulate.plots.wording import format_time

_WIDTH, _HEIGHT = 1140.0, 158.0
_CELLS, _SITE = 3, 2
_LEFT, _GAP, _TOP, _BELOW = 46.0, 62.0, 24.0, 26.0
_TIPS = 60


@dataclass(frozen=True, slots=True)
class TimelineData:
    """One chain, slice of time by slice. Times in seconds since 1970, the last slice as long as the others."""

    chain_index: int
    name: str
    time: Sequence[float]
    pending: Sequence[int]
    site: Sequence[int]
    nodes: Sequence[int]
    busy: Sequence[int]

    @property
    def end(self) -> float:
        """Of the last slice."""
        return self.time[-1] + (self.time[1] - self.time[0] if len(self.time) > 1 else 1.0)


@dataclass(frozen=True, slots=True)
class TimelineScales:
    """What all chains share: times, and the largest of each number."""

    start: float
    end: float
    window_end: float
    pending: int
    site: int
    nodes: int
    site_unit: str
    full: int
    """How much the site has; 0: not known."""

    @classmethod
    def for_chains(cls, chains: Sequence[TimelineData], window_end: float, site: int, site_unit: str) -> TimelineScales:
        """``site``: how much it has; 0: not known."""
        return cls(
            start=min(chain.time[0] for chain in chains), end=max(chain.end for chain in chains),
            window_end=window_end, pending=max(max(chain.pending) for chain in chains),
            site=max(site, *(max(chain.site) for chain in chains)),
            nodes=max(max(chain.nodes) for chain in chains), site_unit=site_unit, full=site,
        )  # fmt: skip


def timeline_chart(chain: TimelineData, scales: TimelineScales) -> Markup:
    """Three plots side by side."""
    colour = marks.colour(chain.chain_index)
    all_of_it = f" (line: all {scales.full:,})" if scales.full else ""
    cells = (
        ("cloud nodes paid for (solid: with a job)", axes.whole_from_zero(scales.nodes), None,
         ((chain.nodes, f"area {colour}"), (chain.busy, f"area dark {colour}"))),
        ("pending jobs (logarithmic)", axes.powers(scales.pending), axes.logarithmic,
         ((chain.pending, f"area {colour}"),)),
        (f"{scales.site_unit} in use on the site{all_of_it}", axes.whole_from_zero(scales.site), None,
         ((chain.site, f"area {colour}"),)),
    )  # fmt: skip
    parts: list[Markup] = []
    for place, (title, ticks, scale, layers) in enumerate(cells):
        frame = _frame(place, scales, ticks[-1].value, scale)
        parts += frame.y_axis(ticks, title)
        parts += [tag("path", d=_steps(frame, chain, values), class_=look) for values, look in layers]
        parts += frame.x_axis(axes.dates(scales.start, scales.end, 4), grid=False)
        if place == _SITE and scales.full:
            y = frame.at_y(scales.full)
            parts.append(tag("line", x1=frame.left, y1=y, x2=frame.right, y2=y, class_="all"))
        if scales.window_end < scales.end:
            x = frame.at_x(scales.window_end)
            parts.append(tag("line", x1=x, y1=frame.top, x2=x, y2=frame.bottom, class_="window"))
        parts += _tips(frame, chain, scales)
    return drawing(_WIDTH, _HEIGHT, f"Cloud nodes, pending jobs and the site over time: {chain.name}", parts)


def _frame(place: int, scales: TimelineScales, top: float, scale: Scale | None) -> Frame:
    width = (_WIDTH - _LEFT - 26 - (_CELLS - 1) * _GAP) / _CELLS
    left, high = _LEFT + place * (width + _GAP), _HEIGHT - _TOP - _BELOW
    times = (scales.start, scales.end)
    if scale is None:
        return Frame(left, _TOP, width, high, times, (0, top))
    return Frame(left, _TOP, width, high, times, (0, top), y_scale=scale)


def _steps(frame: Frame, chain: TimelineData, values: Sequence[int]) -> str:
    """Level within a slice; corners only where the level changes."""
    path, level = f"M{number(frame.at_x(chain.time[0]))} {number(frame.bottom)}", -1
    for when, value in zip(chain.time, values, strict=True):
        if value != level:
            path += f"H{number(frame.at_x(when))}V{number(frame.at_y(value))}"
            level = value
    return f"{path}H{number(frame.at_x(chain.end))}V{number(frame.bottom)}Z"


def _tips(frame: Frame, chain: TimelineData, scales: TimelineScales) -> Iterator[Markup]:
    size = -(-len(chain.time) // _TIPS)
    for at in range(0, len(chain.time), size):
        part = slice(at, at + size)
        left = frame.at_x(chain.time[at])
        right = frame.at_x(chain.time[at + size] if at + size < len(chain.time) else chain.end)
        text = (
            f"{format_time(chain.time[at])}: {max(chain.nodes[part])} cloud nodes, {max(chain.busy[part])} with a job; "
            f"{max(chain.pending[part])} jobs pending; {max(chain.site[part])} {scales.site_unit} in use on the site"
        )
        tip = tag("title", text)
        yield tag("rect", tip, x=left, y=frame.top, width=right - left, height=frame.height, class_="tip")
