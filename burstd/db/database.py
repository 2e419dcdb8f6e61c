"""An open database, its transactions, and its errors in words. SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, ColumnElement, Connection, Engine, and_, create_engine, event, make_url, or_, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, PendingRollbackError
from sqlalchemy.pool import StaticPool
from sqlmodel import Session

from burstd.db.errors import (
    ChangeRefused,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
)
from burstd.db.migrate import schema_is_current, upgrade_schema

T = TypeVar("T")

READ_ONLY = "burstd_read_only"
"""Execution option of transactions that only read: they do not ask SQLite for its one write lock."""
_BUSY_S = 5.0
_BATCH_FAILED = "A change inside the batch failed, so nothing of the batch was kept; repeat it."
_NOTICE_A_CUT = {
    "connect_timeout": 5, "keepalives_idle": 4, "keepalives_interval": 2, "keepalives_count": 2,
    "tcp_user_timeout": 6000,
}  # fmt: skip
"""Of libpq, in s and ms: without them a cut is noticed after two hours."""
_WRITER_STOPPED_MS = 10_000
"""A head that hangs inside a transaction keeps the next one from leading for no longer."""


def database_url(location: str | Path) -> URL:
    """A path, ``:memory:``, ``sqlite:///path`` or ``postgresql://...`` as a URL. Raises StoreUnavailable."""
    name = str(location)
    if "://" not in name:
        return URL.create("sqlite", database=name)
    try:
        url = make_url(name)
    except ArgumentError as error:
        raise StoreUnavailable(
            "daemon.database is no URL of a database; write a path, or postgresql://user@host/name."
        ) from error
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.drivername not in ("sqlite", "postgresql+psycopg"):
        raise StoreUnavailable(
            f"daemon.database names the database system {url.drivername!r}; burstd can use sqlite and postgresql."
        )
    return url


def display_url(url: URL) -> str:
    """The database's name for messages: a path, or the URL without its password."""
    return (url.database or ":memory:") if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """True for SQLite."""
    return url.drivername == "sqlite"


def in_memory(url: URL) -> bool:
    """True for an SQLite database without a file."""
    return is_sqlite(url) and url.database in (None, "", ":memory:")


def connect_args(url: URL, name: str, server: Mapping[str, int]) -> dict[str, Any]:
    """libpq's parameters for a connection of this name, with these settings of the server; the URL's come first."""
    options = [str(url.query.get("options", "")), *(f"-c {key}={value}" for key, value in server.items())]
    ours = {**_NOTICE_A_CUT, "application_name": name}
    return {key: ours[key] for key in ours.keys() - url.query.keys()} | {"options": " ".join(options).strip()}


def make_engine(url: URL, **options: Any) -> Engine:
    """An engine; nothing is connected yet. Raises StoreUnavailable where the driver is not installed."""
    try:
        return create_engine(url, hide_parameters=True, **options)
    except (ImportError, NoSuchModuleError) as error:
        raise StoreUnavailable(
            "PostgreSQL needs the package psycopg: install burstd[postgresql], or leave daemon.database unset."
        ) from error


def open_engine(url: URL, *, writer: bool) -> Engine:
    """An engine; nothing is connected yet. A writer has one connection, readers have a few."""
    options: dict[str, Any] = {}
    if is_sqlite(url):
        # isolation_level None: the begin event below decides, not the driver; only then DDL and savepoints roll back.
        options["connect_args"] = {"timeout": _BUSY_S, "isolation_level": None, "check_same_thread": False}
    else:
        options["pool_pre_ping"] = True
        options["connect_args"] = connect_args(
            url, "burstd", {"idle_in_transaction_session_timeout": _WRITER_STOPPED_MS}
        )
        if not writer:
            # What one transaction reads is of one moment, as in SQLite.
            options["isolation_level"] = "REPEATABLE READ"
    if in_memory(url):
        options["poolclass"] = StaticPool
    elif writer:
        options |= {"pool_size": 1, "max_overflow": 0}
    engine = make_engine(url, **options)
    if is_sqlite(url):
        _tune_sqlite(engine, writer=writer)
    elif not writer:
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "read_only", True))
    return engine


def _tune_sqlite(engine: Engine, *, writer: bool) -> None:
    @event.listens_for(engine, "connect")
    def tune(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        if writer:
            connection.execute("PRAGMA journal_mode=WAL")
            # NORMAL would lose the last commits at a power cut: a machine would run that nobody remembers.
            connection.execute("PRAGMA synchronous=FULL")
        else:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        reads = not writer or connection.get_execution_options().get(READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


class Database:
    """An open database, and its transactions. One that writes belongs to the thread that opened it."""

    def __init__(self, url: URL, *, writer: bool = False, fence: Callable[[Connection], None] | None = None) -> None:
        """``fence`` begins each transaction that writes, and raises where this process may not."""
        self.url = url
        self.location = display_url(url)
        self.engine = self._read_engine = open_engine(url, writer=writer)
        self.on_failure: list[Callable[[], None]] = []
        """Called where a batch is not kept: what was remembered of the database may not be there any more."""
        self.on_end: list[Callable[[], None]] = []
        """Called after each batch: what was read before may have changed."""
        self.on_connect: list[Callable[[], None]] = []
        """Called where the writer has a new connection: after a failover PostgreSQL may lack the last transactions."""
        self._writer_thread = threading.get_ident() if writer else None
        self._fence = fence
        self._session: Session | None = None
        self._batch_failed = False
        self._lock: int | None = None
        if writer:
            self._read_engine = self.engine.execution_options(**{READ_ONLY: True})
            event.listen(self.engine, "connect", self._connected)

    def prepare(self) -> None:
        """Takes the lock of SQLite's file, makes the database where there is none, brings its schema up to date."""
        if not is_sqlite(self.url):
            return  # by Leadership, before its epoch begins
        if not in_memory(self.url):
            self._lock = lock_database_file(Path(self.url.database or ""))
        with translate_errors(self.url):
            with self._read_engine.connect() as connection:
                said = connection.execute(text("PRAGMA quick_check(1)")).scalar()
            if said != "ok":
                raise database_damaged(self.url, str(said))
            with self.engine.begin() as connection:
                if not schema_is_current(connection, self.location):
                    upgrade_schema(connection)

    def close(self) -> None:
        """Gives connections and the lock back. Harmless when repeated."""
        self.engine.dispose()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _connected(self, *_: object) -> None:
        for called in self.on_connect:
            called()

    def check_thread(self) -> None:
        """Raises AssertionError in another thread than the writer's."""
        if self._writer_thread not in (None, threading.get_ident()):
            raise AssertionError(
                "Store is used by the thread that opened it, and by no other; another thread takes Store.reader()."
            )

    def check_connection(self) -> None:
        """Makes a new connection where PostgreSQL's broke meanwhile. Raises StoreError where that cannot be."""
        if not is_sqlite(self.url):
            with self.reading():
                pass  # a connection is tried before it is handed out

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for one moment: the batch's, where there is one."""
        self.check_thread()
        with translate_errors(self.url):
            if self._session is not None:
                yield self._session.connection()
            else:
                with self._read_engine.connect() as connection:
                    yield connection

    @contextmanager
    def batch(self) -> Iterator[Session]:
        """Makes one transaction, and one flush to disk, of all changes inside it: all are kept or none.

        A change that is refused (ChangeRefused) wrote nothing, and may be caught inside. After any other error the
        batch keeps nothing, and says so at its end if the error was caught on the way.
        """
        self.check_thread()
        if self._session is not None:
            yield self._session
            return
        self._batch_failed = False
        try:
            with (
                translate_errors(self.url),
                Session(self.engine, autoflush=False, expire_on_commit=False) as session,
                session.begin(),
            ):
                connection = session.connection()  # takes SQLite's lock before the first look
                if self._fence is not None:
                    self._fence(connection)
                self._session = session
                yield session
                self._check_batch()
        except BaseException:
            for forget in self.on_failure:
                forget()
            raise
        finally:
            self._session = None
            for forget in self.on_end:
                forget()

    @property
    def in_batch(self) -> bool:
        """Whether a batch is under way."""
        return self._session is not None

    def _check_batch(self) -> None:
        if self._batch_failed:
            raise StoreError(_BATCH_FAILED)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """The session for one change, which is written before this ends."""
        with self.batch() as session:
            try:
                with translate_errors(self.url):
                    yield session
                    session.flush()
                    session.expunge_all()  # other changes go past the session's rows
            except BaseException as error:
                # A refusal that the database made wrote nothing, but may have ended its transaction.
                self._batch_failed |= not isinstance(error, ChangeRefused) or isinstance(error.__cause__, DBAPIError)
                raise


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Turns the driver's errors into StoreError kinds, each a sentence that names the database and the remedy."""
    try:
        yield
    except DBAPIError as error:
        raise _translate(url, error) from error
    except sqlite3.Error as error:  # from the connect event, where SQLAlchemy does not wrap
        raise _from_sqlite(url, error) from error
    except PendingRollbackError as error:
        raise StoreError(_BATCH_FAILED) from error


def _translate(url: URL, error: DBAPIError) -> StoreError:
    if isinstance(error.orig, sqlite3.Error):
        return _from_sqlite(url, error.orig)
    state = str(getattr(error.orig, "sqlstate", None) or "")
    place = display_url(url)
    said = str(error.orig).strip().partition("\n")[0]
    if state in ("53100", "53200"):
        return StoreFull(f"PostgreSQL at {place} has no space left ({said}); free some there.")
    if state in ("55P03", "40P01", "40001", "57014"):
        return StoreLocked(f"The database {place} is locked by another client ({said}).")
    if state in ("25006", "42501"):
        return StoreReadOnly(f"burstd may not write to {place} ({said}); grant its role the right to.")
    if state.startswith(("XX", "42")):
        return StoreBroken(f"The database {place} is not as burstd left it ({said}); restore it from a backup.")
    return StoreUnavailable(f"The database {place} cannot be used ({said}); see that the server runs and lets us in.")


def _from_sqlite(url: URL, error: sqlite3.Error) -> StoreError:
    place = display_url(url)
    name = getattr(error, "sqlite_errorname", "")
    said = f"{error}, {name}" if name else str(error)
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # SQLite reports a full disk in several ways: as itself, as a failed write, or as a log that cannot be made.
    if primary == sqlite3.SQLITE_FULL or (
        primary in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _disk_is_full(url)
    ):
        return StoreFull(
            f"No space is left for the database {place} ({said}); free some on that file system. "
            "Nothing is started or ended until then."
        )
    match primary:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreLocked(
                f"The database {place} was locked by another process for more than {_BUSY_S:.0f} s ({said}); "
                f"find it with 'fuser {place}'."
            )
        case sqlite3.SQLITE_READONLY:
            return StoreReadOnly(
                f"The database {place} cannot be written ({said}); see that the file, its folder and its file "
                "system are writable for burstd's user."
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_FORMAT:
            return database_damaged(url, said)
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StoreUnavailable(
                f"The database {place} cannot be opened ({said}); see that its folder exists and belongs to "
                "burstd's user."
            )
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"The disk under the database {place} fails ({said}); see the kernel's log, then restart burstd."
            )
    return StoreBroken(f"The database {place} is not as burstd left it ({said}); restore it from a backup.")


def database_damaged(url: URL, detail: str) -> StoreBroken:
    """The error for a damaged file."""
    place = display_url(url)
    return StoreBroken(
        f"The database {place} is damaged or is no SQLite database ({detail}); stop burstd, keep the file aside, and "
        f"restore a backup ('burstctl restore FILE') or recover it with 'sqlite3 {place} .recover'. Machines still run."
    )


def _disk_is_full(url: URL) -> bool:
    try:
        space = os.statvfs(Path(url.database or ".").absolute().parent)
    except OSError:
        return False
    return space.f_bavail * space.f_frsize < 1 << 20 or (space.f_files > 0 and space.f_favail == 0)


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


def has_prefix(column: ColumnElement[Any], prefix: str) -> ColumnElement[bool]:
    """A prefix as a range: uses the index, and needs no escaping."""
    return and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))


def job_or_part(column: ColumnElement[Any], job: str) -> ColumnElement[bool]:
    """Whether it names the job, a task of this array or a component of this het job."""
    return or_(column == job, *(has_prefix(column, f"{job}{mark}") for mark in "_+"))


def chunks(values: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """Databases take a limited number of parameters."""
    return (values[i : i + size] for i in range(0, len(values), size))
