"""root backs the record up into a user's folder, or puts it back into SlurmUser's: neither leads root elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db import Store, StoreError, back_up_database, restore_database
from tests.db.samples import ManualClock, planned

pytestmark = [pytest.mark.boxes, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
USER = 3009


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, with a user's folder and a file of root's in it."""
    with tempfile.TemporaryDirectory(prefix="burstd-") as folder:
        found = Path(folder)
        found.chmod(0o755)
        (found / "his").mkdir()
        os.chown(found / "his", USER, USER)
        (found / "secret").write_text("root's own\n" * 1000)
        (found / "secret").chmod(0o600)
        yield found
        about = (found / "secret").stat()
        assert (found / "secret").read_text() == "root's own\n" * 1000
        assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (0, 0, 0o600)


def record(path: Path) -> Path:
    with Store.open(path, ManualClock()) as store:
        store.make_claims([planned(f"c{i}", f"n{i}") for i in range(50)])
    return path


def test_a_copy_goes_into_a_users_folder_as_his(place: Path) -> None:
    back_up_database(record(place / "burstd.db"), place / "his" / "copy.db")
    about = (place / "his" / "copy.db").stat()
    assert (about.st_uid, about.st_gid, about.st_mode & 0o777) == (USER, USER, 0o600)
    assert os.geteuid() == os.getegid() == 0
    with Store.open(place / "his" / "copy.db", ManualClock()) as store:
        assert len(store.claims()) == 50


@pytest.mark.parametrize("link", ["burstd.db.lock", "burstd.db"])
def test_a_record_is_not_put_back_through_a_users_link(place: Path, link: str) -> None:
    copy = record(place / "copy.db")
    copy.chmod(0o600)
    (place / "his" / link).symlink_to(place / "secret")
    with pytest.raises(StoreError):
        restore_database(place / "his" / "burstd.db", copy)
    assert os.geteuid() == os.getegid() == 0


def test_a_record_is_put_back_as_its_users(place: Path) -> None:
    copy = record(place / "copy.db")
    copy.chmod(0o600)
    assert restore_database(place / "his" / "burstd.db", copy) is None
    assert {(f.name, f.stat().st_uid) for f in (place / "his").iterdir()} == {
        ("burstd.db", USER), ("burstd.db.lock", USER),
    }  # fmt: skip
