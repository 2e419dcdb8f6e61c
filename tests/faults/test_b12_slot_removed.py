"""A slot leaves the settings while the data of a job is on its way to, on, or on its way from its machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash import stage_world
from tests.crash.stage_ground import SLOTS
from tests.crash.stage_world import StageWorld
from tests.faults.test_b12_staging_in_each_phase import reach, world

__all__ = ["world"]
pytestmark = pytest.mark.crash


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("when", ["ready", "placing", "running", "post_run", "collecting", "bringing"])
def test_output_of_a_slot_that_is_removed_comes_home(
    world: StageWorld,
    when: str,
    restarts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, when)
    pool = stage_world.POOLS["cpu"]
    monkeypatch.setitem(stage_world.POOLS, "cpu", replace(pool, slots=SLOTS[1:]))
    if restarts:
        world.kill()
        world.start()
    world.calm()
    world.check_end()
    assert SLOTS[0] in {output.node for output in world.locations.written}
    assert world.locations.delivered == world.locations.written
    assert [ended.on_premises for ended in world.locations.ended[job]] == [False]


def test_output_that_died_with_the_machine_of_a_removed_slot_is_told(
    world: StageWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "running")
    monkeypatch.setitem(stage_world.POOLS, "cpu", replace(stage_world.POOLS["cpu"], slots=SLOTS[1:]))
    world.break_node(SLOTS[0])
    world.calm()
    world.check_end()
    assert [ended.lost_nodes for ended in world.locations.ended[job]] == [(SLOTS[0],)]
