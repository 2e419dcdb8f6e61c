"""Tables of burstctl."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from burstd.cli.output import Cell, ConsoleOutput, _UnwrappedTable

ROWS: list[tuple[Cell, ...]] = [
    ("gpu1", Text("ready", "green"), "3", ""),
    ("学習", Text.assemble(("a", "bold"), ", b"), "12345", "why, in words\x1b"),
    ("", "", "", "x"),
]


@pytest.mark.parametrize("colour", [False, True])
@pytest.mark.parametrize(
    ("heads", "rows"), [(("NODE", "STATE", "COST>", "FOR*"), ROWS), (("", "", ">", "*"), ROWS), (("A", ">"), [])]
)
def test_a_table_that_fits_is_as_rich_draws_it(
    monkeypatch: pytest.MonkeyPatch, heads: tuple[str, ...], rows: list[tuple[Cell, ...]], *, colour: bool
) -> None:
    console = Console()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR" if colour else "NO_COLOR", "1")

    def drawn() -> list[list[tuple[int, str, str]]]:
        """Each letter with its column and style."""
        out = io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        ConsoleOutput().table(heads, rows, 2)
        lines = [Text.from_ansi(line) for line in out.getvalue().splitlines()]
        return [
            [(n, c, str(line.get_style_at_offset(console, n))) for n, c in enumerate(line.plain) if c != " "]
            for line in lines
        ]

    mine = drawn()
    monkeypatch.setattr(_UnwrappedTable, "fitting", lambda *_: None)
    assert mine == drawn()
