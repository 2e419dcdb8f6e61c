from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from burstd.db import Store, StoreNewer, migrate
from burstd.db.engine import database_url, open_engine
from burstd.db.migrate import SCHEMA_VERSION, alembic_config, upgrade_schema
from burstd.db.tables import TableRow

from .samples import ManualClock, planned


def test_the_migrations_lead_to_the_rows(place: str) -> None:
    with Store.open(place, ManualClock()) as store, store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, TableRow.metadata) == []


def test_a_migration_that_is_cut_short_leaves_nothing(place: str) -> None:
    url = database_url(place)
    engine = open_engine(url, writer=True)
    with pytest.raises(KeyboardInterrupt), engine.begin() as connection:  # noqa: PT012
        upgrade_schema(connection)
        assert inspect(connection).has_table("claim")
        raise KeyboardInterrupt
    with engine.connect() as connection:
        assert inspect(connection).get_table_names() == []
    engine.dispose()


def test_there_is_one_head_and_the_program_knows_it() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [SCHEMA_VERSION]


def test_opening_again_changes_nothing(place: str) -> None:
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned()])
        store.set_metadata("cluster", "site")
    with Store.open(place, ManualClock()) as store:
        assert store.claims() == (planned(),)
        assert store.metadata("cluster") == "site"


def test_a_burstd_that_wrote_the_clocks_times_refuses_what_this_one_has_written(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shutil.copytree(migrate._SCRIPTS, tmp_path / "migrations")
    for script in (before / "versions").glob("r*.py"):
        if script.name > "r0005_budgets.py":
            script.unlink()
    with monkeypatch.context() as older:
        older.setattr(migrate, "_SCRIPTS", before)
        older.setattr(migrate, "SCHEMA_VERSION", "0005")
        with Store.open(place, ManualClock()) as store:
            store.make_claims([planned()])
    with Store.open(place, ManualClock()) as store:
        assert store.claims() == (planned(),)
    with monkeypatch.context() as older:
        older.setattr(migrate, "_SCRIPTS", before)
        older.setattr(migrate, "SCHEMA_VERSION", "0005")
        with pytest.raises(StoreNewer, match="written by a newer burstd"):
            Store.open(place, ManualClock())
