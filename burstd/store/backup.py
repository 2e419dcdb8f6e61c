"""Copies of an SQLite record, made while burstd runs, and put back while it does not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import URL

from burstd.store.engine import broken, database_url, in_memory, in_words, is_sqlite, open_engine, shown
from burstd.store.errors import StoreError, StoreUnavailable
from burstd.store.migrate import check
from burstd.store.writer import take_file


def backup(place: str | Path, target: Path) -> None:
    """Copies the record at ``place`` as it is at one moment to ``target``, a file of mode 0600 that is replaced.

    burstd may run and write meanwhile. Raises StoreError kinds; the target is then as it was.
    """
    url = _file(place)
    source = Path(url.database or "")
    if target.exists() and source.exists() and target.samefile(source):
        raise StoreError(f"{target} is the database itself; name another file for its backup.")
    if not source.is_file():
        raise StoreUnavailable(f"There is no database {source}; burstd makes it at its first start.")
    with _finished(target, target.parent.stat() if target.parent.is_dir() else None) as unfinished:
        _copy(url, unfinished)


def restore(place: str | Path, source: Path) -> Path | None:
    """Puts a backup in the place of the record, which is kept beside it. Returns where; None: there was no record.

    Raises StoreLocked while burstd runs, StoreBroken and StoreNewer for a backup that this program cannot use, and
    other StoreError kinds; the record is then as it was.
    """
    url = _file(place)
    target = Path(url.database or "")
    if not source.is_file():
        raise StoreUnavailable(f"There is no backup {source}.")
    if target.exists() and target.samefile(source):
        raise StoreError(f"{source} is the database itself; name a backup of it.")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise StoreUnavailable(f"The folder {folder} for burstd's database does not exist; create it.")
    owner = (target if target.exists() else folder).stat()
    was = target.is_file()
    lock = take_file(target)
    try:
        _give(target.with_name(target.name + ".lock"), owner)
        _check(source)
        aside = target.with_name(f"{target.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%S}")
        with _finished(target, owner, aside=aside) as unfinished:
            _copy(database_url(source), unfinished)
    finally:
        if not was and not target.stat().st_size:
            target.unlink()
        os.close(lock)
    return aside if was else None


def _file(place: str | Path) -> URL:
    url = database_url(place)
    if not is_sqlite(url) or in_memory(url):
        raise StoreError(f"The record is {shown(url)}, no SQLite file: use pg_dump and pg_restore.")
    return url


@contextmanager
def _finished(target: Path, owner: os.stat_result | None, aside: Path | None = None) -> Iterator[Path]:
    """A file that takes the target's name once it is whole and on the disk; what was there goes ``aside``."""
    unfinished = target.with_name(f"{target.name}.unfinished")
    try:
        unfinished.unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            unfinished.chmod(0o600)
            yield unfinished
            if owner is not None:
                _give(unfinished, owner)
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


def _give(path: Path, owner: os.stat_result) -> None:
    """To burstd's user, where root does this."""
    if os.geteuid() == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def _copy(source: URL, target: Path) -> None:
    with (
        in_words(source),
        closing(sqlite3.connect(source.database or "", timeout=5.0)) as here,
        closing(sqlite3.connect(target, isolation_level=None)) as there,
    ):
        here.execute("PRAGMA query_only=ON")
        here.backup(there)
        # One file, whatever the source's journal was.
        there.execute("PRAGMA journal_mode=DELETE")
        said = there.execute("PRAGMA quick_check(1)").fetchone()[0]
    if said != "ok":
        raise broken(source, said)


def _check(source: Path) -> None:
    url = database_url(source)
    engine = open_engine(url, writer=False)
    try:
        with in_words(url), engine.connect() as connection:
            check(connection, str(source))
    finally:
        engine.dispose()
