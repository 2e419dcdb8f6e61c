from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from burstd.db import (
    Store,
    StoreBroken,
    StoreFull,
    StoreLocked,
    StoreNewer,
    StoreReader,
    StoreReadOnly,
    StoreUnavailable,
    replay_claims,
)
from burstd.db.database import database_url, display_url
from burstd.db.migrate import SCHEMA_VERSION
from burstd.domain.claim import ClaimState

from .opening import open_store
from .samples import ManualClock, planned, request_for

S = ClaimState


def fill(store: Store) -> int:
    """Writes until it is refused; returns how many claims are on record."""
    written = 0
    with pytest.raises(StoreFull, match="No space is left for the database"):  # noqa: PT012
        while True:
            store.make_claims([planned(f"c{written}", f"n{written}")])
            store.record_launch_requests([request_for(planned(f"c{written}"), f"{written:08}" * 4000)])
            written += 1
    return len(store.claims())


def usable_again(store: Store, written: int) -> None:
    claims = store.claims()
    assert len(claims) == written
    assert replay_claims(store.events(limit=10**6)) == {c.id: c for c in claims}
    store.transition_claim("c0", S.LAUNCHING, S.BOOTING, "answered", instance_id="i-0")
    store.make_claims([planned("new", "free")])
    assert len(store.claims()) == written + 1


def test_a_full_database_refuses_and_works_again_when_there_is_space(tmp_path: Path) -> None:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        limit(store, pages=120)
        written = fill(store)
        assert written > 2
        with pytest.raises(StoreFull), store.batch():
            fill_batch(store)
        limit(store, pages=100_000)
        usable_again(store, written)


def fill_batch(store: Store) -> None:
    for i in range(10_000):
        store.log_event("daemon", new="noise", reason="x" * 500, data={"i": i})


def limit(store: Store, pages: int) -> None:
    with store._database.engine.connect() as connection:
        connection.execute(text(f"PRAGMA max_page_count={pages}"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.boxes
def test_a_full_disk_refuses_and_works_again_when_there_is_space(small_disk: Path) -> None:
    with Store.open(small_disk / "burstd.db", ManualClock()) as store:
        written = fill(store)
        subprocess.run(["mount", "-o", "remount,size=32m", small_disk], check=True)
        usable_again(store, written)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="space"):  # noqa: PT012
        while True:
            filler.write(bytes(1 << 20))
    with pytest.raises(StoreFull, match="No space is left"):
        Store.open(small_disk / "other.db", ManualClock())


@pytest.mark.boxes
def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    Store.open(small_disk / "burstd.db", ManualClock()).close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreUnavailable, match=os.strerror(errno.EROFS)):
        Store.open(small_disk / "burstd.db", ManualClock())


def test_a_database_that_may_only_be_read_refuses_changes_and_answers_questions(tmp_path: Path) -> None:
    with Store.open(tmp_path / "burstd.db", ManualClock()) as store:
        store.make_claims([planned()])
        with store._database.engine.connect() as connection:
            connection.execute(text("PRAGMA query_only=ON"))
        with pytest.raises(StoreReadOnly, match="writable for burstd's user"):
            store.update_claim("c1", address="10.0.0.1")
        assert store.claims() == (planned(),)


def test_a_second_daemon_is_refused_by_name(tmp_path: Path) -> None:
    place = tmp_path / "burstd.db"
    names_it = pytest.raises(StoreLocked, match=f"Another burstd \\(process {os.getpid()}\\)")
    with Store.open(place, ManualClock()), names_it:
        Store.open(place, ManualClock())
    Store.open(place, ManualClock()).close()
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_lock_of_somebody_else_is_waited_for_then_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "burstd.db"
    monkeypatch.setattr("burstd.db.database._BUSY_S", 0.05)
    with Store.open(place, ManualClock()) as store:
        other = sqlite3.connect(place, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked, match="fuser"):
            store.make_claims([planned()])
        assert store.claims() == ()
        other.execute("ROLLBACK")
        store.make_claims([planned()])
        assert store.claims() == (planned(),)
        other.close()


@pytest.mark.parametrize("damage", ["text", "page"])
def test_a_damaged_file_is_not_used(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "burstd.db"
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned(f"c{i}", f"n{i}") for i in range(200)])
    content = bytearray(place.read_bytes())
    if damage == "text":
        content[:] = b"This is a letter, not a database.\n" * 50
    else:
        content[4096 * 2 :] = os.urandom(len(content) - 4096 * 2)
    place.write_bytes(content)
    with pytest.raises(StoreBroken, match=r"restore a backup"):
        Store.open(place, ManualClock())
    assert place.read_bytes() == content


def test_a_newer_database_is_refused_and_left_alone(place: str) -> None:
    with open_store(place, ManualClock()):
        pass
    engine = create_engine(database_url(place))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num='9999'"))
    with (
        pytest.raises(
            StoreNewer, match=rf"written by a newer burstd \(schema 9999; this one knows up to {SCHEMA_VERSION}\)"
        ),
        open_store(place, ManualClock()),
    ):
        pass
    with pytest.raises(StoreNewer):
        StoreReader.open(place, ManualClock())
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()


def test_tables_of_somebody_else_are_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "accounts.db"
    other = sqlite3.connect(place)
    other.execute("CREATE TABLE salaries (x)")
    other.commit()
    other.close()
    with pytest.raises(StoreBroken, match="salaries"):
        Store.open(place, ManualClock())


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("{tmp}/nowhere/burstd.db", "The folder .*nowhere .*does not exist"),
        ("{tmp}", "cannot be opened"),
        ("mysql://u@h/db", "'mysql'"),
        ("postgresql://burstd:hunter2@localhost:1/db?connect_timeout=1", "cannot be used"),
    ],
)
def test_a_place_that_cannot_be_opened(tmp_path: Path, where: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says) as raised, open_store(where.format(tmp=tmp_path), ManualClock()):
        pass
    assert "hunter2" not in str(raised.value)


def test_a_reader_needs_a_database(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="burstd makes it at its first start"):
        StoreReader.open(tmp_path / "burstd.db", ManualClock())
    assert list(tmp_path.iterdir()) == []


def test_a_reader_works_without_the_daemon_and_cannot_write(place: str) -> None:
    with open_store(place, ManualClock()) as store:
        store.make_claims([planned()])
    with StoreReader.open(place, ManualClock()) as reader:
        assert reader.claims() == (planned(),)
        with pytest.raises(StoreReadOnly), reader._database.reading() as connection:
            connection.execute(text("DELETE FROM claim"))
        assert reader.claims() == (planned(),)


def test_passwords_are_not_shown() -> None:
    assert display_url(database_url("postgresql://u:hunter2@h/db")) == "postgresql+psycopg://u:***@h/db"
