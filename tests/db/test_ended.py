"""Runs of jobs on record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burstd.db import Store
from burstd.db.repositories import history
from burstd.domain.slurm.job_history import EndedJob

from .opening import open_store
from .samples import START, ManualClock


def run(number: int, **fields: object) -> EndedJob:
    at = START + number
    base = EndedJob(f"{number}", "ada", "lab", "tra\nin", ("gpu", "x"), 2, 8, 4, 0.0, at - 9, at - 5.5, at, True)
    return replace(base, **fields)  # type: ignore[arg-type]


def test_the_latest_come_back_in_the_order_in_which_they_ended(store: Store) -> None:
    store.record_ended_jobs([run(3), run(1)])
    store.record_ended_jobs([run(2, burst=False, time_limit_s=60.0)])
    assert store.ended_jobs(10) == (run(1), run(2, burst=False, time_limit_s=60.0), run(3))
    assert store.ended_jobs(2) == (run(2, burst=False, time_limit_s=60.0), run(3))


def test_a_run_is_on_record_once_and_another_of_the_same_job_beside_it(store: Store) -> None:
    store.record_ended_jobs([run(1), run(1)])
    store.record_ended_jobs([run(1), run(1, started=START + 0.5, ended=START + 7)])
    assert store.ended_jobs(10) == (run(1), run(1, started=START + 0.5, ended=START + 7))


def test_they_survive_a_restart(place: str, clock: ManualClock) -> None:
    with open_store(place, clock) as store:
        store.record_ended_jobs([run(n) for n in range(700)])
    with open_store(place, clock) as store:
        assert store.ended_jobs(1000) == tuple(run(n) for n in range(700))


def test_purge_forgets_old_ones_and_those_beyond_a_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.record_ended_jobs([run(n) for n in range(10)])
    store.purge(START + 4)
    assert [job.id for job in store.ended_jobs(99)] == [str(n) for n in range(4, 10)]
    monkeypatch.setattr(history, "MAX_ENDED_JOBS", 3)
    store.purge(START)
    assert [job.id for job in store.ended_jobs(99)] == ["7", "8", "9"]
