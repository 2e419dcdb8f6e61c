"""A copy of the record is put back that is older than a requeue: the job has run once more, elsewhere, since then."""

from __future__ import annotations

from pathlib import Path

import pytest

from burstd.domain.staging import StageState as S
from tests.crash.stage_ground import Output
from tests.crash.stage_world import StageWorld
from tests.faults.test_b12_staging_in_each_phase import reach, world

__all__ = ["world"]
pytestmark = pytest.mark.crash


@pytest.mark.parametrize("now", ["running", "data_out"])
@pytest.mark.parametrize("then", ["placing", "running", "collecting", "bringing", "clearing", "cleared"])
def test_output_of_the_run_that_the_copy_does_not_know_comes_home(
    world: StageWorld, tmp_path: Path, then: str, now: str
) -> None:
    job, copy = world.submit("7"), tmp_path / "copy.db"
    reach(world, job, "placing" if then == "placing" else "running")
    if then in ("placing", "running"):
        world.copy_record(copy)
        reach(world, job, "running")
    world.slurm.requeue(job)
    if then in ("collecting", "bringing", "clearing"):
        reach(world, job, then)
        world.copy_record(copy)
    world.run(600, world.is_(job, S.CLEARED))
    if then == "cleared":
        world.copy_record(copy)
    assert world.locations.delivered == {Output(job, 1, "c1")}
    world.break_node("c1", again_s=3600.0)
    world.run(600, lambda: world.slurm.jobs[job].runs == 2 and world.slurm.jobs[job].phase == now)
    assert world.slurm.jobs[job].nodes == ("c2",)
    world.lose_record(5.0, kept=copy)
    world.calm()
    world.check_end()
    assert world.locations.delivered == {Output(job, 1, "c1"), Output(job, 2, "c2")}
    assert world.locations.ended[job][-1].lost_nodes == ()
