"""Slurm loses the teardown of a job that is cancelled in a hook: its data is cleared, and it is said what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.staging import StageState as S
from tests.crash.stage_world import WORKER_QUEUES, StageWorld
from tests.crash.workers import Delay
from tests.crash.world import memory_folder

pytestmark = pytest.mark.crash

STATES = {"looking": S.WAITING, "sending": S.UPLOADING, "placing": S.FETCHING}


@pytest.fixture
def world(template: Path) -> Iterator[StageWorld]:
    """Transfers take three seconds each."""
    with memory_folder() as folder:
        made = StageWorld(folder, template=template)
        made.delays.update({lane: Delay(3.0) for lane in WORKER_QUEUES if lane != "stage:slurm"})
        yield made
        made.kill()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("when", STATES)
def test_its_data_is_cleared_and_the_remedy_told(world: StageWorld, when: str, dies: bool) -> None:
    world.slurm.loses_teardowns = True
    job = world.submit("7", nodes=2)
    world.run(600, world.is_(job, STATES[when]))
    world.slurm.cancel(job)
    if dies:
        world.kill()
        world.start()
    world.run(180, world.is_(job, S.CLEARED))
    assert world.is_(job, S.CLEARED)(), world.report()
    assert not any(answer[1] == "teardown" for answer in world.slurm.hook_replies)
    told = [e.reason for e in world.store.events(subject="stage:7")]
    assert any("'scontrol requeuehold 7', then 'scancel 7'" in reason for reason in told)
    world.check_end()


def test_a_teardown_that_comes_is_not_said_to_be_lost(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    world.run(600, world.is_(job, S.UPLOADING))
    world.slurm.cancel(job)
    world.run(180, world.is_(job, S.CLEARED))
    assert not any("lost" in e.reason for e in world.store.events(subject="stage:7"))
