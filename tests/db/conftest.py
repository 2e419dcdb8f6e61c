from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from burstd.db import Store
from burstd.db.database import database_url
from tests.reach import let_others_in

from .opening import open_store
from .samples import ManualClock


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
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    initdb = str(folders[-1] / "initdb") if folders else shutil.which("initdb")
    if initdb is None:
        pytest.skip("no PostgreSQL server: BURSTD_TEST_POSTGRESQL is not set and initdb is not installed")
    data = tmp_path_factory.mktemp("postgresql")
    # initdb refuses to run as root.
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(data, user)
        let_others_in(data.parent)

    def quietly(*command: str | Path) -> None:
        subprocess.run(command, user=user, cwd=data, check=True, capture_output=True)

    quietly(initdb, "-D", data / "d", "-U", "burstd", "-A", "trust", "--no-sync")
    control = Path(initdb).with_name("pg_ctl")
    options = f"-k {data} -c listen_addresses= -c fsync=off"
    quietly(control, "-D", data / "d", "-w", "-l", data / "log", "-o", options, "start")
    try:
        yield f"postgresql://burstd@/postgres?host={data}"
    finally:
        quietly(control, "-D", data / "d", "-m", "immediate", "stop")
