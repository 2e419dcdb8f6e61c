"""What a standby passes on to the leader: few connections for many calls, and rows that nobody understands.

Each test has a cluster of its own: a leader that is stopped listens for some seconds more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from burstd.db import Leadership
from burstd.db.relay import RelayedCalls, RelayToLeader

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0
CALLS = 40


@pytest.fixture
def place(postgresql_server: str) -> Iterator[str]:
    with psycopg.connect(postgresql_server, autocommit=True) as database:
        database.execute("DROP SCHEMA public CASCADE")
        database.execute("CREATE SCHEMA public")
    with Leadership.open(postgresql_server, "site", "head1") as leadership:
        assert leadership.try_lead("", "1")
        yield postgresql_server


def test_many_calls_that_wait_leave_connections_for_others(place: str) -> None:
    all_wait, together = threading.Event(), threading.Barrier(CALLS + 1)

    def answer(line: bytes) -> bytes:
        together.wait(PATIENCE_S)
        assert all_wait.wait(PATIENCE_S)
        return line.upper()

    leader, standby = RelayedCalls(place, "many", lambda: None, {"stage": answer}), RelayToLeader(place, "many")
    leader.start()
    with ThreadPoolExecutor(CALLS) as pool, psycopg.connect(place) as database:
        calls = [pool.submit(standby.call, "stage", b"%d is in" % n, PATIENCE_S) for n in range(CALLS)]
        together.wait(PATIENCE_S)
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'burstd-relay'"
        found = database.execute(count).fetchone()
        all_wait.set()
        assert [call.result() for call in calls] == [b"%d IS IN" % n for n in range(CALLS)]
        assert found is not None
        assert found[0] < 10
        assert database.execute("SELECT count(*) FROM relayed_call").fetchone() == (0,)
    standby.close()
    leader.stop()


def test_a_leader_whose_connection_is_ended_hears_the_next_call(place: str) -> None:
    """As by a restart of the server, through which it leads on."""
    leader, standby = RelayedCalls(place, "cut", lambda: None, {"stage": bytes.upper}), RelayToLeader(place, "cut")
    leader.start()
    assert standby.call("stage", b"one", PATIENCE_S) == b"ONE"
    with psycopg.connect(place, autocommit=True) as database:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'burstd-relay'"
        )
    assert standby.call("stage", b"two", PATIENCE_S) == b"TWO"
    standby.close()
    leader.stop()


def test_rows_that_nobody_understands_keep_no_call_from_its_answer(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    with psycopg.connect(place, autocommit=True) as database:
        for number, (cluster, program, line, age) in enumerate([
            ("site", "nobody", "x", 0), ("site", "stage", "\u00e4", 0), ("site", "stage", "y" * 10**7, 0),
            ("site", "stage", "old", 3600), ("other", "stage", "x", 0),
        ]):  # fmt: skip
            database.execute(
                "INSERT INTO relayed_call (id, cluster, program, line, asked, state, answer)"
                " VALUES (%s, %s, %s, %s, extract(epoch FROM clock_timestamp()) - %s, 'asked', '')",
                (str(number), cluster, program, line, age),
            )
        lines: list[bytes] = []

        def answer(line: bytes) -> bytes:
            lines.append(line[:3])
            return b"no"

        leader, standby = RelayedCalls(place, "site", lambda: None, {"stage": answer}), RelayToLeader(place, "site")
        leader.start()
        assert standby.call("stage", b"good", PATIENCE_S) == b"no"
        standby.close()
        leader.stop()
        assert sorted(lines) == [b"goo", b"yyy"]
        left = database.execute("SELECT id FROM relayed_call ORDER BY id").fetchall()
        assert left == [("0",), ("1",), ("2",), ("4",)]
    assert not broken
