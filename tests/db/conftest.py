from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from burstd.db import Store
from burstd.db.database import database_url

from .opening import open_store
from .samples import ManualClock
from .server import find_initdb, private_server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database can be made; PostgreSQL where one is to be had."""
    if request.param == "sqlite":
        return str(tmp_path / "burstd.db")
    server: str = request.getfixturevalue("postgresql_server")
    engine = create_engine(database_url(server))
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return server


@pytest.fixture
def store(place: str, clock: ManualClock) -> Iterator[Store]:
    with open_store(place, clock) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL whose contents may be dropped: BURSTD_TEST_POSTGRESQL, or a private one for this run."""
    if given := os.environ.get("BURSTD_TEST_POSTGRESQL"):
        yield given
        return
    initdb = find_initdb()
    if initdb is None:
        pytest.skip("no PostgreSQL server: BURSTD_TEST_POSTGRESQL is not set and initdb is not installed")
    data = tmp_path_factory.mktemp("postgresql")
    with private_server(initdb, data):
        yield f"postgresql://burstd@/postgres?host={data}"
