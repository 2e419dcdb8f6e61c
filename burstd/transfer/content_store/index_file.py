"""The index's SQLite file: opened, set aside where it cannot be used, read and written by all threads in turn."""

from __future__ import annotations

import logging
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from burstd.domain.plugins.stager import StoreBusy
from burstd.domain.staging import ObjectRange

SCHEMA_VERSION = 1
_SCHEMA = """
create table objects (
  id integer primary key, store text not null, prefix text not null, key blob not null, size integer not null,
  used real not null, there integer not null, unique (store, prefix, key));
create table contents (
  store text not null, prefix text not null, content blob not null, pieces blob not null,
  primary key (store, prefix, content)) without rowid;
create table holds (object integer not null, content blob not null, primary key (object, content)) without rowid;
create table seen (
  uid integer not null, dev integer not null, ino integer not null, size integer not null, mtime integer not null,
  ctime integer not null, content blob not null, used real not null, primary key (uid, dev, ino)) without rowid;
create table trees (
  id integer primary key, store text not null, prefix text not null, digest text not null, manifest text not null,
  entries integer not null, size integer not null, single integer not null, uid integer not null, account text not null,
  source text not null, bytes integer not null, made real not null, used real not null,
  unique (store, prefix, digest, uid));
create table tree_objects (tree integer not null, object integer not null, primary key (tree, object)) without rowid;
create index objects_of_tree on tree_objects (object);
"""

_PIECE = struct.Struct("<32sQQ")
_NO_KEY = bytes(32)
_NOT_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_INTERRUPT,
    }
)
"""Errors of a file that is not damaged: it cannot be opened, read or written now."""

log = logging.getLogger(__name__)


def pack_pieces(pieces: Iterable[ObjectRange]) -> bytes:
    """Pieces as the index keeps them."""
    return b"".join(_PIECE.pack(bytes.fromhex(p.key) if p.key else _NO_KEY, p.offset, p.length) for p in pieces)


def unpack_pieces(data: bytes) -> tuple[ObjectRange, ...]:
    """The reverse of ``pack_pieces``."""
    return tuple(
        ObjectRange("" if key == _NO_KEY else key.hex(), offset, length)
        for key, offset, length in _PIECE.iter_unpack(data)
    )


class IndexFile:
    """One connection and its lock. ``path``: None keeps it in memory.

    Calls raise StoreBusy where the disk is full or the like: a transfer goes on when that is over.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._db = self._open()
        self._damaged = False
        """It was damaged, and could not be begun anew yet."""

    def close(self) -> None:
        """Closes the file."""
        with self.lock:
            self._db.close()

    def query(self, sql: str, values: Sequence[object]) -> list[Any]:
        """All rows of a query."""
        with self.lock:
            try:
                return self._db.execute(sql, tuple(values)).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._recover_from(error) from None

    def query_concurrently(self, sql: str, values: Sequence[object]) -> list[Any]:
        """The same, while others read and write: for what takes long."""
        if self.path is None:
            return self.query(sql, values)
        try:
            with closing(sqlite3.connect(self.path, timeout=10, isolation_level=None)) as db:
                return db.execute(sql, tuple(values)).fetchall()
        except sqlite3.DatabaseError as error:
            # Whoever has the lock sets a damaged file aside.
            raise StoreBusy(f"the index {self.path} cannot be read: {error}") from None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: whole, or not at all where the block raises."""
        with self.lock:
            try:
                self._db.execute("begin immediate")
                try:
                    yield self._db
                    self._db.execute("commit")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("rollback")
                    raise
            except sqlite3.DatabaseError as error:
                raise self._recover_from(error) from None

    def _recover_from(self, error: sqlite3.DatabaseError) -> BaseException:
        """What to raise; a damaged file is set aside, because nothing in it can be trusted."""
        if isinstance(error, sqlite3.OperationalError):
            return StoreBusy(f"the index {self.path} cannot be used: {error}; free space on its file system")
        if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError) and not self._damaged:
            return error
        try:
            if not self._damaged:
                self._damaged = True
                self._db.close()
                self._set_aside(f"is damaged: {error}")
            self._db = self._open()
            self._damaged = False
        except (sqlite3.Error, OSError) as worse:
            return StoreBusy(f"the index {self.path} is damaged and cannot be begun anew: {worse}; free space for it")
        return StoreBusy(f"the index {self.path} was damaged and is begun anew; what was under way begins again")

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return self._create_file(":memory:")
        fault: str | None = ""
        db = None
        try:
            db = _connect(str(self.path))
            fault = _file_fault(db)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # Python itself raises both for a text that is no UTF-8, without SQLite's code.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_DAMAGE:
                raise
            fault = f"cannot be read: {error}"
        if db is not None and fault is None:
            return db
        if db is not None:
            db.close()
        if fault:
            self._set_aside(fault)
        return self._create_file(str(self.path))

    def _set_aside(self, fault: str) -> None:
        if self.path is None:
            return
        aside = self.path.with_name(self.path.name + ".aside")
        log.warning("the index %s %s; it is set aside as %s and begun anew", self.path, fault, aside.name)
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.replace(aside)

    @staticmethod
    def _create_file(name: str) -> sqlite3.Connection:
        db = _connect(name)
        db.executescript(f"begin; {_SCHEMA} pragma user_version = {SCHEMA_VERSION}; commit;")
        return db


def _file_fault(db: sqlite3.Connection) -> str | None:
    """What is wrong with the file; None: nothing; empty: it is new."""
    (version,) = db.execute("pragma user_version").fetchone()
    if version == SCHEMA_VERSION:
        whole = db.execute("pragma quick_check(1)").fetchone() == ("ok",) and _schema(db) == _expected_schema()
        return None if whole else "is damaged"
    return "is of another version" if version or db.execute("select 1 from sqlite_master").fetchall() else ""


def _schema(db: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(db.execute("select name, sql from sqlite_master where sql is not null").fetchall())


def _expected_schema() -> set[tuple[str, str]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _schema(db)


def _connect(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(name, timeout=10, isolation_level=None, check_same_thread=False)
    db.execute("pragma journal_mode = wal")
    # What a power cut takes is asked of the store again.
    db.execute("pragma synchronous = normal")
    db.execute("pragma cache_size = -32000")
    return db


def clear_store(db: sqlite3.Connection, store: str, pinned: Sequence[tuple[str, str, bytes]]) -> None:
    """Deletes every row of a store. Objects that are ``held`` (store, prefix, key) stay, and are not known as there."""
    db.execute("delete from tree_objects where tree in (select id from trees where store = ?)", (store,))
    db.execute("delete from trees where store = ?", (store,))
    db.execute("delete from contents where store = ?", (store,))
    db.execute("delete from holds where object in (select id from objects where store = ?)", (store,))
    db.executemany("update objects set there = 0 where store = ? and prefix = ? and key = ?", pinned)
    gone = "delete from objects where store = ?"
    db.execute(f"{gone} and there = 1" if pinned else gone, (store,))


def forget_objects(db: sqlite3.Connection, names: Iterable[tuple[str, str, bytes]]) -> None:
    """Deletes objects (store, prefix, key), and the contents and trees that cannot be had without them."""
    for store, prefix, key in names:
        found = db.execute(
            "select id from objects where store = ? and prefix = ? and key = ?", (store, prefix, key)
        ).fetchone()
        if found is None:
            continue
        db.execute(
            "delete from contents where store = ? and prefix = ? and content in"
            " (select content from holds where object = ?)",
            (store, prefix, *found),
        )
        db.execute("delete from holds where object = ?", found)
        trees = db.execute("select tree from tree_objects where object = ?", found).fetchall()
        db.executemany("delete from tree_objects where tree = ?", trees)
        db.executemany("delete from trees where id = ?", trees)
        db.execute("delete from objects where id = ?", found)


def signed_inode(number: int) -> int:
    """An inode number as SQLite keeps it, in 64 bits with a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number
