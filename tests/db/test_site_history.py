"""Samples of the site: merged as they age, exact where they are sums, small, and right after gaps and crashes."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy import LargeBinary, event, func, select, text, type_coerce, update

from burstd.db import Store
from burstd.db.repositories import site_history
from burstd.db.repositories.site_history import MAX_POINTS
from burstd.db.tables import SITE_HISTORY, _columns_of, decode_figures
from burstd.domain.site_history import (
    DAY_S,
    RESOLUTIONS,
    STARTED,
    WAIT_MAX_S,
    WAIT_S,
    Figures,
    Part,
    Sample,
    merge_samples,
    step_start,
    wait_measure,
    wait_percentile,
)

from .opening import open_store
from .samples import START, ManualClock
from .site_figures import busy_site, walk

BEGIN = step_start(START, DAY_S) + DAY_S
"""A midnight."""


def site(pending: float, started: int = 0, spent: int = 0) -> Mapping[Part, Figures]:
    figures: dict[str, float] = {"jobs_pending": pending, "spent.EUR": spent}
    if started:
        figures |= {STARTED: started, WAIT_S: 10 * started, WAIT_MAX_S: started}
    return {Part.SITE: {"site": figures}}


def write(store: Store, clock: ManualClock, minutes: range) -> None:
    """In minute n, n jobs wait, one has started, and n millionths are spent; thinned as the daemon does."""
    with store.batch():
        for minute in minutes:
            clock.time = BEGIN + 60.0 * minute + 7.5
            store.record_site_figures(clock.time, site(minute, 1, minute), thin=minute % 10 == 0)


def read(store: Store, since: float, until: float) -> tuple[int, list[Sample]]:
    _, step_s, found = store.site_history([Part.SITE], since, until)
    return step_s, found[Part.SITE][0]


def total(samples: list[Sample], measure: str) -> object:
    return sum(sample.figures["site"][measure] for sample in samples)  # type: ignore[misc]


def test_each_kind_of_figure_is_merged_in_its_way() -> None:
    first = Sample(0, 1, {"site": {"jobs_pending": 4, STARTED: 2, WAIT_S: 9, WAIT_MAX_S: 8, "spent.EUR": 5}})
    second = Sample(60, 1, {"site": {"jobs_pending": 1, STARTED: 1, WAIT_S: 3, WAIT_MAX_S: 3, "spent.EUR": 7}})
    third = Sample(120, 1, {"pool/gpu": {"wanted": 3}})
    whole = merge_samples(0, [first, second, third])
    assert whole == Sample(
        0,
        3,
        {
            "site": {"jobs_pending": [5, 4], STARTED: 3, WAIT_S: 12, WAIT_MAX_S: 8, "spent.EUR": 7},
            "pool/gpu": {"wanted": 3},
        },
    )
    # The order of merging makes no difference.
    assert merge_samples(0, [merge_samples(0, [first, second]), third]) == whole
    assert merge_samples(0, [first, merge_samples(60, [second, third])]) == whole


def test_what_is_merged_keeps_its_sums_mean_and_maximum(store: Store, clock: ManualClock) -> None:
    minutes = range(0, 4 * 24 * 60, 20)
    write(store, clock, minutes)
    now = clock.now()
    for since in (BEGIN, now - 2.5 * DAY_S, now - 1.9 * DAY_S, now - 3600):
        step_s, samples = read(store, since, now)
        first = step_start(since, RESOLUTIONS[1].step_s if since < now - 2 * DAY_S else 60)
        first = samples[0].time if samples[0].time >= since else first
        wanted = [m for m in minutes if BEGIN + 60 * m >= first]
        assert total(samples, STARTED) == len(wanted)
        assert total(samples, WAIT_S) == 10 * len(wanted)
        gauges = [sample.figures["site"].get("jobs_pending", 0) for sample in samples]
        pairs = [gauge if isinstance(gauge, list) else [gauge, gauge] for gauge in gauges]
        assert sum(pair[0] for pair in pairs) == sum(wanted)  # type: ignore[misc]
        assert max(pair[1] for pair in pairs) == minutes[-1]  # type: ignore[type-var]
        assert samples[-1].figures["site"]["spent.EUR"] == minutes[-1]
        assert len(samples) <= MAX_POINTS + 1
        assert all(sample.time % step_s == 0 for sample in samples)


def test_short_samples_go_and_long_ones_stay(store: Store, clock: ManualClock) -> None:
    write(store, clock, range(0, 40 * 24 * 60, 240))
    kept = {}
    with store._database.reading() as connection:
        for step_s, first in connection.execute(
            select(SITE_HISTORY.c.step_s, func.min(SITE_HISTORY.c.time)).group_by(SITE_HISTORY.c.step_s)
        ):
            kept[step_s] = round((clock.now() - first) / DAY_S)
    assert kept == {60: 2, 600: 31, 3600: 40, DAY_S: 40}
    step_s, samples = read(store, BEGIN, clock.now())
    assert (step_s, len(samples)) == (DAY_S, 40)
    store.purge(clock.now() - 5 * DAY_S)
    assert read(store, BEGIN, clock.now())[1][0].time >= clock.now() - 5 * DAY_S


def test_thinning_searches_by_the_key(tmp_path: Path, clock: ManualClock) -> None:
    """The table of a year has some 140 MB, and the deciding thread thins it."""
    statements: dict[str, tuple[object, ...]] = {}

    def note(_c: object, _cursor: object, statement: str, values: tuple[object, ...], *_: object) -> None:
        statements[statement] = values

    with Store.open(tmp_path / "burstd.db", clock) as store:
        event.listen(store._database.engine, "before_cursor_execute", note)
        write(store, clock, range(11))
        event.remove(store._database.engine, "before_cursor_execute", note)
    ours = {s: v for s, v in statements.items() if "FROM site_history" in s}
    assert any(s.startswith("DELETE") for s in ours)
    with closing(sqlite3.connect(tmp_path / "burstd.db")) as connection:
        for statement, values in ours.items():
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            assert not any("SCAN" in row[3] for row in plan), statement


def test_a_time_without_burstd_is_a_gap_and_money_goes_on_after_it(place: str, clock: ManualClock) -> None:
    with open_store(place, clock) as store:
        write(store, clock, range(30))
    with open_store(place, clock) as store:
        write(store, clock, range(30 + 1440, 60 + 1440))
        _, samples = read(store, BEGIN, clock.now())
        times = {(sample.time - BEGIN) // 60 for sample in samples}
        assert times <= {*range(33), *range(1440 + 24, 1440 + 60)}
        assert total(samples, STARTED) == 60
        assert samples[-1].figures["site"]["spent.EUR"] == 1499


def test_a_restart_within_a_minute_loses_neither_sample(place: str, clock: ManualClock) -> None:
    clock.time = BEGIN + 5.0
    for pending in (4, 2):
        with open_store(place, clock) as store:
            store.record_site_figures(clock.time, site(pending, 1), thin=True)
            clock.time += 20
    with open_store(place, clock) as store:
        clock.time += 60
        (sample,) = read(store, BEGIN, clock.now())[1]
    assert (sample.samples, sample.figures["site"]["jobs_pending"]) == (2, [6, 4])
    assert sample.figures["site"][STARTED] == 2


def test_the_times_of_a_clock_that_ran_ahead_are_put_right_and_merged(store: Store, clock: ManualClock) -> None:
    write(store, clock, range(20))
    write(store, clock, range(1440, 1460))
    store.shift_late_times(BEGIN + 21 * 60.0, 1435 * 60.0)
    clock.time = BEGIN + 26 * 60.0
    _, samples = read(store, BEGIN, clock.now())
    assert [(sample.time - BEGIN) // 60 for sample in samples] == list(range(25))
    assert total(samples, STARTED) == 40
    assert [sample.samples for sample in samples] == [1] * 5 + [2] * 15 + [1] * 5
    write(store, clock, range(26, 90))
    assert total(read(store, BEGIN, clock.now())[1], STARTED) == 40 + 64


def test_what_is_before_the_time_asked_for_is_the_start_of_what_was_spent(store: Store, clock: ManualClock) -> None:
    write(store, clock, range(1500))
    for since in (BEGIN + 600.0, clock.now() - 3600, clock.now() - 0.5 * DAY_S):
        _, _, found = store.site_history([Part.SITE], since, clock.now())
        samples, before = found[Part.SITE]
        assert before is not None
        assert before.time < samples[0].time
        spent = samples[-1].figures["site"]["spent.EUR"], before.figures["site"]["spent.EUR"]
        assert spent == (1499, (samples[0].time - BEGIN) // 60 - 1)


def _record(place: str, confirmed: Connection) -> None:
    clock = ManualClock(BEGIN)
    store = Store.open(place, clock)
    last = store.metadata("last")
    for minute in range(int(last or 0), 10**6):
        clock.time = BEGIN + 60.0 * minute
        with store.batch():
            store.record_site_figures(clock.time, site(minute, 1), thin=minute % 10 == 0)
            store.set_metadata("last", str(minute + 1), logged=False)
        confirmed.send(minute)


@pytest.mark.slow
def test_killed_at_any_moment_each_sample_is_there_once_in_each_length(tmp_path: Path) -> None:
    place, chance = str(tmp_path / "burstd.db"), random.Random(3)  # noqa: S311
    fork, last = multiprocessing.get_context("fork"), -1
    for _ in range(6):
        mine, its = fork.Pipe()
        child = fork.Process(target=_record, args=(place, its))
        child.start()
        its.close()
        for _ in range(chance.randint(5, 40)):
            last = mine.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        while True:
            try:
                last = mine.recv()
            except (EOFError, OSError):
                break
        child.join(30)
    clock = ManualClock(BEGIN + 60.0 * (last + 2))
    with Store.open(place, clock) as store:
        written = int(store.metadata("last"))
        connection = store._database.engine.connect()
        assert written in (last + 1, last + 2)
        for resolution in RESOLUTIONS[:-1]:
            samples, _ = site_history._read(connection, Part.SITE, resolution.step_s, 0, 1e12)
            whole = written if resolution.step_s == 60 else (written - 1) // 10 * 10 * 60 // resolution.step_s
            whole = whole * resolution.step_s // 60 if resolution.step_s > 60 else whole
            assert total(samples, STARTED) == whole, resolution
        connection.close()


def test_a_damaged_sample_is_a_gap_and_holds_up_no_other(store: Store, clock: ManualClock) -> None:
    write(store, clock, range(15))
    with store._database.writing() as session:
        damaged = update(SITE_HISTORY).values(figures=type_coerce(b"\x00", LargeBinary))
        session.connection().execute(damaged.where(SITE_HISTORY.c.time == BEGIN + 12 * 60))
    clock.time = BEGIN + 20 * 60.0
    assert store.record_site_figures(clock.time, site(20, 1, 20), thin=True) == 1
    clock.time += 600
    assert store.record_site_figures(clock.time, site(30, 1, 30), thin=True) == 0
    _, samples = read(store, BEGIN, clock.now() + 60)
    assert [(sample.time - BEGIN) // 60 for sample in samples] == [*range(12), 13, 14, 20, 30]
    with store._database.reading() as connection:
        longer, _ = site_history._read(connection, Part.SITE, 600, 0, 1e12)
    assert [sample.samples for sample in longer] == [10, 4, 1]


@pytest.mark.parametrize("ahead_s", [DAY_S, 3 * DAY_S])
def test_a_clock_that_ran_ahead_by_days_leaves_sums_whole_and_money_growing(
    store: Store, clock: ManualClock, ahead_s: int
) -> None:
    """It jumps at noon; half an hour later it is put right, and the day goes on."""
    noon, ahead = range(12 * 60 - 30, 12 * 60, 5), ahead_s // 60
    write(store, clock, noon)
    write(store, clock, range(noon.stop + ahead, noon.stop + 30 + ahead, 5))
    store.shift_late_times(BEGIN + 60.0 * noon.stop, float(ahead_s))
    evening = range(noon.stop + 30, 25 * 60, 10)
    write(store, clock, evening)
    _, samples = read(store, BEGIN, clock.now())
    assert all(sample.time <= clock.now() for sample in samples)
    assert total(samples, STARTED) == 12 + len(evening)
    with store._database.reading() as connection:
        for resolution in RESOLUTIONS:
            step_s = resolution.step_s
            rows, _ = site_history._read(connection, Part.SITE, step_s, 0, 1e12)
            assert all(row.time <= clock.now() for row in rows)
            assert [row.time for row in rows] == sorted({row.time for row in rows})
        days, _ = site_history._read(connection, Part.SITE, DAY_S, 0, 1e12)
    assert [day.figures["site"][STARTED] for day in days] == [12 + len(evening) - 6]


def test_samples_of_the_first_format_are_read() -> None:
    figures: Figures = {"site": {"jobs_pending": [5, 3], STARTED: 2}, "pool/gpu": {"wanted": -1, "gpus_free": 0.5}}
    assert decode_figures(zlib.compress(json.dumps(figures).encode())) == figures
    assert decode_figures(zlib.compress(json.dumps(_columns_of(figures)).encode())) == figures
    assert decode_figures(zlib.compress(b"{}")) == {}


def test_so_many_of_a_hundred_jobs_had_waited_at_most() -> None:
    waits = [0, 1, 5, 30, 30, 60, 61, 100, 3600, 90_000]
    one: dict[str, float] = {WAIT_MAX_S: max(waits)}
    for wait in waits:
        one[wait_measure(wait)] = one.get(wait_measure(wait), 0) + 1
    for percent in range(1, 101):
        found, exact = wait_percentile(one, percent), waits[-(-len(waits) * percent // 100) - 1]
        assert found is not None
        assert exact // 2 <= found <= 2 * exact + 1, "within the limits between which it was counted"
    assert wait_percentile(one, 100) == 90_000
    assert wait_percentile({wait_measure(90): 1, WAIT_MAX_S: 90}, 50) == 90, "one job alone is exact"
    assert wait_percentile({}, 50) is None


@pytest.mark.slow
def test_a_year_of_a_large_site_is_below_200_mb(tmp_path: Path) -> None:
    """Of the rows that a year leaves a hundredth is written, with figures that were merged as the daemon merges."""
    share, chance, place = 100, random.Random(1), tmp_path / "burstd.db"  # noqa: S311
    world: dict[Part, dict[str, dict[str, int]]] = busy_site()
    rows = {r.step_s: int(min(r.keep_s, 366 * DAY_S) // r.step_s // share) for r in RESOLUTIONS}
    with Store.open(place, ManualClock()) as store:
        before = place.stat().st_size + place.with_name("burstd.db-wal").stat().st_size
        with store._database.writing() as session:
            for step_s, count in rows.items():
                for number in range(count):
                    some = []
                    for _ in range(1 if step_s == 60 else 6):
                        world = {part: walk(chance, figures) for part, figures in world.items()}
                        some.append(world)
                    for part in Part:
                        merged = merge_samples(number * step_s, [Sample(0, 1, one[part]) for one in some])
                        site_history._write(session.connection(), part, step_s, [merged])
        with store._database.engine.connect() as connection:
            connection.exec_driver_sql("END")
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            assert connection.execute(text("SELECT count(*) FROM site_history")).scalar() == 3 * sum(rows.values())
    size = (place.stat().st_size - before) * share
    assert 50e6 < size < 200e6
