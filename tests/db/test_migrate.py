from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select, text, update

from burstd.db import Store, StoreNewer, migrate, replay_claims, replay_stagings
from burstd.db.database import database_url, open_engine
from burstd.db.migrate import SCHEMA_VERSION, alembic_config, upgrade_schema
from burstd.db.tables import BREAKER, CLAIM, EVENT, STAGING, TableRow
from burstd.domain.claim import ClaimState
from burstd.domain.plugins.policy import Remark
from burstd.domain.snapshot import CircuitBreaker
from burstd.domain.staging import StageState

from .opening import open_store
from .samples import ManualClock, planned
from .test_stagings import advance_staging


def test_the_migrations_lead_to_the_rows(place: str) -> None:
    with open_store(place, ManualClock()) as store, store._database.engine.connect() as connection:
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
    with open_store(place, ManualClock()) as store:
        store.make_claims([planned()])
        store.set_metadata("cluster", "site")
    with open_store(place, ManualClock()) as store:
        assert store.claims() == (planned(),)
        assert store.metadata("cluster") == "site"


def scripts_up_to(revision: str, folder: Path) -> Path:
    """The migrations that a burstd of before had."""
    before = shutil.copytree(migrate._SCRIPTS, folder / "migrations")
    for script in (before / "versions").glob("r*.py"):
        if script.name[1:5] > revision:
            script.unlink()
    return before


def test_a_burstd_that_wrote_the_clocks_times_refuses_what_this_one_has_written(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = scripts_up_to("0005", tmp_path)
    with open_store(place, ManualClock()) as store:
        store.make_claims([planned()])
        with store._database.engine.begin() as connection:
            write_former_schema(connection, "0005")
    with open_store(place, ManualClock()) as store:
        assert store.claims() == (planned(),)
    with monkeypatch.context() as older:
        older.setattr(migrate, "_SCRIPTS", before)
        older.setattr(migrate, "SCHEMA_VERSION", "0005")
        with pytest.raises(StoreNewer, match="written by a newer burstd"), open_store(place, ManualClock()):
            pass


def test_a_database_with_the_former_word_for_the_start_of_service_is_taken_over(place: str) -> None:
    with open_store(place, ManualClock()) as store:
        write_claims(store)
        store.adopt_claim(replace(planned("c-quoted", "cpu2"), in_service_from=5.0, reason='it said {"opened":1}'))
        claims, events = store.find_claims(), store.events()
        with store._database.engine.begin() as connection:
            write_former_schema(connection, "0008")
            assert connection.execute(text("SELECT opened FROM claim WHERE id = 'c-quoted'")).scalar() == 5.0
    with open_store(place, ManualClock()) as store:
        assert (store.find_claims(), store.events()) == (claims, events)
        assert replay_claims(store.events()) == {claim.id: claim for claim in claims}
        assert {claim.id for claim in claims if claim.in_service_from} == {"c-in_service", "c-draining", "c-quoted"}


OLD_STAGES = {
    "uploading": "sending", "fetching": "placing", "fetched": "placed", "delivering": "bringing", "delivered": "home",
}  # fmt: skip


def test_a_database_with_the_former_words_for_jobs_data_is_taken_over(
    place: str,
) -> None:
    with open_store(place, ManualClock()) as store:
        store.adopt_claim(replace(planned(), dedicated_by_policy=True, reason='it said {"alone":true}'))
        for state in StageState:
            advance_staging(store, f"{state.value} home", state)
        store.transition_staging("delivering home", T.DELIVERING, T.HELD, "home", resume=T.DELIVERING)
        store.record_remarks([Remark("idle", "stage:17", "home", "sending")])
        claims, stagings, events = store.find_claims(), store.stagings(live=False), store.events()
        with store._database.engine.begin() as connection:
            write_former_stages(connection)
    with open_store(place, ManualClock()) as store:
        assert (store.find_claims(), store.stagings(live=False), store.events()) == (claims, stagings, events)
        assert replay_claims(store.events()) == {claim.id: claim for claim in claims}
        assert replay_stagings(store.events()) == {staging.job_id: staging for staging in stagings}
        store.transition_staging("fetched home", T.FETCHED, T.COLLECTING, "ended")


def write_former_stages(connection: Connection) -> None:
    """What a burstd of schema 0007 had in the place of today's words and columns."""
    for column in (STAGING.c.state, STAGING.c.resume):
        for new, old in OLD_STAGES.items():
            name = column.name
            connection.execute(text(f"UPDATE staging SET {name} = '{old}' WHERE {name} = '{new}'"))  # noqa: S608
    for event in connection.execute(select(EVENT)).mappings().all():
        data = dict(event["data"])
        if "remark" in data or not event["subject"].startswith(("claim:", "stage:")):
            continue
        for part in ("claim", "staging", "set"):
            fields = dict(data.get(part, {}))
            for key in {"state", "resume"} & fields.keys():
                fields[key] = OLD_STAGES.get(fields[key], fields[key])
            if "dedicated_by_policy" in fields:
                fields["alone"] = fields.pop("dedicated_by_policy")
            if part in data:
                data[part] = fields
        values = {name: OLD_STAGES.get(event[name], event[name]) for name in ("old", "new")}
        connection.execute(update(EVENT).where(EVENT.c.seq == event["seq"]).values(data=data, **values))
    write_former_schema(connection, "0007")


def write_former_schema(connection: Connection, revision: str) -> None:
    """The tables of a burstd of before, and the log's key; from 0005 on words changed, checkpoints and volumes came."""
    for table in ("relayed_call", "leader", "head", "site_run", "site_charge", "closed_month", "charge"):
        connection.execute(text(f"DROP TABLE {table}"))
    connection.execute(text("ALTER TABLE ended_job DROP COLUMN submitted"))
    connection.execute(text("DROP TABLE claim_run"))
    connection.execute(text("DROP TABLE notification"))
    connection.execute(text("DROP TABLE site_history"))
    connection.execute(text("ALTER TABLE claim DROP COLUMN reused_from"))
    connection.execute(text("DROP TABLE job_use"))
    connection.execute(text("DROP TABLE project"))
    connection.execute(text("DROP TABLE volume"))
    connection.execute(text("DROP INDEX ix_staging_array_task"))
    for column in ("checkpoints", "checkpoint_error", "array_task"):
        connection.execute(text(f"ALTER TABLE staging DROP COLUMN {column}"))
    connection.execute(text("ALTER TABLE claim RENAME COLUMN in_service_from TO opened"))
    for event in connection.execute(select(EVENT)).mappings().all():
        data = event["data"]
        for fields in (data.get("claim", {}), data.get("set", {})):
            if event["subject"].startswith("claim:") and "in_service_from" in fields:
                fields["opened"] = fields.pop("in_service_from")
        connection.execute(update(EVENT).where(EVENT.c.seq == event["seq"]).values(data=data))
    if revision < "0008":
        connection.execute(text("ALTER TABLE claim RENAME COLUMN dedicated_by_policy TO alone"))
    connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))  # noqa: S608


S, T = ClaimState, StageState
OLD_STATES = {"validating": "proving", "in_service": "open", "draining": "closing"}
OLD_CAUSES = {"validation": "proof", "validation_timeout": "proof_timeout"}


def test_a_database_with_the_former_words_for_states_and_causes_is_taken_over(
    place: str,
) -> None:
    with open_store(place, ManualClock()) as store:
        write_claims(store)
        claims, events, breakers = store.find_claims(), store.events(), store.breakers()
        with store._database.engine.begin() as connection:
            write_former_words(connection)
            write_former_schema(connection, "0006")
    with open_store(place, ManualClock()) as store:
        assert (store.find_claims(), store.events(), store.breakers()) == (claims, events, breakers)
        assert replay_claims(store.events()) == {claim.id: claim for claim in claims}
        assert {claim.state for claim in claims} >= {S.VALIDATING, S.IN_SERVICE, S.DRAINING}
        store.transition_claim("c-draining", S.DRAINING, S.READY, "wanted again")


def write_claims(store: Store) -> None:
    """A claim in each state on the way, two that failed, one that was adopted, and what has words of the same look."""
    way = (S.PLANNED, S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY, S.IN_SERVICE, S.DRAINING)
    for last, state in enumerate(way):
        store.make_claims([planned(f"c-{state.value}", f"gpu{last}")])
        for old, new in pairwise(way[: last + 1]):
            store.transition_claim(f"c-{state.value}", old, new, "open")
    for error in OLD_CAUSES:
        store.make_claims([planned(f"c-{error}", f"gpu-{error}")])
        for old, new in pairwise(way[:4]):
            store.transition_claim(f"c-{error}", old, new, "on its way")
        store.transition_claim(f"c-{error}", S.VALIDATING, S.FAILED, "proof", error=error)
        store.save_breaker(CircuitBreaker(f"sky/{error}", error, 1, 2e9, "proof"))
    same = 'it said {"state":"open","error":"proof"}'
    store.adopt_claim(replace(planned("c-adopted", "cpu1"), state=S.IN_SERVICE, error="validation", reason=same))
    store.record_remarks([Remark("idle", "claim:c-ready", "open", same)])
    store.update_claim("c-ready", "proof", error="lost")


def write_former_words(connection: Connection) -> None:
    """What a burstd of schema 0006 had in the place of today's words."""
    for column, words in ((CLAIM.c.state, OLD_STATES), (CLAIM.c.error, OLD_CAUSES), (BREAKER.c.cause, OLD_CAUSES)):
        for new, old in words.items():
            rows = update(column.table).where(column == new).values({column.name: old})
            assert connection.execute(rows).rowcount > 0
    for event in connection.execute(select(EVENT)).mappings().all():
        data = event["data"]
        if "remark" in data:
            continue
        for fields in (data.get("claim", {}), data.get("set", {})):
            for key, words in (("state", OLD_STATES), ("error", OLD_CAUSES)):
                if key in fields:
                    fields[key] = words.get(fields[key], fields[key])
        values = {
            "old": OLD_STATES.get(event["old"], event["old"]),
            "new": OLD_STATES.get(event["new"], event["new"]),
            "cause": OLD_CAUSES.get(event["cause"], event["cause"]),
            "data": data,
        }
        connection.execute(update(EVENT).where(EVENT.c.seq == event["seq"]).values(values))
