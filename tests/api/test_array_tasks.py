"""Tasks of arrays are named as in the queue, wherever burstd speaks of their data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.api.auth import Caller
from burstd.api.backend import Backend
from burstd.api.dependencies import ApiError
from burstd.api.routers.events import get_events
from burstd.api.routers.staging import get_stage, get_stage_of_job, held_staging_alarms
from burstd.db import Store
from burstd.domain.staging import Directives, StageState, Staging

from .fake_backend import FakeBackend
from .stages import FakeStaging
from .world import NOW, USER, FixedClock

TASKS = {"124": "123_1", "125": "123_2", "123": "123_3"}
"""By the number that Slurm's hooks use: the last task of an array has the array's."""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    clock = FixedClock(NOW - 100)
    with Store.open(tmp_path / "burstd.db", clock) as store:
        for number, task in TASKS.items():
            store.make_staging(
                Staging(number, USER, 1, 1, Directives(), StageState.WAITING, NOW, NOW - 100, array_task=task)
            )
        store.transition_staging(
            "125", StageState.WAITING, StageState.HELD, "gave up", error="/x is gone", resume="waiting"
        )
        with store.reader() as reader:
            made = FakeBackend(reader)
            made.stage = FakeStaging()
            yield made


def test_every_answer_names_the_task(backend: Backend) -> None:
    everybody, own = Caller("root", admin=True), Caller(USER, admin=False)
    assert [job.job for job in get_stage(everybody, backend, limit=100).jobs] == ["123_3", "123_1", "123_2"]
    assert [job.job for job in get_stage(everybody, backend, every=True, limit=2).jobs] == ["123_2", "123_1"]
    for asked, task in (("123_1", "123_1"), ("123_3", "123_3"), ("125", "123_2"), ("123", "123_3")):
        found = get_stage_of_job(asked, own, backend)
        assert (found.job.job, {event.subject for event in found.history}) == (task, {f"stage:{task}"})
    with pytest.raises(ApiError, match="Job 123_7 has no data on burstd's record"):
        get_stage_of_job("123_7", own, backend)
    assert held_staging_alarms(backend.reader, own) == [
        "the data of job 123_2 is held: /x is gone; repair this and run 'burstctl stage retry 123_2'"
    ]
    events = get_events(everybody, backend, limit=100).events
    assert {event.subject for event in events} == {f"stage:{task}" for task in TASKS.values()}
    of_task = get_events(everybody, backend, job="123_2", limit=100).events
    assert "stage:123_2" in {event.subject for event in of_task}
    assert "stage:123_1" not in {event.subject for event in of_task}
