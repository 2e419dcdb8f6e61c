"""What holds for every test, and what `make check` leaves out."""

from __future__ import annotations

import gc
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.util import LRUCache

from burstd.db import database, migrate
from tests.lab.marks import LONG, names_long_mark

# Collecting half a million objects that all stay, again and again, takes half of the time of the start.
gc.disable()

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile(
    "full", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=os.environ.get("CI") == "true"
)
settings.register_profile("shared", settings.get_profile("full"), max_examples=50)
settings.register_profile("quick", settings.get_profile("shared"), max_examples=10)
settings.load_profile("full" if os.environ.get("BURSTD_THOROUGH") else "shared")

# By default it draws every local variable of a traceback, which takes seconds of processor time.
structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback

_LEFT_OUT = (*LONG, "slow")
_WHOLE_FILE = re.compile(rf"^pytestmark = (?:\[[^]]*|.*)mark\.(?:{'|'.join(_LEFT_OUT)})\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"a tenth of the examples of each property, and no test with one of the marks {', '.join(_LEFT_OUT)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes half a second or more; `make check` leaves it out")
    if config.getoption("quick"):
        settings.load_profile("quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is left out whole is not even imported: some import the world of a cloud."""
    if config.getoption("quick") and collection_path.suffix == ".py":
        return bool(_WHOLE_FILE.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = {item.path for item in items if any(item.get_closest_marker(mark) for mark in LONG)}
    if unnamed := sorted(str(file) for file in files if not names_long_mark(file)):
        raise pytest.UsageError(f"make test leaves these files out, which name no mark: {' '.join(unnamed)}")
    if config.getoption("quick"):
        out = {item for item in items if any(item.get_closest_marker(mark) for mark in _LEFT_OUT)}
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def migrations_run_once() -> Iterator[None]:
    """A new SQLite database gets the tables that the migrations made in the first one."""
    made: dict[str, str] = {}

    def upgrade(connection: Connection) -> None:
        if connection.dialect.name != "sqlite" or migrate.schema_version(connection):
            migrate.upgrade_schema(connection)
            return
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        if script := made.get(migrate.SCHEMA_VERSION):
            # It ends the transaction that it finds, and leaves its own.
            driver.executescript(script)
        else:
            migrate.upgrade_schema(connection)
            statements = [s for s in driver.iterdump() if s not in {"BEGIN TRANSACTION;", "COMMIT;"}]
            made[migrate.SCHEMA_VERSION] = "\n".join(["BEGIN IMMEDIATE;", *statements])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "upgrade_schema", upgrade)
        yield


@pytest.fixture(scope="session", autouse=True)
def statements_are_compiled_once() -> Iterator[None]:
    """SQLAlchemy compiles a statement for each engine, and a test opens a database, or one for each example."""
    first = create_engine("sqlite://")
    first.connect().close()
    compiled = LRUCache[object, object](2000)

    def create(url: URL, **options: Any) -> Engine:
        if not database.is_sqlite(url):
            return create_engine(url, **options)
        engine = create_engine(url, **options, execution_options={"compiled_cache": compiled})
        # What is compiled is kept by dialect.
        engine.dialect = first.dialect
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", create)
        yield
