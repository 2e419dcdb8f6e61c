"""How answers look: plain tables, no boxes; colours and the width of the window on a terminal only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Answer = dict[str, Any]
"""An answer of the daemon, as JSON gave it; its fields are in docs/burstctl.md."""
Cell = str | Text

STYLES = {
    "boot": "cyan", "covered": "green", "wait": "yellow", "impossible": "bold red", "unknown": "dim",
    "open": "green", "ready": "green", "planned": "cyan", "launching": "cyan", "booting": "cyan", "proving": "cyan",
    "closing": "dim", "terminating": "dim", "gone": "dim", "failed": "bold red", "lost": "bold red",
    "held": "yellow", "drained": "yellow", "unready": "yellow", "free": "dim",
}  # fmt: skip
"""Colours of verdicts and states."""


class _Trimmed:
    """Leaves out the blanks that fill a table's last column up."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        self._out.flush()


class Paper:
    """Writes to standard output."""

    def __init__(self) -> None:
        # A pipe gets every line whole: what cuts it down is the reader's choice.
        wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
        out = sys.stdout if sys.stdout.isatty() else cast("IO[str]", _Trimmed(sys.stdout))
        self._console = Console(file=out, highlight=False, emoji=False, markup=False, width=wide)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """One line, wrapped where the window is narrower; a part may come with its style."""
        pairs = ((part, "") if isinstance(part, str) else part for part in parts)
        self._console.print(Text.assemble(*((_safe(text), style) for text, style in pairs)))

    def note(self, text: str, style: str = "", indent: int = 2) -> None:
        """An indented paragraph."""
        self._console.print(Padding(Text(_safe(text), style), (0, 0, 0, indent), expand=False))

    def blank(self) -> None:
        """An empty line between blocks."""
        self._console.print()

    def table(
        self, heads: Sequence[str], rows: Iterable[Sequence[Cell]], indent: int = 0, *, whole: bool = False
    ) -> bool:
        """A table. A head that ends in ``>`` has its column flush right, one in ``*`` may be wrapped.

        ``whole``: where it does not fit the window nothing is written and False comes back.
        """
        titles = [head.rstrip(">*") for head in heads]
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(titles))
        for head, title in zip(heads, titles, strict=True):
            made.add_column(
                title,
                justify="right" if head.endswith(">") else "left",
                no_wrap=not head.endswith("*"),
                overflow="fold" if head.endswith("*") else "ellipsis",
            )
        for row in rows:
            made.add_row(*(_safe_cell(cell) for cell in row))
        if whole:
            needed = self._console.measure(made, options=self._console.options.update(max_width=10_000)).maximum
            if needed > self._console.width:
                return False
        self._console.print(Padding(made, (0, 0, 0, indent), expand=False))
        return True

    def pairs(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Names and values, one a line; empty values are left out."""
        self.table(("", "*"), [(Text(name, "bold"), value) for name, value in pairs if value])


def styled(word: str) -> Text:
    """A verdict or state in its colour."""
    return Text(_safe(word), STYLES.get(word, ""))


def _safe_cell(cell: Cell) -> Cell:
    if isinstance(cell, Text):
        return cell if cell.plain.isprintable() else Text(_safe(cell.plain), cell.style)
    return _safe(cell)


def _safe(text: str) -> str:
    """Without control characters: names of jobs come from anybody, and a terminal obeys what it is sent."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def count(number: int) -> Text:
    """A number; nought is faint, so that the eye finds the others."""
    return Text(str(number), "" if number else "dim")


def money(amount: Answer | None, places: int = 2) -> str:
    """``15.30 EUR``; empty where there is none."""
    return "" if amount is None else f"{Decimal(amount['amount']):.{places}f} {amount['currency']}"


def sums(amounts: Sequence[Answer], places: int = 2) -> str:
    """Amounts in several currencies; ``0`` where there is none."""
    return " + ".join(money(a, places) for a in amounts) or "0"


def plural(number: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def names(words: Sequence[str], most: int = 5) -> str:
    """The first words of a list, and how many more there are."""
    more = f" +{len(words) - most}" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def print_json(answer: object) -> None:
    """The answer as the daemon gave it."""
    sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")


def print_json_line(answer: object) -> None:
    """One line, at once, for what is followed."""
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()
