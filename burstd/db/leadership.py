"""Which of several heads may write to a PostgreSQL database, and act: a lock, an epoch, and how sure this head is.

The lock admits one leader and ends with its connection, which proves that the server still knows it. The epoch is a
row, so it survives what the lock does not (a failover of the server): every transaction that writes finds its own
epoch there, or keeps nothing. docs/adr/0026-two-heads.md has the reasons.
"""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import structlog
from sqlalchemy import URL, Connection, Executable, Row, func, inspect, text
from sqlalchemy import select as select_rows
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from burstd.db.database import connect_args, database_url, display_url, make_engine, translate_errors
from burstd.db.errors import NotLeading, StoreBroken, StoreError, StoreUnavailable
from burstd.db.migrate import schema_is_current, upgrade_schema
from burstd.db.tables import HEAD, LEADER

log = structlog.get_logger(__name__)

PING_S = 2.0
RETRY_S = 0.25
"""Between tries to make a broken connection again: the head that waits tries each second."""
SURE_S = 3.0
LOST_S = 8.0
"""Without an answer of the server for so long, this head ends; the server frees its lock no sooner."""
EX_UNAVAILABLE = 69
_OF_BEFORE = 0x6275727374
"""The lock of a burstd without epochs: it takes it alone, and finds it shared by those with them."""
_UNDEFINED_TABLE = "42P01"
_NEVER = float("-inf")
_NOW = func.extract("epoch", func.clock_timestamp())
_LEADS = text("SELECT 1 FROM leader WHERE cluster = :cluster AND epoch = :epoch AND holder = :host")
_FENCE = text(f"{_LEADS.text} FOR SHARE")


@dataclass(frozen=True, slots=True)
class LeaderRow:
    """Which head leads. ``since`` in seconds since 1970 by the database's clock."""

    cluster: str
    holder: str
    epoch: int
    since: float
    settings_digest: str
    version: str


@dataclass(frozen=True, slots=True)
class HeadRow:
    """What a head says of itself. ``age_s``: so many seconds ago, by the database's clock."""

    host: str
    age_s: float
    settings_digest: str
    key_digest: str
    version: str
    alarms: tuple[str, ...]


def end_process(why: str) -> None:
    """Ends at once, whatever hangs; systemd starts burstd again, which then waits for its turn."""
    log.critical("this head no longer leads, and ends", why=why)
    os._exit(EX_UNAVAILABLE)


def monotonic() -> float:
    """Seconds that a suspended machine counts too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """One head's claim to lead one cluster. ``try_lead`` and ``close`` from one thread, the rest from any.

    Methods that ask the database raise StoreError kinds.
    """

    def __init__(
        self, url: URL, cluster: str, host: str, end: Callable[[str], None], ping_s: float, lost_s: float
    ) -> None:
        self.cluster, self.host = cluster, host
        self.epoch = 0
        """0: this head has never led."""
        self._url = url
        self._mine: dict[str, Any] = {"cluster": cluster, "host": host, "epoch": 0}
        self._key = int.from_bytes(hashlib.sha256(f"burstd {cluster}".encode()).digest()[:8], "big", signed=True)
        self._end, self._ping_s, self._lost_s = end, ping_s, lost_s
        server = {
            "tcp_keepalives_idle": 4,
            "tcp_keepalives_interval": 2,
            "tcp_keepalives_count": 2,
            "tcp_user_timeout": round(lost_s * 1000),
            "client_connection_check_interval": 2000,
        }
        # Each question is one round trip: to prepare a statement is another.
        arguments = connect_args(url, "burstd-leadership", server) | {"prepare_threshold": None}
        self._engine = make_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments)
        self._connection: Connection | None = None
        self._turn = threading.Lock()
        self._proved = self._answered = monotonic()
        """When the last question that the server answered was asked, and when it was answered."""
        self._closed = threading.Event()

    @classmethod
    def open(
        cls,
        location: str,
        cluster: str,
        host: str,
        *,
        end: Callable[[str], None] = end_process,
        ping_s: float = PING_S,
        lost_s: float = LOST_S,
    ) -> Self:
        """Asks for nothing yet. ``location`` is a postgresql URL; ``host`` no other head has.

        ``end`` is called, in any thread, as soon as another head leads or none can be proved to.
        """
        return cls(database_url(location), cluster, host, end, ping_s, lost_s)

    def try_lead(self, settings_digest: str, version: str) -> bool:
        """Takes the lock if it is free, brings the schema up to date and begins the next epoch; False: it is not free.

        Waits for the open transaction of the head that led before. Raises StoreNewer, StoreBroken and others.
        """
        with self._turn:
            try:
                with translate_errors(self._url):
                    if not self._lock():
                        return False
                    asked = monotonic()
                    self.epoch = self._take_over(self._connected(), settings_digest, version)
            except BaseException:
                # The lock would outlive a transaction that failed.
                self._disconnect()
                raise
            self._mine["epoch"] = self.epoch
            self._proved, self._answered = asked, monotonic()
        for task in (self._ping, self._watch):
            threading.Thread(target=task, name=f"leadership{task.__name__}", daemon=True).start()
        log.info("this head leads", cluster=self.cluster, epoch=self.epoch)
        return True

    def _lock(self) -> bool:
        [(got,)] = self._ask(select_rows(func.pg_try_advisory_lock(self._key)))
        if got:
            [(alone,)] = self._ask(select_rows(func.pg_try_advisory_lock_shared(_OF_BEFORE)))
            if not alone:
                self._ask(select_rows(func.pg_advisory_unlock(self._key)))
                return False
            # Whoever is stopped loses it.
            self._ask(select_rows(func.set_config("idle_session_timeout", str(round(self._lost_s * 1000)), False)))
        return bool(got)

    def _take_over(self, connection: Connection, settings_digest: str, version: str) -> int:
        connection.execution_options(isolation_level="READ COMMITTED")
        try:
            with connection.begin():
                if connection.scalar(select_rows(func.current_schema())) is None:
                    path = connection.scalar(text("SELECT current_setting('search_path')"))
                    connection.execute(text(f"CREATE SCHEMA {path.partition(',')[0]}"))
                if inspect(connection).has_table(LEADER.name):
                    # Whoever led before is through with its last transaction, and begins no other.
                    connection.execute(select_rows(LEADER).with_for_update())
                if not schema_is_current(connection, display_url(self._url)):
                    upgrade_schema(connection)
                other = connection.scalar(select_rows(LEADER.c.cluster).where(LEADER.c.cluster != self.cluster))
                if other is not None:
                    raise StoreBroken(
                        f"The tables in {display_url(self._url)} are those of the cluster {other}, and this head's is "
                        f"{self.cluster}; give it a schema of its own: '?options=-csearch_path=NAME' after the URL."
                    )
                values = {
                    "holder": self.host, "since": _NOW, "settings_digest": settings_digest, "version": version,
                }  # fmt: skip
                row = insert(LEADER).values(cluster=self.cluster, epoch=1, **values)
                row = row.on_conflict_do_update(
                    index_elements=["cluster"], set_={"epoch": LEADER.c.epoch + 1, **values}
                )
                return int(connection.execute(row.returning(LEADER.c.epoch)).scalar_one())
        finally:
            if not connection.invalidated:
                connection.execution_options(isolation_level="AUTOCOMMIT")

    def sure(self, max_age_s: float = SURE_S) -> None:
        """Asks the server, where its last answer is older. Raises NotLeading where it does not say so in time."""
        if monotonic() - self._proved > max_age_s:
            why = "the server did not answer in time"
            with self._turn:
                if monotonic() - self._proved > max_age_s:
                    try:
                        self._prove()
                    except StoreError as error:
                        why = str(error)
            # An answer that took longer says what was so, not what is.
            if monotonic() - self._proved > 2 * max_age_s:
                raise NotLeading(f"this head cannot be sure that it leads {self.cluster}: {why}")

    def fence(self, connection: Connection) -> None:
        """To begin each transaction that writes: keeps other heads from leading until it has ended.

        Raises NotLeading where another leads.
        """
        if connection.execute(_FENCE, self._mine).first() is None:
            self._lose()

    def current(self) -> LeaderRow | None:
        """Who leads, as is on record, whether or not it still runs; None: nobody has."""
        rows = self._read(select_rows(LEADER).where(LEADER.c.cluster == self.cluster))
        return LeaderRow(**rows[0]._asdict()) if rows else None

    def write_head(self, settings_digest: str, key_digest: str, version: str, alarms: Sequence[str]) -> None:
        """What this head says of itself. Nothing is written while no burstd with leaders has made the tables."""
        values = {
            "seen": _NOW, "settings_digest": settings_digest, "key_digest": key_digest, "version": version,
            "alarms": tuple(alarms),
        }  # fmt: skip
        row = insert(HEAD).values(cluster=self.cluster, host=self.host, **values)
        self._read(row.on_conflict_do_update(index_elements=["cluster", "host"], set_=values).returning(HEAD.c.host))

    def check_schema(self) -> None:
        """Raises StoreNewer where the next takeover would."""
        with translate_errors(self._url), self._engine.connect() as connection:
            schema_is_current(connection, display_url(self._url))

    def heads(self) -> tuple[HeadRow, ...]:
        """What each head has said of itself last, by host."""
        columns = [HEAD.c[name] for name in ("host", "settings_digest", "key_digest", "version", "alarms")]
        rows = select_rows(*columns, (_NOW - HEAD.c.seen).label("age_s")).where(HEAD.c.cluster == self.cluster)
        return tuple(HeadRow(**row._asdict()) for row in self._read(rows.order_by(HEAD.c.host)))

    def close(self) -> None:
        """Gives the lock back. Harmless when repeated."""
        self._closed.set()
        self._proved = _NEVER
        with self._turn:
            if self._connection is not None:
                # The server frees it a moment after the connection's end; by then the next head may have asked in vain.
                with suppress(DBAPIError):
                    self._connection.execute(select_rows(func.pg_advisory_unlock_all()))
            self._disconnect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, statement: Executable) -> Sequence[Row[Any]]:
        """One statement, by a connection of its own: what the server takes its time for keeps no proof waiting."""
        try:
            with translate_errors(self._url), self._engine.connect() as connection:
                return connection.execute(statement).all()
        except StoreError as error:
            if getattr(getattr(error.__cause__, "orig", None), "sqlstate", "") == _UNDEFINED_TABLE:
                return []
            raise

    def _ask(self, statement: Executable, values: Mapping[str, object] = MappingProxyType({})) -> Sequence[Row[Any]]:
        """One statement, which is a transaction."""
        connection = self._connected()
        rows = connection.execute(statement, values).all()
        connection.commit()
        return rows

    def _connected(self) -> Connection:
        if self._closed.is_set():
            raise NotLeading(f"this head leads {self.cluster} no more")
        if self._connection is not None:
            return self._connection
        try:
            made = self._engine.connect()
        except DBAPIError as error:
            if "startup parameter" in str(error.orig):
                raise StoreUnavailable(_pooled(self._url)) from error
            raise
        driver: Any = made.connection.driver_connection
        self._connection = made
        if self._ask(text("SELECT pg_backend_pid()")) != [(driver.info.backend_pid,)]:
            raise StoreUnavailable(_pooled(self._url))
        return made

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def _prove(self) -> None:
        """Asks whether this head leads, by the connection that has the lock, or takes it again. Raises StoreError."""
        asked = monotonic()
        try:
            with translate_errors(self._url):
                had_lock = self._connection is not None
                if not self._ask(_LEADS, self._mine):
                    self._lose()
                # The server may know the broken connection a while longer, with its lock. As the epoch is still this
                # head's, nobody has led meanwhile.
                if not had_lock and not self._lock():
                    raise StoreUnavailable("the server has not freed the lock of the connection that broke")
        except StoreError:
            self._disconnect()
            raise
        self._proved, self._answered = asked, monotonic()

    def _lose(self) -> None:
        """Raises NotLeading, where the process outlives it."""
        why = f"another head leads {self.cluster} since epoch {self.epoch} of {self.host}"
        self._closed.set()
        self._proved = _NEVER
        self._end(why)
        raise NotLeading(why)

    def _ping(self) -> None:
        """Until it is closed. What ends the connection wakes it at once: the lock may be another's by then."""
        failed = False
        while not self._closed.is_set():
            with self._turn:
                if self._closed.is_set():
                    return
                try:
                    self._prove()
                    failed = False
                except StoreError as error:
                    self._proved = _NEVER
                    if not failed:
                        log.warning("this head is not sure that it leads", error=str(error))
                    failed = True
                watched, wait_s = select.poll(), RETRY_S
                if self._connection is not None:
                    # Since it was asked: the server ends a connection that is idle for longer than a slow answer takes.
                    wait_s = max(0.0, self._proved + self._ping_s - monotonic())
                    driver: Any = self._connection.connection.driver_connection
                    watched.register(driver.fileno(), select.POLLIN)
            watched.poll(wait_s * 1000)

    def _watch(self) -> None:
        """Ends the process where a question hangs for too long."""
        while not self._closed.wait(self._lost_s / 8):
            silent = monotonic() - self._answered
            if silent > self._lost_s:
                self._end(f"the database {display_url(self._url)} has not answered for {silent:.0f} s")
                return


def _pooled(url: URL) -> str:
    return (
        f"The database {display_url(url)} is reached through a pooler, where no connection keeps a lock; name the "
        "server itself in daemon.database."
    )
