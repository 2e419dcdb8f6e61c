"""The screen as lines of text; only lines that have changed are written to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.console import Console
from rich.text import Text
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Sheet(Widget):
    """Shows lines; what does not fit is cut off."""

    DEFAULT_CSS = "Sheet { width: 100%; height: 100%; background: ansi_default; color: ansi_default; }"

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []
        self._renderer = Console(width=1000, color_system="standard", force_terminal=True)

    def show(self, lines: Sequence[Text]) -> None:
        """Replaces what is shown."""
        size = self.size
        strips = [self._to_strip(line, size.width) for line in lines[: size.height]]
        old, self._strips = self._strips, strips
        for y, (before, after) in enumerate(zip_longest(old, strips)):
            if before != after:
                self.refresh(Region(0, y, size.width, 1))

    def text(self) -> list[str]:
        """The lines as they are shown, without styles."""
        return [strip.text.rstrip() for strip in self._strips]

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _to_strip(self, line: Text, width: int) -> Strip:
        return Strip(line.render(self._renderer)).adjust_cell_length(width)
