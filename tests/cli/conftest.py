from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import typer.testing

from burstd.cli.main import app
from tests.api.fake_backend import FakeBackend, sample_database, serving_api

Run = Callable[..., "Outcome"]
NOBODY = 65534


class Outcome:
    """What a run of burstctl left."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[FakeBackend, Path]]:
    with sample_database() as record, serving_api(record) as found:
        yield found


@pytest.fixture
def backend(served: tuple[FakeBackend, Path]) -> FakeBackend:
    served[0].reset()
    return served[0]


@pytest.fixture
def control(served: tuple[FakeBackend, Path]) -> Path:
    return served[1]


@pytest.fixture(scope="session")
def cli() -> Iterator[typer.testing.CliRunner]:
    """It builds the tree of burstctl's commands once, not for every command that it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield typer.testing.CliRunner()


@pytest.fixture
def run(
    cli: typer.testing.CliRunner, control: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Run]:
    """Runs burstctl in this process, its output in a pipe, in UTC."""
    assert backend.commands == []
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def burstctl(
        *words: str, columns: int | None = None, socket: Path | None = None, typed: str | None = None
    ) -> Outcome:
        env = {"BURSTD_SOCKET": str(socket or control), "COLUMNS": str(columns) if columns else None}
        result = cli.invoke(app, list(words), env=env, input=typed)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    yield burstctl
    monkeypatch.undo()
    time.tzset()


@contextmanager
def as_user(uid: int) -> Iterator[None]:
    """This process connects as another user; what it needs must be loaded before."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
