from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from burstd.store import Store
from burstd.store.migrate import HEAD, config
from burstd.store.rows import Row

from .samples import ManualClock, planned


def test_the_migrations_lead_to_the_rows(place: str) -> None:
    with Store.open(place, ManualClock()) as store, store._engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Row.metadata) == []


def test_there_is_one_head_and_the_program_knows_it() -> None:
    assert ScriptDirectory.from_config(config()).get_heads() == [HEAD]


def test_opening_again_changes_nothing(place: str) -> None:
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned()])
        store.set_meta("cluster", "site")
    with Store.open(place, ManualClock()) as store:
        assert store.claims() == (planned(),)
        assert store.meta("cluster") == "site"
