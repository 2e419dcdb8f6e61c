"""Prints answers: plain tables, no boxes; colours and the width of the window on a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Self, TextIO, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from burstd.cli.plain_text import safe_text

Cell = str | Text | ProgressBar
_GAP = "  "
"""Between columns."""

STYLES = {
    "boot": "cyan", "covered": "green", "wait": "yellow", "impossible": "bold red", "unknown": "dim",
    "in_service": "green", "ready": "green", "planned": "cyan", "launching": "cyan", "booting": "cyan",
    "validating": "cyan", "draining": "dim", "terminating": "dim", "gone": "dim",
    "failed": "bold red", "lost": "bold red",
    "waiting": "yellow", "uploading": "cyan", "staged": "green", "fetching": "cyan", "fetched": "green",
    "collecting": "cyan", "delivering": "cyan", "delivered": "green", "cleared": "dim",
    "held": "yellow", "drained": "yellow", "unready": "yellow", "free": "dim",
}  # fmt: skip
"""Colours of verdicts and states."""


class _TrailingBlankFilter:
    """Leaves out the blanks that fill a table's last column up."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        self._out.flush()


class _UnwrappedTable:
    """A table as Rich's Table draws one that fits; that takes a hundred times as long for thousands of rows."""

    def __init__(self, rows: Sequence[Sequence[str | Text]], widths: Sequence[int], right: Sequence[bool], indent: int):
        self._rows, self._widths, self._right, self._indent = rows, widths, right, indent

    @classmethod
    def fitting(
        cls, heads: Sequence[str], titles: Sequence[str], rows: Sequence[Sequence[Cell]], indent: int, room: int
    ) -> Self | None:
        """None: it does not fit the room, or has cells of several lines or bars."""
        found: list[Sequence[str | Text]] = [[Text(title, "bold") for title in titles]] if any(titles) else []
        widths = [0] * len(titles)
        for row in (*found, *rows):
            for column, cell in enumerate(row):
                if isinstance(cell, ProgressBar) or "\n" in cell:
                    return None
                widths[column] = max(widths[column], cell_len(str(cell)))
        if indent + sum(widths) + len(_GAP) * (len(widths) - 1) > room:
            return None
        return cls(
            [*found, *cast("Sequence[Sequence[str | Text]]", rows)], widths, [h.endswith(">") for h in heads], indent
        )

    def __rich_console__(self, console: Console, _: ConsoleOptions) -> Iterator[Segment]:
        for row in self._rows:
            gap = self._indent
            for cell, width, right in zip(row, self._widths, self._right, strict=True):
                blanks = width - cell_len(str(cell))
                yield Segment(" " * (gap + (blanks if right else 0)))
                if isinstance(cell, Text):
                    yield from Segment.apply_style(cell.render(console), console.get_style(cell.style))
                else:
                    yield Segment(cell)
                gap = len(_GAP) + (0 if right else blanks)
            yield Segment.line()


class ConsoleOutput:
    """Writes to standard output."""

    def __init__(self) -> None:
        # A pipe gets every line whole: what cuts it down is the reader's choice.
        wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
        out = sys.stdout if sys.stdout.isatty() else cast("IO[str]", _TrailingBlankFilter(sys.stdout))
        self._console = Console(file=out, highlight=False, emoji=False, markup=False, width=wide)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, wrapped where the window is narrower; a part may come with its style."""
        pairs = ((part, "") if isinstance(part, str) else part for part in parts)
        self._print(Text.assemble(*((safe_text(text), style) for text, style in pairs)))

    def note(self, text: str, style: str = "", indent: int = 2) -> None:
        """An indented paragraph."""
        self._print(Padding(Text(safe_text(text), style), (0, 0, 0, indent), expand=False))

    def command(self, text: str, lead: str = "", style: str = "") -> None:
        """A command after ``lead``, on one line however narrow the window is, so that it can be copied."""
        # In a group: rich forgets no_wrap of a text that it prints by itself.
        self._print(Group(Text(f"{lead}{safe_text(text)}", style, no_wrap=True, overflow="ignore")))

    def blank(self) -> None:
        """An empty line between blocks."""
        self._print(Text())

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[Cell]], indent: int = 0, *, only_if_fits: bool = False
    ) -> bool:
        """A table. A head that ends in ``>`` has its column flush right, one in ``*`` may be wrapped.

        ``only_if_fits``: where it does not fit the window nothing is written and False comes back.
        """
        titles = [head.rstrip(">*") for head in heads]
        cells = [[_safe_cell(cell) for cell in row] for row in rows]
        lines = _UnwrappedTable.fitting(heads, titles, cells, indent, self._console.width)
        if lines is not None:
            self._print(lines)
            return True
        if only_if_fits:
            return False
        rendered = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(titles))
        for head, title in zip(heads, titles, strict=True):
            rendered.add_column(
                title,
                justify="right" if head.endswith(">") else "left",
                no_wrap=not head.endswith("*"),
                overflow="fold" if head.endswith("*") else "ellipsis",
            )
        for row in cells:
            rendered.add_row(*row)
        self._print(Padding(rendered, (0, 0, 0, indent), expand=False))
        return True

    def pairs(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one a line; empty values are left out."""
        self.table(("", "*"), [(Text(name, "bold"), value) for name, value in pairs if value])

    def _print(self, part: RenderableType) -> None:
        self._console.print(part, crop=False)

    def live_pages(self, pages: Iterable[Callable[[ConsoleOutput], None]], *, in_place: bool = True) -> None:
        """Page after page: ``in_place`` of the one before on a terminal, else one below the other."""
        if not (in_place and self._console.is_terminal):
            for draw in pages:
                draw(self)
                sys.stdout.flush()
            return
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            for draw in pages:
                sheet = _BufferedOutput()
                draw(sheet)
                live.update(sheet.as_group(), refresh=True)


class _BufferedOutput(ConsoleOutput):
    """Collects what the terminal is to show at once."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[RenderableType] = []

    def _print(self, part: RenderableType) -> None:
        self._parts.append(part)

    def as_group(self) -> Group:
        return Group(*self._parts)


def progress_bar(done: int, total: int, width: int = 20) -> ProgressBar:
    """How much of something is done; a total of 0 is not known yet."""
    return ProgressBar(total=max(total, 1), completed=done if total else 0, width=width)


def styled_state(word: str) -> Text:
    """A verdict or state in its colour."""
    return Text(safe_text(word), STYLES.get(word, ""))


def _safe_cell(cell: Cell) -> Cell:
    if isinstance(cell, ProgressBar):
        return cell
    if isinstance(cell, Text):
        return cell if cell.plain.isprintable() else Text(safe_text(cell.plain), cell.style)
    return safe_text(cell)


def faint_zero(number: int) -> Text:
    """A number; nought is faint, so that the eye finds the others."""
    return Text(str(number), "" if number else "dim")
