"""When samples of the site are taken, and by whom they are written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import LargeBinary, type_coerce, update

from burstd.db import Store, StoreFull
from burstd.db.tables import SITE_HISTORY
from burstd.domain.plan import Plan
from burstd.domain.site_history import Part, Sample
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.reconciler.context import LoopContext
from burstd.reconciler.pollers.site_history import SiteHistoryRecorder
from burstd.reconciler.quarantine import Quarantine
from burstd.runtime.workers import ThreadWorkers
from tests.api.world import NOW, SNAPSHOT, USER, FixedClock, job


class Rig:
    def __init__(self, store: Store, workers: ThreadWorkers) -> None:
        self.quarantine = Quarantine(FixedClock())
        context = SimpleNamespace(store=store, workers=workers, quarantine=self.quarantine)
        self.wakes: list[str] = []
        self.store, self.workers = store, workers
        self.started: list[Any] = []
        self.threads: list[int] = []
        self.recorder = SiteHistoryRecorder(cast("LoopContext", context), self.take, tuple)

    def take(self) -> list[Any]:
        started, self.started = self.started, []
        return started

    def step(self, at: float, slurm: SlurmView | Unavailable = SNAPSHOT.slurm) -> int:
        """The samples on record after a step at this time and all its callbacks."""
        self.recorder.step(replace(SNAPSHOT, now=at, slurm=slurm), Plan())
        while self.workers.calls_under_way():
            threading.Event().wait(0.001)
        assert self.workers.run_callbacks() == 0, "a sample wakes no loop"
        return len(self.samples())

    def samples(self) -> list[Sample]:
        return self.store.site_history([Part.MACHINES], NOW - 600, NOW + 6000)[2][Part.MACHINES][0]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    workers = ThreadWorkers(lambda: None, 1)
    with Store.open(tmp_path / "burstd.db", FixedClock()) as store:
        yield Rig(store, workers)
    workers.close()


def test_one_a_minute_and_of_the_minute_of_its_snapshot(rig: Rig) -> None:
    first = NOW // 60 * 60
    assert [rig.step(first + at) for at in (5, 20, 59.9, 60, 61, 250)] == [1, 1, 1, 2, 2, 3]
    assert [sample.time - first for sample in rig.samples()] == [0, 60, 240]
    assert all(sample.samples == 1 for sample in rig.samples())


def test_what_goes_wrong_with_one_is_an_alarm_and_the_next_is_taken(rig: Rig) -> None:
    rig.started = [object()]
    rig.recorder.step(replace(SNAPSHOT, now=NOW), Plan())
    while rig.workers.calls_under_way():
        threading.Event().wait(0.001)
    rig.workers.run_callbacks()
    (alarm,) = rig.quarantine.alarms()
    assert "burstd fails on the history of the site (a sample: AttributeError" in alarm
    assert rig.samples() == []
    assert rig.step(NOW + 60) == 1


def test_samples_wait_for_a_disk_that_is_full(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised into the loop, whose decisions go on."""

    def full(*_: object, **__: object) -> int:
        raise StoreFull("No space is left on the device.")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "record_site_figures", full)
        assert [rig.step(NOW + 60 * minute) for minute in range(3)] == [0, 0, 0]
    (alarm,) = rig.quarantine.alarms()
    assert "the history of the site (writing: StoreFull: No space" in alarm
    assert rig.step(NOW + 180) == 4
    assert [sample.time for sample in rig.samples()] == [NOW // 60 * 60 + 60 * minute for minute in range(4)]


def test_a_damaged_sample_is_an_alarm(rig: Rig) -> None:
    rig.step(NOW)
    with rig.store._database.writing() as session:
        session.connection().execute(update(SITE_HISTORY).values(figures=type_coerce(b"{", LargeBinary)))
    assert rig.step(NOW + 1200) == 1
    (alarm,) = rig.quarantine.alarms()
    assert "3 of its samples cannot be read" in alarm


def test_jobs_that_started_before_slurm_could_not_be_read_are_in_the_next_sample(rig: Rig) -> None:
    rig.started = [job("3", USER, JobState.RUNNING, node_list=("gpu1",), start=NOW - 20)]
    rig.step(NOW, Unavailable("no answer", NOW - 9))
    rig.step(NOW + 60)
    sites = rig.store.site_history([Part.SITE], NOW - 600, NOW + 6000)[2][Part.SITE][0]
    assert [sample.figures["site"]["started"] for sample in sites] == [1]
