"""B3. burstctl backup and restore, also while burstd writes."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from burstd.cli.main import app
from burstd.db import (
    Store,
    StoreBroken,
    StoreError,
    StoreLocked,
    StoreNewer,
    StoreReader,
    back_up_database,
    replay_claims,
    restore_database,
)
from burstd.db.record_mark import DOUBT_KEY, RecordMark
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.staging.movement.job_folders import folder_key
from tests.db.samples import ManualClock, planned
from tests.doubles.lone_daemon import LoneDaemon


def test_a_copy_made_while_burstd_writes_is_whole(tmp_path: Path) -> None:
    place, copy = tmp_path / "burstd.db", tmp_path / "copy.db"
    wrong: list[str] = []
    done = threading.Event()

    def look() -> None:
        try:
            for _ in range(10):
                back_up_database(place, copy)
                with StoreReader.open(copy, ManualClock()) as reader:
                    claims = {c.id: c for c in reader.find_claims(limit=10**6)}
                    if replay_claims(reader.events(limit=10**6)) != claims:
                        wrong.append(f"{len(claims)} claims")
        except StoreError as error:
            wrong.append(str(error))
        finally:
            done.set()

    with Store.open(place, ManualClock()) as store:
        copying = threading.Thread(target=look)
        copying.start()
        number = 0
        while not done.is_set():
            store.make_claims([planned(f"c{number}", f"n{number}")])
            number += 1
        copying.join()
    assert number > 10
    assert not wrong
    assert not list(tmp_path.glob("copy.db-*")), "it is one file"


def test_a_backup_is_put_back_by_burstctl_and_noticed(tmp_path: Path) -> None:
    daemon, copy = LoneDaemon(tmp_path), tmp_path / "copy.db"
    with Store.open(daemon.database, ManualClock()) as store:
        RecordMark(daemon.state / "record.mark", store).doubt_record()
        store.make_claims([planned("old", "n1")])
        done = CliRunner().invoke(app, ["backup", str(copy), "--config", str(daemon.settings)])
        assert done.exit_code == 0, done.output
        store.make_claims([planned("new", "n2")])
        RecordMark(daemon.state / "record.mark", store).update_mark()
        refused = CliRunner().invoke(app, ["restore", str(copy), "--config", str(daemon.settings)])
        assert refused.exit_code == 1
        assert "stop it first" in refused.output
    done = CliRunner().invoke(app, ["restore", str(copy), "--config", str(daemon.settings), "--json"])
    assert done.exit_code == 0, done.output
    with StoreReader.open(json.loads(done.stdout)["file"], ManualClock()) as kept:
        assert {c.id for c in kept.claims()} == {"old", "new"}
    with Store.open(daemon.database, ManualClock()) as store:
        assert [c.id for c in store.claims()] == ["old"]
        doubt = RecordMark(daemon.state / "record.mark", store).doubt_record()
    assert "is an older copy" in doubt
    assert "adopts the machines" in doubt
    with Store.open(daemon.database, ManualClock()) as store:
        assert RecordMark(daemon.state / "record.mark", store).doubt_record() == doubt, "a restart does not forget it"


@pytest.mark.parametrize("kind", ["damaged", "newer", "none", "itself"])
def test_what_is_no_backup_is_refused_and_the_record_stays(tmp_path: Path, kind: str) -> None:
    place, source = tmp_path / "burstd.db", tmp_path / "copy.db"
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned(f"c{i}", f"n{i}") for i in range(200)])
    back_up_database(place, source)
    error: type[StoreError] = StoreError
    if kind == "damaged":
        content = bytearray(source.read_bytes())
        content[4096 * 9 : 4096 * 12] = bytes(4096 * 3)
        source.write_bytes(content)
        error = StoreBroken
    elif kind == "newer":
        other = sqlite3.connect(source)
        other.execute("UPDATE alembic_version SET version_num='9999'")
        other.commit()
        other.close()
        error = StoreNewer
    elif kind == "none":
        source = tmp_path / "nothing"
    else:
        source = place
    before = place.read_bytes()
    with pytest.raises(error):
        restore_database(place, source)
    assert place.read_bytes() == before
    assert not list(tmp_path.glob("*.unfinished"))


def test_a_record_is_not_put_back_under_a_running_burstd(tmp_path: Path) -> None:
    place, copy = tmp_path / "burstd.db", tmp_path / "copy.db"
    with Store.open(place, ManualClock()):
        back_up_database(place, copy)
        with pytest.raises(StoreLocked, match="stop it first"):
            restore_database(place, copy)


def test_of_postgresql_its_own_tools_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="pg_dump"):
        back_up_database("postgresql://burstd:secret@host/burstd", tmp_path / "copy.db")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    place = tmp_path / "burstd.db"
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned()])
    folder = tmp_path / "gone"
    with pytest.raises(StoreError, match="cannot be written"):
        back_up_database(place, folder / "copy.db")


def test_a_head_without_anything_gets_all_that_it_needs_from_what_backup_and_restore_say(tmp_path: Path) -> None:
    for name in ("lost", "other", "backup"):
        (tmp_path / name).mkdir()
    lost, other = LoneDaemon(tmp_path / "lost"), LoneDaemon(tmp_path / "other")
    copy = tmp_path / "backup" / "burstd.db"
    for daemon in (lost, other):
        staging = f'[staging]\nstore = "near"\n[staging.stores.near]\nkind = "shared"\npath = "{tmp_path}"\n'
        daemon.settings.write_text(daemon.settings.read_text() + staging)
    known = HostKeys(HostKeyPolicy.CONSOLE, frozenset({"ssh-ed25519 AAAA"}))
    public, folders = ensure_ssh_key(lost.state / "ssh_key"), folder_key(lost.state / "job-folders.key")
    HostKeyFiles(lost.state / "host_keys").save_keys("c1", known)
    ensure_ssh_key(lost.state / "storage" / "c2" / "key")
    with Store.open(lost.database, ManualClock()) as store:
        RecordMark(lost.state / "record.mark", store).doubt_record()
        store.make_claims([planned("c1", "n1")])
    done = CliRunner().invoke(app, ["backup", str(copy), "--config", str(lost.settings), "--json"])
    assert done.exit_code == 0, done.output
    subprocess.run(shlex.split(json.loads(done.stdout)["copy"]), check=True)

    done = CliRunner().invoke(app, ["restore", str(copy), "--config", str(other.settings), "--json"])
    assert done.exit_code == 0, done.output
    missing = [Path(path) for path in json.loads(done.stdout)["missing"]]
    assert {path.parent for path in missing} == {other.state}
    for path in missing:
        subprocess.run(["cp", "-rp", copy.with_name(path.name), path], check=True)

    assert ensure_ssh_key(other.state / "ssh_key") == public
    assert folder_key(other.state / "job-folders.key") == folders
    assert HostKeyFiles(other.state / "host_keys").load_keys("c1") == known
    assert (other.state / "storage" / "c2" / "key").read_bytes() == (lost.state / "storage" / "c2" / "key").read_bytes()
    with Store.open(other.database, ManualClock()) as store:
        assert [c.id for c in store.claims()] == ["c1"]
        doubt = RecordMark(other.state / "record.mark", store).doubt_record()
        assert "was put back from" in doubt, "no mark tells, so the record itself has to"
        assert "adopts the machines" in doubt
        store.set_metadata(DOUBT_KEY, "")
        assert not RecordMark(other.state / "record.mark", store).doubt_record(), "it is said once"
