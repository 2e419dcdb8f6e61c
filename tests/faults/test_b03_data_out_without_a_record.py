"""A record that is lost, or older than the world: no output is taken for home that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.staging import StageState as S
from tests.crash.stage_world import WORKER_QUEUES, StageWorld
from tests.crash.workers import Delay
from tests.crash.world import memory_folder

pytestmark = pytest.mark.crash

STATES = {"sending": S.UPLOADING, "placing": S.FETCHING, "collecting": S.COLLECTING, "bringing": S.DELIVERING}
NEVER_S = 1e9


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


def finish(world: StageWorld) -> None:
    """Everything that was written is at home."""
    world.calm()
    world.check_end()
    assert world.locations.delivered == world.locations.written
    assert world.locations.delivered


@pytest.mark.parametrize("adopted_s", [0.0, 90.0])
@pytest.mark.parametrize("when", ["setup", "sending", "placing", "running", "post_run", "collecting", "bringing"])
def test_a_lost_record_loses_no_output(world: StageWorld, when: str, adopted_s: float) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, when)
    world.lose_record(adopted_s)
    finish(world)
    assert world.slurm.jobs[job].runs == 1


@pytest.mark.parametrize("copied", ["new", "sending", "ready", "placing", "running"])
@pytest.mark.parametrize("put_back", ["running", "data_out", "bringing"])
def test_an_older_record_loses_no_output(world: StageWorld, tmp_path: Path, copied: str, put_back: str) -> None:
    job = world.submit("7", nodes=2, run_s=60)
    reach(world, job, copied)
    kept = world.copy_record(tmp_path / "kept.db")
    reach(world, job, put_back)
    world.lose_record(0.0, kept)
    finish(world)


def test_its_nodes_are_kept_before_slurm_s_hook_is_heard_again(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "data_out")
    world.lose_record(0.0)
    world.step()
    assert world.state(job) is None
    assert world.controller is not None
    view = world.controller.data_views()[job]
    assert view.nodes == ("c1", "c2")
    # A younger machine would be taken for another one on the same slot.
    assert view.ended > max(claim.created for claim in world.claims.values())
    finish(world)
    world.run(60)
    assert not world.controller.data_views()


def test_output_on_a_machine_that_nobody_knows_waits_for_a_person(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "running")
    world.lose_record(NEVER_S)
    world.run(2 * 3600)
    row = world.store.staging(job)
    assert (row.state, row.needs_attention) == (S.COLLECTING, True)
    assert "c1, c2, whose machine burstd does not know" in row.error
    assert world.phase(job, "data_out")()
    assert world.controller is not None
    assert set(world.controller.data_views()[job].nodes) == {"c1", "c2"}
    world.unrecorded.clear()
    finish(world)


def test_an_unreadable_script_waits_for_a_person(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "running")
    world.slurm.scripts = False
    world.lose_record(0.0)
    world.run(3600)
    row = world.store.staging(job)
    assert row.needs_attention
    assert "its script cannot be read" in row.error
    assert not world.locations.delivered
    # A slurmctld that starts again asks again.
    world.slurm.scripts = True
    world.slurm.restart(recent=False)
    finish(world)


def test_what_nobody_can_find_may_be_given_up(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "running")
    world.lose_record(NEVER_S)
    world.run(600)
    assert world.controller is not None
    world.locations.discarded_jobs.add(job)
    assert "removed" in world.controller.discard(job, "root")
    world.run(600, world.phase(job, "gone"))
    assert world.phase(job, "gone")()


def test_a_node_that_the_record_knows_to_be_gone_is_told_as_lost(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "running")
    world.break_node("c1")
    world.run(600, world.is_(job, S.DELIVERED))
    assert [ended.lost_nodes for ended in world.locations.ended[job]] == [("c1",)]


def test_output_that_waits_says_what_happens_by_itself_and_what_a_person_may_do(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "running")
    world.lose_record(1200.0)
    world.store.set_metadata(DOUBT_KEY, "the record is an older copy")
    world.run(600)
    said = world.store.staging(job).error
    words = ("is fetched then", "'burstctl confirm record'", f"'burstctl stage discard {job}'")
    places = [said.find(word) for word in words]
    assert places == sorted(places), said
    assert -1 not in places, said
    world.store.set_metadata(DOUBT_KEY, "")
    world.run(300)
    said = world.store.staging(job).error
    assert "it is fetched as soon as a cloud lists it" in said
    assert "confirm record" not in said
    finish(world)
