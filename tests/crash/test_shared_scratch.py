"""Shared scratch of jobs of several nodes, among virtual machines: it stands before the job starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.staging.controller.tasks import StageFailed
from tests.crash.stage_world import StageWorld

pytestmark = pytest.mark.crash

LINE = "#BURST scratch shared 1G\n"


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[StageWorld]:
    made = StageWorld(tmp_path, template=template)
    yield made
    made.kill()


def runs(world: StageWorld) -> None:
    world.run(400, world.phase("7", "running"))
    assert world.slurm.jobs["7"].phase == "running"


def test_the_first_node_serves_it_to_the_others(world: StageWorld) -> None:
    world.submit("7", nodes=3, lines=LINE)
    runs(world)
    assert world.locations.shared["7"] == list(world.slurm.jobs["7"].nodes)
    assert world.controller is not None
    env = world.controller.job_environment("7")
    assert env["BURST_SHARED"] == env["BURST_OUT"].replace("/out", ".shared")
    world.calm()
    world.check_end()


def test_one_node_has_it_alone_and_a_job_without_the_line_has_none(world: StageWorld) -> None:
    world.submit("6", nodes=2)
    world.submit("7", lines=LINE)
    runs(world)
    assert world.locations.shared == {"7": list(world.slurm.jobs["7"].nodes)}
    assert world.controller is not None
    assert "BURST_SHARED" not in world.controller.job_environment("6")


@pytest.mark.parametrize("after", [1, 2])
def test_where_it_cannot_be_mounted_the_first_node_serves_it_anew(world: StageWorld, after: int) -> None:
    world.submit("7", nodes=3, lines=LINE)
    world.run(400, lambda: "7" in world.locations.shared)
    world.locations.sshds_end["7"] = after
    runs(world)
    assert not world.locations.sshds_end
    assert world.locations.shared["7"] == list(world.slurm.jobs["7"].nodes)
    world.calm()
    world.check_end()


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_start_that_is_broken_off_is_begun_anew(world: StageWorld, after: int) -> None:
    """burstd dies when the directory is on so many nodes, then one node does not do it at first."""
    world.submit("7", nodes=3, lines=LINE)
    world.run(400, lambda: len(world.locations.shared.get("7", ())) >= after)
    world.kill()
    world.locations.shared.clear()
    world.locations.faults["share", "7"] = StageFailed("sshd does not start", retryable=True)
    world.start()
    runs(world)
    assert world.locations.shared["7"] == list(world.slurm.jobs["7"].nodes)
    world.calm()
    world.check_end()
