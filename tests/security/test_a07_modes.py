"""A7. The daemon's files are for its own user, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db import Store, back_up_database
from tests.db.samples import ManualClock, planned
from tests.doubles.lone_daemon import LoneDaemon

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[LoneDaemon]:
    made = LoneDaemon(tmp_path)
    yield made
    made.kill()


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
            for path in folder.rglob("*") if path.is_file()}  # fmt: skip


def test_every_file_that_a_daemon_makes_is_its_users_only(daemon: LoneDaemon) -> None:
    daemon.start(umask=0)
    daemon.wait_for("slurm cannot be read")
    found = modes(daemon.state)
    assert found.keys() >= {"burstd.db", "burstd.db-wal", "burstd.db-shm", "burstd.db.lock", "lock", "record.mark"}
    public = {name for name in found if name.endswith(".pub")}
    assert {name: mode for name, mode in found.items() if name not in public and mode != "0o600"} == {}
    assert set(modes(daemon.spool).values()) <= {"0o600"}
    assert not [d for d in daemon.spool.rglob("*") if d.stat().st_mode & 0o022], "nobody else may write"


def test_the_programs_of_slurm_can_reach_their_spool_whatever_the_umask(daemon: LoneDaemon) -> None:
    daemon.start(umask=0o777 & ~0o700)
    assert stat.S_IMODE((daemon.spool / "burstd").stat().st_mode) == 0o755
    assert stat.S_IMODE((daemon.spool / "burstd" / "power").stat().st_mode) == 0o755


def test_a_record_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    place = tmp_path / "burstd.db"
    Store.open(place, ManualClock()).close()
    place.chmod(0o644)
    with Store.open(place, ManualClock()) as store:
        store.make_claims([planned()])
        assert set(modes(tmp_path).values()) == {"0o600"}


def test_a_backup_is_its_users_only(tmp_path: Path) -> None:
    place, copy = tmp_path / "burstd.db", tmp_path / "copy.db"
    Store.open(place, ManualClock()).close()
    copy.touch(0o644)
    before = os.umask(0)
    try:
        back_up_database(place, copy)
    finally:
        os.umask(before)
    assert modes(tmp_path)["copy.db"] == "0o600"
