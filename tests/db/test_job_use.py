"""What jobs used of their nodes, on record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from burstd.db import Store
from burstd.db.repositories import job_use
from burstd.domain.job_use import GpuShare, GpuUse, JobUse, NodeUse, Series

from .opening import open_store
from .samples import START, ManualClock

SERIES = Series(START, 10.0, (1.5, None, 70.0), (2.0, None, 99.5))
GPU = GpuUse("GPU-1", 0, "A100", GpuShare.SHARD, 70.0, 99.5, 900, 81920, 100.0, 20.0, 10.0, START + 100, series=SERIES)
NODE = NodeUse(
    "cl1", 8, 1024, START, START + 100, 50.0, 0.5, 1.5, 300, 310, 12, None, 0.5, 0.25, (GPU,),
    cpu_series=SERIES, memory_series=SERIES,
)  # fmt: skip


def use(job: str = "7_1", **fields: object) -> JobUse:
    base = JobUse(job, "9", 0, "ada", "lab", "gpu", (NODE,), 2, START)
    made = replace(base, **fields)  # type: ignore[arg-type]
    return made if "started" in fields else replace(made, started=START + made.restarts)


def plain(one: JobUse) -> JobUse:
    return replace(one, nodes=tuple(node.without_series() for node in one.nodes))


def whole(store: Store, job: str) -> JobUse | None:
    return store.last_job_use(job, series_nodes=None)


def test_runs_come_back_with_series_where_these_are_asked_for(place: str, clock: ManualClock) -> None:
    with open_store(place, clock) as store:
        store.save_job_uses([use(), use("8", ended=START + 200)])
    with open_store(place, clock) as store, store.reader() as reader:
        assert reader.last_job_use("7_1", series_nodes=None) == use()
        assert reader.job_uses("7_1") == (plain(use()),) == (reader.last_job_use("7_1"),)
        assert [reader.job_use_owner(job) for job in ("7_1", "9")] == ["ada", None]
        assert reader.last_job_use("9") is None
        assert store.open_job_uses() == (use(nodes=(NODE.without_series(),)),)
        assert store.open_job_uses()[0].nodes[0].gpus[0].series is None


def test_a_node_replaces_its_own_figures_and_an_end_is_that_of_all_nodes(store: Store) -> None:
    other, later = replace(NODE, node="cl2"), replace(NODE, cpu_s=99.0)
    store.save_job_uses([use(nodes=(NODE, other))])
    store.save_job_uses([use(nodes=(later,)), use(restarts=1)])
    assert store.job_uses("7_1") == (plain(use(nodes=(later, other))), plain(use(restarts=1)))
    assert whole(store, "7_1") == use(restarts=1)
    store.end_job_use(use(ended=START + 300), [])
    assert [one.ended for one in store.job_uses("7_1")] == [START + 300, None]
    store.reopen_job_uses([use()])
    assert [one.ended for one in store.job_uses("7_1")] == [None, None]


def test_figures_that_were_packed_in_another_thread_are_those_of_the_run(store: Store) -> None:
    """What Slurm says of the job is known later."""
    packed = {(("7_1", 0, 0), "cl1"): job_use.packed_figures(replace(NODE, cpus=4))}
    store.save_job_uses([plain(use())], packed)
    assert whole(store, "7_1") == use()


def test_a_job_with_the_id_of_another_has_its_own_figures(store: Store) -> None:
    before, now = use(run_start=1000, ended=START + 9), use(user="bob", started=START + 99, run_start=1099)
    store.save_job_uses([before, now])
    store.save_job_uses([replace(before, nodes=(replace(NODE, cpu_s=60.0),))])
    assert [(one.user, one.nodes[0].cpu_s) for one in store.job_uses("7_1")] == [("ada", 60.0), ("bob", 50.0)]
    assert (whole(store, "7_1"), store.job_use_owner("7_1")) == (now, "bob")


def test_rows_without_the_start_by_slurm_are_kept(place: str, clock: ManualClock) -> None:
    """As burstd wrote them up to schema 0017."""
    with open_store(place, clock) as store:
        store.save_job_uses([use(started=START + 0.4), use(restarts=1)])
        with store._database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE former AS SELECT * FROM job_use"))
            for line in (
                "ALTER TABLE former DROP COLUMN run_start",
                "DROP TABLE job_use",
                "ALTER TABLE former RENAME TO job_use",
                "ALTER TABLE ended_job DROP COLUMN submitted",
                "DROP TABLE relayed_call",
                "DROP TABLE leader",
                "DROP TABLE head",
                "DROP TABLE closed_month",
                "DROP TABLE site_run",
                "DROP TABLE site_charge",
                "DROP TABLE charge",
                "DROP TABLE claim_run",
                "DROP INDEX ix_staging_array_task",
                "ALTER TABLE staging DROP COLUMN array_task",
                "UPDATE alembic_version SET version_num = '0017'",
            ):
                connection.execute(text(line))
    with open_store(place, clock) as store:
        first, second = use(started=START + 0.4, run_start=int(START)), use(restarts=1, run_start=int(START) + 1)
        assert store.open_job_uses() == (plain(first), plain(second))
        assert whole(store, "7_1") == second


def test_the_end_of_a_run_leaves_its_series_as_they_are(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(replace(NODE, node=f"cl{n}") for n in range(3))
    store.save_job_uses([use(nodes=nodes), use(restarts=1, nodes=nodes)])
    cut = replace(nodes[1].without_series(), ended=True, cut=True)
    with monkeypatch.context() as patched:
        patched.setattr(job_use, "zlib", None)
        store.end_job_use(use(restarts=1, ended=START + 9), [cut])
    ended = (nodes[0], replace(nodes[1], ended=True, cut=True), nodes[2])
    assert whole(store, "7_1") == use(restarts=1, nodes=ended, ended=START + 9)
    assert store.job_uses("7_1")[0] == plain(use(nodes=nodes)), "the run before is another"


def test_series_are_read_of_so_many_nodes_as_are_shown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = tuple(replace(NODE, node=f"cl{n}") for n in range(5))
    store.save_job_uses([use(nodes=(nodes[0].without_series(), *nodes[1:]))])
    found = store.last_job_use("7_1", series_nodes=2)
    assert found is not None
    assert [node.cpu_series is not None for node in found.nodes] == [False, True, True, False, False]
    monkeypatch.setattr(job_use, "zlib", None)
    assert store.last_job_use("7_1") == plain(use(nodes=nodes))


def test_purge_forgets_what_is_old_and_the_series_beyond_a_number(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_use, "MAX_ROWS", 3)
    monkeypatch.setattr(job_use, "MAX_SERIES", 2)
    for number in range(6):
        clock.time += 1
        store.save_job_uses([use(str(number), ended=START + number)])
    store.purge(START + 1)
    left = [one for number in range(6) if (one := whole(store, str(number))) is not None]
    assert [one.job for one in left] == ["3", "4", "5"]
    assert [one.nodes[0].cpu_series is None for one in left] == [True, False, False]
    assert left[0].nodes == (NODE.without_series(),)


def test_series_that_are_too_long_are_not_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_use, "MAX_SERIES_BYTES", 100)
    store.save_job_uses([use()])
    assert whole(store, "7_1") == plain(use())
