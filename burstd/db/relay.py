"""What a standby is told or asked by Slurm's programs, passed on to the leader through PostgreSQL."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog
from sqlalchemy import Connection, delete, func, insert, select, text, update
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from burstd.db.database import connect_args, database_url, display_url, make_engine, translate_errors
from burstd.db.errors import StoreError, StoreUnavailable
from burstd.db.tables import RELAYED_CALL

log = structlog.get_logger(__name__)

_LOOK_S = 5.0
"""So often the leader looks for calls of which it was not notified."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 0.8
_FORGOTTEN_S = 300.0
_CONNECTIONS = 3
"""For hundreds of calls at once: PostgreSQL has a hundred for all."""
_CONNECTION_WITHIN_S = 10.0
_NOW = func.extract("epoch", func.clock_timestamp())
_LISTEN = text("LISTEN burstd_relay")


class _Relay:
    def __init__(self, url: str, cluster: str) -> None:
        self._url = database_url(url)
        self._cluster = cluster
        self._engine = make_engine(
            self._url, isolation_level="AUTOCOMMIT", connect_args=connect_args(self._url, "burstd-relay", {}),
            pool_size=_CONNECTIONS, max_overflow=0, pool_timeout=_CONNECTION_WITHIN_S, pool_pre_ping=True,
        )  # fmt: skip
        self._ending = threading.Event()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """For a moment: others wait for it."""
        try:
            with translate_errors(self._url), self._engine.connect() as connection:
                yield connection
        except PoolTimeoutError as error:
            raise StoreUnavailable(f"The database {display_url(self._url)} does not answer.") from error

    def _notify(self, connection: Connection) -> None:
        connection.execute(select(func.pg_notify("burstd_relay", self._cluster)))


class RelayToLeader(_Relay):
    """A standby's side; ``wake`` and ``call`` from any thread."""

    def __init__(self, url: str, cluster: str) -> None:
        super().__init__(url, cluster)
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._wake_leader, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends its thread, and the wait of all calls."""
        self._ending.set()
        self._wanted.set()
        self._engine.dispose()

    def wake(self) -> None:
        """Has the leader look at Slurm. Where none leads nothing is lost: who leads next begins with a look."""
        self._wanted.set()

    def call(self, program: str, line: bytes, wait_s: float) -> bytes | None:
        """The leader's answer to a line of one of Slurm's programs; None: none came in time. Raises StoreError."""
        end = time.monotonic() + wait_s
        row = {
            "id": uuid.uuid4().hex, "cluster": self._cluster, "program": program, "line": line.decode("ascii"),
            "asked": _NOW, "state": "asked", "answer": "",
        }  # fmt: skip
        with self._connected() as connection:
            connection.execute(insert(RELAYED_CALL).values(row))
            self._notify(connection)
        own, pause = RELAYED_CALL.c.id == row["id"], _FIRST_PAUSE_S
        try:
            while not self._ending.wait(pause) and time.monotonic() < end:
                with self._connected() as connection:
                    answer = connection.execute(select(RELAYED_CALL.c.answer).where(own)).scalar()
                if answer:
                    return str(answer).encode("ascii")
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            return None
        finally:
            with self._connected() as connection:
                connection.execute(delete(RELAYED_CALL).where(own))

    def _wake_leader(self) -> None:
        while self._wanted.wait() and not self._ending.is_set():
            self._wanted.clear()
            try:
                with self._connected() as connection:
                    self._notify(connection)
            except StoreError as error:
                log.warning("the leader is not told of Slurm's call, and finds it by itself", error=str(error))


class RelayedCalls(_Relay):
    """The leader's side: wakes it, and has each call answered in a thread of its own."""

    def __init__(
        self, url: str, cluster: str, wake: Callable[[], None], answer: Mapping[str, Callable[[bytes], bytes]]
    ) -> None:
        """``answer``: by program, from the line to the answer; raises OSError where there is none."""
        super().__init__(url, cluster)
        self._wake = wake
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)

    def start(self) -> None:
        """Starts its thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it within seconds."""
        self._ending.set()

    def _serve(self) -> None:
        failed = False
        while not self._ending.is_set():
            try:
                with self._connected() as connection:
                    connection.execute(_LISTEN)
                    failed = False
                    self._take(connection)
                    while not self._ending.is_set():
                        self._listen(connection)
            except StoreError as error:
                if not failed:
                    log.warning("what Slurm asks the standby is not heard here for now", error=str(error))
                failed = True
                self._ending.wait(1.0)
        self._engine.dispose()

    def _listen(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        dbapi: Any = connection.dialect.loaded_dbapi
        try:
            told = [one.payload for one in driver.notifies(timeout=_LOOK_S, stop_after=1)]
        except dbapi.Error as error:  # not of SQLAlchemy's making
            connection.invalidate()
            raise StoreUnavailable(f"The connection to {display_url(self._url)} broke ({error}).") from error
        if self._cluster in told:
            self._wake()
        self._take(connection)

    def _take(self, connection: Connection) -> None:
        ours = RELAYED_CALL.c.cluster == self._cluster
        connection.execute(delete(RELAYED_CALL).where(ours, RELAYED_CALL.c.asked < _NOW - _FORGOTTEN_S))
        taken = update(RELAYED_CALL).where(ours, RELAYED_CALL.c.state == "asked").values(state="taken")
        for row in connection.execute(taken.returning(*RELAYED_CALL.c)).mappings().all():
            threading.Thread(target=self._answer_call, args=(dict(row),), name="relayed call", daemon=True).start()

    def _answer_call(self, row: dict[str, Any]) -> None:
        try:
            answer = self._answer[row["program"]](row["line"].encode("ascii"))
            with self._connected() as connection:
                answered = update(RELAYED_CALL).where(RELAYED_CALL.c.id == row["id"])
                connection.execute(answered.values(answer=answer.decode("ascii")))
        except (KeyError, ValueError, OSError, StoreError) as error:
            log.warning("a relayed call has no answer; it comes again", program=row["program"], error=str(error))
