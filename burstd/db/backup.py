"""Copies of an SQLite record, made while burstd runs, and put back while it does not."""

from __future__ import annotations

import os
import pwd
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL

from burstd.db.database import (
    database_damaged,
    database_url,
    display_url,
    in_memory,
    is_sqlite,
    lock_database_file,
    open_engine,
    translate_errors,
)
from burstd.db.errors import StoreError, StoreUnavailable
from burstd.db.migrate import schema_is_current

RESTORED_KEY = "restored"
"""Key under which a record that was put back keeps from where, until burstd has taken note."""


def back_up_database(location: str | Path, target: Path) -> None:
    """Copies the record at ``place`` as it is at one moment to ``target``, a file of mode 0600 that is replaced.

    burstd may run and write meanwhile. Raises StoreError kinds; the target is then as it was.
    """
    url = _sqlite_url(location)
    source = Path(url.database or "")
    if target.exists() and source.exists() and target.samefile(source):
        raise StoreError(f"{target} is the database itself; name another file for its backup.")
    if not source.is_file():
        raise StoreUnavailable(f"There is no database {source}; burstd makes it at its first start.")
    with (
        _open_source(url) as here,
        _with_owner_rights(target.absolute().parent),
        _replaced_when_complete(target) as unfinished,
    ):
        _copy(url, here, unfinished)


def restore_database(location: str | Path, source: Path) -> Path | None:
    """Puts a backup in the place of the record, which is kept beside it. Returns where; None: there was no record.

    The record then says that it was put back (RESTORED). Raises StoreLocked while burstd runs, StoreBroken and
    StoreNewer for a backup that this program cannot use, and other StoreError kinds; the record is then as it was.
    """
    url = _sqlite_url(location)
    target = Path(url.database or "")
    if not source.is_file():
        raise StoreUnavailable(f"There is no backup {source}.")
    if target.exists() and target.samefile(source):
        raise StoreError(f"{source} is the database itself; name a backup of it.")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise StoreUnavailable(f"The folder {folder} for burstd's database does not exist; create it.")
    _check(source)
    was = target.is_file()
    aside = target.with_name(f"{target.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    backup_url = database_url(source)
    with _open_source(backup_url) as here, _with_owner_rights(folder, target):
        lock = lock_database_file(target)
        try:
            with _replaced_when_complete(target, aside=aside if was else None) as unfinished:
                _copy(backup_url, here, unfinished)
                with closing(sqlite3.connect(unfinished, isolation_level=None)) as there:
                    there.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (RESTORED_KEY, str(source)))
        finally:
            if not was and not target.stat().st_size:
                target.unlink()
            os.close(lock)
    return aside if was else None


def _sqlite_url(location: str | Path) -> URL:
    url = database_url(location)
    if not is_sqlite(url) or in_memory(url):
        raise StoreError(f"The record is {display_url(url)}, no SQLite file: use pg_dump and pg_restore.")
    return url


@contextmanager
def _with_owner_rights(*paths: Path) -> Iterator[None]:
    """With the rights of whoever but root has one of these, where root does this: he may put links in root's way."""
    owner = next((about for p in paths if os.path.lexists(p) and (about := p.lstat()).st_uid), None)
    if os.geteuid() != 0 or owner is None:
        yield
        return
    before = os.getegid(), os.getgroups()
    try:
        name = pwd.getpwuid(owner.st_uid).pw_name
        groups = os.getgrouplist(name, owner.st_gid)
    except KeyError:
        groups = [owner.st_gid]
    try:
        os.setgroups(groups)
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(before[0])
        os.setgroups(before[1])


@contextmanager
def _replaced_when_complete(target: Path, aside: Path | None = None) -> Iterator[Path]:
    """A file that takes the target's name once it is whole and on the disk; what was there goes ``aside``."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            unfinished.chmod(0o600)
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            for ending in ("-wal", "-shm", "") if aside is not None else ():
                old = target.with_name(target.name + ending)
                if aside is not None and old.exists():
                    old.rename(aside.with_name(aside.name + ending))
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"{target} cannot be written ({error.strerror}); see its folder.") from error


@contextmanager
def _open_source(source: URL) -> Iterator[sqlite3.Connection]:
    """The source, open for reading with the rights that its caller has."""
    with translate_errors(source), closing(sqlite3.connect(source.database or "", timeout=5.0)) as here:
        here.execute("PRAGMA query_only=ON")
        here.execute("PRAGMA schema_version")
        yield here


def _copy(source: URL, here: sqlite3.Connection, target: Path) -> None:
    with closing(sqlite3.connect(target, isolation_level=None)) as there:
        here.backup(there)
        # One file, whatever the source's journal was.
        there.execute("PRAGMA journal_mode=DELETE")
        said = there.execute("PRAGMA quick_check(1)").fetchone()[0]
    if said != "ok":
        raise database_damaged(source, said)


def _check(source: Path) -> None:
    url = database_url(source)
    engine = open_engine(url, writer=False)
    try:
        with translate_errors(url), engine.connect() as connection:
            schema_is_current(connection, str(source))
    finally:
        engine.dispose()
