"""Man pages, from what ``--help`` and the example of the settings say: ``python -m burstd.cli.manual FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from burstd.cli.main import COMMANDS, app, load_command
from burstd.share import share_path


def burstctl_page() -> str:
    """burstctl(1), with every command and option."""
    root = typer.main.get_command(app)
    context = root.make_context("burstctl", [], resilient_parsing=True)
    lines = [*_head("burstctl", 1, "see and steer burstd"), ".SH SYNOPSIS"]
    lines += [".B burstctl", _text("[OPTIONS] COMMAND [ARGS]..."), ".SH DESCRIPTION", *_paragraphs(root.help)]
    lines += ["Options of all commands stand before the command or after it.", *_entries(root, context, "option")]
    lines.append(".SH COMMANDS")
    for name in COMMANDS:
        lines += _command(load_command(name), name, context)
    lines += [".SH EXIT STATUS", *_paragraphs(root.epilog), ".SH FILES", ".TP", ".I /etc/burstd/burstd.toml"]
    lines += ["The settings.", ".SH SEE ALSO", ".BR burstd.toml (5),", ".BR burstd (8),", ".BR sbatch (1)"]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """burstd.toml(5): the example with every key, its default and meaning."""
    example = share_path("config", "burstd.toml").read_text(encoding="utf-8")
    lines = [*_head("burstd.toml", 5, "settings of burstd"), ".SH DESCRIPTION"]
    lines += ["Every key, with its default. A change is in force after", '.BR "burstctl config reload" ,']
    lines += ["or, where the key is marked (restart), after a restart of burstd.", ".PP", ".nf", ".ad l"]
    lines += [*map(_text, example.splitlines()), ".fi", ".SH SEE ALSO", ".BR burstctl (1),", ".BR burstd (8)"]
    return "\n".join(lines) + "\n"


def _head(name: str, section: int, purpose: str) -> list[str]:
    return [f'.TH {name.upper()} {section} "" burstd', ".SH NAME", _text(f"{name} - {purpose}", dashes=True)]


def _command(command: Any, words: str, parent: Any) -> Iterator[str]:
    """A command, and after it those within it."""
    context = typer.Context(command, info_name=words, parent=parent)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from (f".SS {_text(words)}", f'.BI "burstctl {_text(words)}" " {_text(pieces)}"', ".PP")
    yield from _paragraphs(command.help)
    for kind in ("argument", "option"):
        yield from _entries(command, context, kind)
    for name, within in getattr(command, "commands", {}).items():
        yield from _command(within, f"{words} {name}", parent)


def _entries(command: Any, context: Any, kind: str) -> Iterator[str]:
    """Arguments or options. Those that every command has are not said again, but under burstctl itself."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        everywhere = context.parent is not None and parameter.name in ("json", "socket", "help")
        if record is not None and parameter.param_type_name == kind and not everywhere:
            yield from (".TP", f".B {_text(record[0])}", _text(record[1]) or "\\&")


def _paragraphs(help_text: str | None) -> Iterator[str]:
    for number, paragraph in enumerate((help_text or "").split("\n\n")):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _text(words: str, *, dashes: bool = False) -> str:
    """A line that troff prints as it is; a dash of options stays one that can be copied."""
    line = words.replace("\\", "\\e").replace('"', "\\(dq")
    if dashes:
        return line.replace(" - ", " \\- ")
    line = line.replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def main() -> None:
    """Writes the pages into a folder that is there."""
    folder = Path(sys.argv[1])
    for name, page in (("burstctl.1", burstctl_page()), ("burstd.toml.5", settings_page())):
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
