"""Heads beside one PostgreSQL: one leads at any time, and what it was stopped in comes to nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection

import psycopg
import pytest
from sqlalchemy import create_engine, text

from burstd.db import (
    Leadership,
    NotLeading,
    Store,
    StoreBroken,
    StoreNewer,
    StoreReader,
    StoreReadOnly,
    StoreUnavailable,
)
from burstd.db.database import database_url

from .acting import act_without_end
from .samples import ManualClock, planned

pytestmark = pytest.mark.slow

LOST_S = 2.0
"""Instead of 8, so that the tests take no minutes."""
PATIENCE_S = 30.0


@pytest.fixture
def place(postgresql_server: str) -> str:
    execute(postgresql_server, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgresql_server


def execute(place: str, *statements: str) -> None:
    engine = create_engine(database_url(place), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class Head:
    """A head whose process would have ended by what is in ``ends``."""

    def __init__(self, place: str, host: str, *, cluster: str = "site", lost_s: float = 60.0) -> None:
        self.ends: list[str] = []
        self.ended = threading.Event()
        self.leadership = Leadership.open(place, cluster, host, end=self._end, ping_s=lost_s / 4, lost_s=lost_s)

    def _end(self, why: str) -> None:
        self.ends.append(why)
        self.ended.set()

    def __enter__(self) -> Leadership:
        return self.leadership

    def __exit__(self, *_: object) -> None:
        self.leadership.close()


def until_it_leads(leadership: Leadership) -> None:
    until = time.monotonic() + PATIENCE_S
    while not leadership.try_lead("", "2"):
        assert time.monotonic() < until, "the other head still leads"
        threading.Event().wait(0.05)


def test_one_head_leads_and_the_next_begins_another_epoch(place: str) -> None:
    with Head(place, "head1") as one, Head(place, "head2") as two:
        assert two.current() is None
        two.write_head("s2", "k", "2", [])
        assert two.heads() == ()
        assert one.try_lead("s1", "1")
        assert not two.try_lead("s2", "2")
        with pytest.raises(AssertionError, match="leads"):
            Store.open(place, ManualClock(), two)
        leader = two.current()
        assert leader is not None
        assert (leader.holder, leader.epoch, leader.settings_digest, leader.version) == ("head1", 1, "s1", "1")
        one.write_head("s1", "k", "1", [])
        two.write_head("s2", "k", "2", ["its credentials are refused"])
        assert [(head.host, head.settings_digest, head.alarms) for head in one.heads()] == [
            ("head1", "s1", ()), ("head2", "s2", ("its credentials are refused",)),
        ]  # fmt: skip
        assert all(0 <= head.age_s < PATIENCE_S for head in one.heads())
        one.close()
        with pytest.raises(NotLeading):
            one.sure(0.5)
        assert two.try_lead("s2", "2")
        two.sure(0.5)
        assert (two.epoch, two.current().holder) == (2, "head2")  # type: ignore[union-attr]


def test_a_head_that_waits_finds_the_schema_of_a_newer_burstd(place: str) -> None:
    with Head(place, "head1") as one, Head(place, "head2") as two:
        two.check_schema()
        assert one.try_lead("s1", "1")
        two.check_schema()
        execute(place, "UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(StoreNewer, match="install that version again"):
            two.check_schema()
        assert len(two.heads()) == 0
        one.close()
        with pytest.raises(StoreNewer):
            two.try_lead("s2", "2")


def test_of_two_that_start_at_once_one_leads(place: str) -> None:
    for number in range(int(os.environ.get("BURSTD_STARTS", "5"))):
        barrier = threading.Barrier(2)

        def start(head: Leadership, barrier: threading.Barrier = barrier) -> str:
            barrier.wait()
            return head.host if head.try_lead("", "1") else ""

        with Head(place, "head1") as one, Head(place, "head2") as two, ThreadPoolExecutor(2) as pool:
            led = [host for host in pool.map(start, (one, two)) if host]
            current = one.current()
        assert current is not None
        assert ([current.holder], current.epoch) == (led, number + 1)


def test_the_next_head_waits_for_what_is_under_way_and_what_comes_later_is_refused(place: str) -> None:
    former = Head(place, "head1")
    with former as one, Head(place, "head2") as two, one._turn:  # its threads hang
        one._turn.release()
        assert one.try_lead("", "1")
        one._turn.acquire()
        with Store.open(place, ManualClock(), one) as store:
            led = threading.Thread(target=until_it_leads, args=(two,))
            with store.batch():
                store.make_claims([planned()])
                execute(place, f"{CUT} AND application_name = 'burstd-leadership'")
                led.start()
                wait_until(lambda: has_session(place, "wait_event_type = 'Lock'"))
            led.join()
            assert store.claims() == (planned(),)
            with pytest.raises(NotLeading, match="another head leads"):
                store.make_claims([planned("c2", "n2")])
            assert former.ends
            assert store.claims() == (planned(),)


def wait_until(ready: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < until, "it never comes"
        threading.Event().wait(0.02)


def has_session(place: str, which: str) -> bool:
    engine = create_engine(database_url(place))
    with engine.connect() as connection:
        found = connection.execute(text(f"SELECT 1 FROM pg_stat_activity WHERE {which}")).first()  # noqa: S608
    engine.dispose()
    return found is not None


def test_a_connection_that_is_ended_is_made_again_with_its_lock(place: str) -> None:
    """As by a restart of the server (57P01): nobody has led meanwhile, so that this head goes on."""
    head = Head(place, "head1")
    with head as one, Store.open(place, ManualClock(), leads(one)) as store, Head(place, "head2") as two:
        store.set_metadata("cluster", "site")
        execute(place, CUT)
        wait_until(lambda: has_session(place, "application_name = 'burstd-leadership'"))
        assert not two.try_lead("", "2")
        assert store.metadata("cluster") == "site"
        with pytest.raises(StoreUnavailable, match="see that the server runs"), store.batch():  # noqa: PT012
            store.set_metadata("cluster", "other")
            execute(place, CUT)
            store.set_metadata("cluster", "third")
        store.check_lock()
        assert store.metadata("cluster") == "site"
        store.set_metadata("cluster", "fourth")
        assert not head.ends
        assert one.epoch == 1


def leads(leadership: Leadership) -> Leadership:
    assert leadership.try_lead("", "1")
    return leadership


def test_a_server_that_is_slow_is_no_proof_and_one_that_hangs_ends_the_head(place: str) -> None:
    slow, hung = Head(place, "head1"), Head(place, "head1", lost_s=LOST_S)
    for head in (slow, hung):
        with head as one, Store.open(place, ManualClock(), leads(one)) as store:
            with psycopg.connect(place) as other:
                other.execute("LOCK TABLE leader IN ACCESS EXCLUSIVE MODE")
                if head is hung:
                    assert head.ended.wait(PATIENCE_S)
                    assert "has not answered for" in head.ends[0]
                    continue
                with ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(one.sure, 0.001)
                    wait_until(lambda: has_session(place, "wait_event_type = 'Lock'"))
                    other.rollback()
                    with pytest.raises(NotLeading, match="did not answer in time"):
                        asked.result()
            one.sure(PATIENCE_S)
            store.make_claims([planned()])
            assert not head.ends


def test_what_is_said_of_the_heads_keeps_no_proof_waiting(place: str) -> None:
    """A write may wait for the server's disk, or for a lock, while the server answers all the same."""
    head = Head(place, "head1", lost_s=LOST_S)
    with head as one, ThreadPoolExecutor(1) as pool:
        assert one.try_lead("", "1")
        with psycopg.connect(place) as other:
            other.execute("LOCK TABLE head IN ACCESS EXCLUSIVE MODE")
            said = pool.submit(one.write_head, "", "", "1", ())
            wait_until(lambda: has_session(place, "wait_event_type = 'Lock'"))
            assert not head.ended.wait(2 * LOST_S), head.ends
            one.sure(LOST_S)
        said.result()


def test_a_server_that_takes_no_writes_for_a_while_ends_nobody(place: str) -> None:
    head = Head(place, "head1")
    with head as one, Store.open(place, ManualClock(), leads(one)) as store:
        for state in ("on", "off"):
            execute(place, f"ALTER SYSTEM SET default_transaction_read_only = {state}", "SELECT pg_reload_conf()")
            wait_until(partial(takes_writes, store, wanted=state == "off"))
            one.sure(0.5)
        assert not head.ends


def takes_writes(store: Store, *, wanted: bool) -> bool:
    """Whether it does, or does not, as wanted."""
    try:
        store.log_event("daemon", new="did")
    except StoreReadOnly:
        return not wanted
    return wanted


def test_a_burstd_without_epochs_and_one_with_them_keep_each_other_away(place: str) -> None:
    libpq = place.replace("postgresql+psycopg", "postgresql")
    alone = f"SELECT pg_try_advisory_lock({0x6275727374})"
    with psycopg.connect(libpq, autocommit=True) as before, Head(place, "head2") as two:
        assert before.execute(alone).fetchone() == (True,)
        assert not two.try_lead("", "1")
        before.close()
        until_it_leads(two)
        with psycopg.connect(libpq, autocommit=True) as again:
            assert again.execute(alone).fetchone() == (False,)


def test_clusters_share_a_database_by_schemas_and_refuse_to_share_tables(place: str) -> None:
    execute(place, "DROP SCHEMA IF EXISTS other CASCADE")
    apart = f"{place}&options=-csearch_path%3Dother"
    with (
        Head(place, "head1", cluster="site") as one,
        Head(apart, "head1", cluster="other") as two,
        Head(place, "head3", cluster="other") as three,
        Store.open(place, ManualClock(), leads(one)) as here,
        Store.open(apart, ManualClock(), leads(two)) as there,
    ):
        here.make_claims([planned()])
        there.make_claims([planned("c2", "n2")])
        with here.reader() as reader, there.reader() as other:
            assert reader.claims() == (planned(),)
            assert other.claims() == (planned("c2", "n2"),)
        two.close()
        with pytest.raises(StoreBroken, match=r"those of the cluster site.*options=-csearch_path=NAME"):
            three.try_lead("", "1")


def test_a_pooler_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Head(place, "head1") as one:
        monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)
        with pytest.raises(StoreUnavailable, match=r"pooler.*name the server itself"):
            one.try_lead("", "1")


def stopped_head(place: str, say: Connection) -> None:
    """Ends by its own decision with 69."""
    leadership = leads(Leadership.open(place, "site", "head1", ping_s=LOST_S / 4, lost_s=LOST_S))
    act_without_end(leadership, place, say.send, LOST_S / 4)


def test_what_was_stopped_for_long_ends_before_it_acts_again(place: str) -> None:
    fork = multiprocessing.get_context("fork")
    mine, its = fork.Pipe(duplex=False)
    child = fork.Process(target=stopped_head, args=(place, its))
    child.start()
    its.close()
    assert child.pid is not None
    for _ in range(4):
        assert mine.poll(PATIENCE_S)
        mine.recv()
    os.kill(child.pid, signal.SIGSTOP)
    while mine.poll(0.2):
        mine.recv()
    with Head(place, "head2") as two:
        until_it_leads(two)
        os.kill(child.pid, signal.SIGCONT)
        child.join(PATIENCE_S)
        said = []
        while mine.poll():
            try:
                said.append(mine.recv())
            except EOFError:
                break
        # What it was stopped in the middle of.
        assert said in ([], ["asked"], ["wrote"])
        assert child.exitcode == 69
        with StoreReader.open(place, ManualClock()) as reader:
            assert two.epoch == 2
            assert reader.events(limit=1)
