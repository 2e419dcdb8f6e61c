"""The area of a plot: where values lie in it, its grid, and the words along its axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from burstd.simulate.plots.axes import Tick
from burstd.simulate.plots.markup import Markup, tag

Scale = Callable[[float], float]
LETTER = 6.4
"""The width of a letter in px, on the safe side: a page of one file cannot measure its fonts."""


def _as_it_is(value: float) -> float:
    return value


@dataclass(frozen=True, slots=True)
class Frame:
    """Pixels from the upper left corner; the axes run from their first tick to their last, or to what is given."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    x_scale: Scale = field(default=_as_it_is)
    y_scale: Scale = field(default=_as_it_is)

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + self.height

    def at_x(self, value: float) -> float:
        """Where a value lies; one beyond the axis lies at its end."""
        return self.left + self.width * _part(value, self.x, self.x_scale)

    def at_y(self, value: float) -> float:
        """As ``at_x``, from below."""
        return self.bottom - self.height * _part(value, self.y, self.y_scale)

    def x_axis(self, ticks: Sequence[Tick], title: str = "", *, grid: bool = True) -> list[Markup]:
        """Words below the plot; those without room are left out, their lines stay."""
        parts, free = [], float("-inf")
        for tick in ticks:
            x = self.at_x(tick.value)
            end = self.bottom if grid else self.bottom + 4
            parts.append(tag("line", x1=x, y1=self.top if grid else self.bottom, x2=x, y2=end, class_="grid"))
            half = len(tick.text) * LETTER / 2
            if x - half > free:
                parts.append(tag("text", tick.text, x=x, y=self.bottom + 16, text_anchor="middle", class_="tick"))
                free = x + half + LETTER
        parts.append(tag("line", x1=self.left, y1=self.bottom, x2=self.right, y2=self.bottom, class_="axis"))
        if title:
            x, y = self.left + self.width / 2, self.bottom + 36
            parts.append(tag("text", title, x=x, y=y, text_anchor="middle", class_="title"))
        return parts

    def y_axis(self, ticks: Sequence[Tick], title: str = "") -> list[Markup]:
        """Words beside the plot; the title stands above its upper left corner, to be read with one's head up."""
        parts = []
        for tick in ticks:
            y = self.at_y(tick.value)
            parts += [
                tag("line", x1=self.left, y1=y, x2=self.right, y2=y, class_="grid"),
                tag("text", tick.text, x=self.left - 9, y=y + 4, text_anchor="end", class_="tick"),
            ]
        if title:
            parts.append(tag("text", title, x=max(0, self.left - 40), y=self.top - 10, class_="title"))
        return parts


def _part(value: float, ends: tuple[float, float], scale: Scale) -> float:
    low, high = map(scale, ends)
    return min(1.0, max(0.0, (scale(value) - low) / (high - low))) if high > low else 0.0


def drawing(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    """The whole plot. ``label`` says what is seen, to those who hear the page."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=label, width=width, height=height)


def shortened(text: str, most: int = 30) -> str:
    """With its middle left out where it is long."""
    head = (most - 1) * 2 // 3
    return text if len(text) <= most else f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[-(most - 1 - head) :]}"
