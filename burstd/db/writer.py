"""Transactions of the one writer: its thread, its lock, and batches."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, Connection, insert, text

from burstd.db.codec import storable_text, to_json_text
from burstd.db.engine import (
    READ_ONLY,
    database_damaged,
    database_url,
    in_memory,
    is_sqlite,
    open_engine,
    translate_errors,
)
from burstd.db.errors import ChangeRefused, StoreError, StoreLocked, StoreUnavailable
from burstd.db.migrate import schema_is_current, upgrade_schema
from burstd.db.reader import StoreReader
from burstd.db.tables import EVENT
from burstd.domain.clock import Clock


class StoreWriter(StoreReader):
    """Opens the database for writing, and gives every change its transaction."""

    def __init__(self, url: URL, clock: Clock) -> None:
        super().__init__(open_engine(url, writer=True), clock)
        self._read_engine = self._engine.execution_options(**{READ_ONLY: True})
        self._thread = threading.get_ident()
        self._connection: Connection | None = None
        self._batch_failed = False
        self._lock: int | None = None

    @classmethod
    def open(cls, location: str | Path, clock: Clock) -> Self:
        """Opens, or makes, the database, and brings its schema up to date.

        ``place`` is a path, ``:memory:`` or a postgresql URL. The calling thread owns the store from here on.
        Raises StoreLocked (another burstd has it), StoreNewer, StoreBroken, StoreFull, StoreUnavailable.
        """
        store = cls(database_url(location), clock)
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    def reader(self) -> StoreReader:
        """A handle for other threads: reads only, through connections of its own. The caller closes it."""
        return StoreReader.open(self._url.render_as_string(hide_password=False), self._clock)

    def close(self) -> None:
        """Gives the connection and the lock back. Harmless when repeated."""
        self._engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _prepare(self) -> None:
        url = self._url
        if is_sqlite(url) and not in_memory(url):
            self._lock = lock_database_file(Path(url.database or ""))
        with translate_errors(url):
            if is_sqlite(url):
                with self._read_engine.connect() as connection:
                    said = connection.execute(text("PRAGMA quick_check(1)")).scalar()
                if said != "ok":
                    raise database_damaged(url, str(said))
            with self._engine.begin() as connection:
                if not schema_is_current(connection, self.location):
                    upgrade_schema(connection)

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise AssertionError(
                "Store is used by the thread that opened it, and by no other; another thread takes Store.reader()."
            )

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._check_thread()
        with translate_errors(self._url):
            if self._connection is not None:
                yield self._connection
            else:
                with self._read_engine.begin() as connection:
                    yield connection

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Makes one transaction, and one flush to disk, of all changes inside it: all are kept or none.

        A change that is refused (Refused) wrote nothing, and may be caught inside. After any other error the batch
        keeps nothing, and says so at its end if the error was caught on the way.
        """
        self._check_thread()
        if self._connection is not None:
            yield
            return
        self._batch_failed = False
        try:
            with translate_errors(self._url), self._engine.begin() as connection:
                self._connection = connection
                yield
                self._check_batch()
        except BaseException:
            self._drop_caches()
            raise
        finally:
            self._connection = None

    def _check_batch(self) -> None:
        if self._batch_failed:
            raise StoreError("A change inside the batch failed, so nothing of the batch was kept; repeat it.")

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.batch():
            connection = self._connection
            if connection is None:
                raise AssertionError("A batch has a connection.")
            try:
                with translate_errors(self._url):
                    yield connection
            except ChangeRefused:
                raise
            except BaseException:
                self._batch_failed = True
                raise

    def _drop_caches(self) -> None:
        """What was remembered of the database may not be there any more."""

    def log_event(
        self,
        subject: str,
        *,
        new: str = "",
        old: str = "",
        reason: str = "",
        cause: str = "burstd",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Logs something that is no change of a claim or a job's data: a start, a clock jump, an orphan removed."""
        if subject.startswith(("claim:", "stage:")):
            raise AssertionError("Events of claims and stagings are written by their changes, so that replay holds.")
        with self._writing() as connection:
            self._log(connection, self._entry(subject, old, new, reason, cause, data or {}))

    def _entry(
        self,
        subject: str,
        old: str,
        new: str,
        reason: str,
        cause: str,
        data: Mapping[str, Any],
        time: float | None = None,
    ) -> dict[str, Any]:
        return {
            "time": self._clock.now() if time is None else time,
            "subject": storable_text(subject),
            "old": old,
            "new": new,
            "reason": storable_text(reason),
            "cause": storable_text(cause),
            "data": to_json_text(data),
        }

    def _log(self, connection: Connection, *entries: dict[str, Any]) -> None:
        if entries:
            connection.execute(insert(EVENT), list(entries))


def lock_database_file(path: Path) -> int:
    """Takes the lock beside the file, and makes the file, readable for its owner only. Returns the lock."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise StoreUnavailable(f"The folder {folder} for burstd's database does not exist; create it (see state_dir).")
    lock = path.with_name(path.name + ".lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"The lock {lock} beside burstd's database cannot be made ({error.strerror}); see that its folder "
            "belongs to burstd's user and that its file system has space."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(handle, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise StoreLocked(f"Another burstd (process {holder}) has the database {path}; stop it first.") from error
    # Only for the message above: on a full disk the lock holds all the same.
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    try:
        database = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # SQLite gives its -wal and -shm the mode of the database.
        for held in (handle, database):
            if os.fstat(held).st_mode & 0o077:
                os.fchmod(held, 0o600)
        os.close(database)
    except OSError as error:
        os.close(handle)
        raise StoreUnavailable(
            f"The database {path} cannot be opened for writing ({error.strerror}); see that it is a file that "
            "burstd's user may write."
        ) from error
    return handle


def chunks(values: Sequence[str], size: int = 500) -> Iterator[Sequence[str]]:
    """Databases take a limited number of parameters."""
    return (values[i : i + size] for i in range(0, len(values), size))
