"""A group of commands that does something by itself, as ``burstctl bill`` does."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from burstd.cli.session import ApiClient, GlobalOptions, with_client

app = typer.Typer()


@app.callback(invoke_without_command=True)
@with_client
def alone(burstd: ApiClient, by: str = "user") -> None:
    typer.echo(f"{by} {burstd.path} {burstd.json}")


@app.command()
@with_client
def close(burstd: ApiClient, month: str = "") -> None:
    typer.echo(f"close {month} {burstd.path} {burstd.json}")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("--by job", 0, "job /s False\n"),
        ("close --month 2026-10", 0, "close 2026-10 /s False\n"),
        ("--json --socket /t close", 0, "close  /t True\n"),
        ("--by job close", 2, "Invalid value for --by: say it after close"),
    ],
)
def test_options_before_a_command_count_for_it_or_are_refused(words: str, code: int, says: str) -> None:
    outcome = CliRunner().invoke(app, words.split(), obj=GlobalOptions(json=False, socket=Path("/s")))
    assert (outcome.exit_code, says in outcome.output) == (code, True), outcome.output
