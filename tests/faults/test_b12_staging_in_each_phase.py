"""A full disk of the record, and a slurmctld that has forgotten everything, in every phase of staging."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.staging import StageState as S
from tests.crash.stage_world import WORKER_QUEUES, StageWorld
from tests.crash.workers import Delay
from tests.crash.world import memory_folder

pytestmark = pytest.mark.crash

STATES = {
    "looking": S.WAITING, "sending": S.UPLOADING, "placing": S.FETCHING, "collecting": S.COLLECTING,
    "bringing": S.DELIVERING, "clearing": S.DELIVERED,
}  # fmt: skip
PHASES = ["new", "setup", *STATES, "ready", "running", "post_run"]


@pytest.fixture
def world(template: Path) -> Iterator[StageWorld]:
    """Transfers take three seconds each."""
    with memory_folder() as folder:
        made = StageWorld(folder, template=template)
        made.delays.update({lane: Delay(3.0) for lane in WORKER_QUEUES if lane != "stage:slurm"})
        yield made
        made.kill()


def reach(world: StageWorld, job: str, when: str) -> None:
    until = world.is_(job, STATES[when]) if when in STATES else world.phase(job, when)
    world.run(600, until)
    assert until(), world.report()


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("when", PHASES)
def test_a_full_disk_of_the_record_loses_and_repeats_nothing(world: StageWorld, when: str, dies: bool) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, when)
    world.disk.writes_left = 0
    world.run(20)
    if dies:
        world.kill()
        world.start()
    world.run(120)
    world.disk.writes_left = None
    world.calm()
    world.check_end()
    assert world.locations.delivered == world.locations.written
    assert world.slurm.jobs[job].runs == 1
    if not dies:
        assert [world.count(kind, job) for kind in ("send", "place", "collect", "bring")] == [1, 2, 2, 1]


@pytest.mark.parametrize("when", PHASES)
def test_a_cold_start_of_slurmctld_leaves_nothing_and_brings_home_what_there_is(world: StageWorld, when: str) -> None:
    jobs = [world.submit("7", nodes=2), world.submit("8", user="bob")]
    reach(world, jobs[0], when)
    for job in jobs:
        world.slurm.lose(job)
    world.run(600, lambda: not world.store.stagings())
    assert not world.store.stagings(), world.report()
    world.check_end()
    assert world.locations.delivered == world.locations.written
    again = world.submit("7")
    world.calm()
    world.check_end()
    assert {output.job_id for output in world.locations.delivered} >= {again}
