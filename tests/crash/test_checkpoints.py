"""Checkpoints of jobs whose nodes die, among virtual machines: which are kept, which is put back, what is cleared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.staging import StageState as S
from burstd.domain.staging import Staging
from burstd.planner.lifecycle.spot_notices import notice_reason
from burstd.planner.staging.transfer_schedule import StorageUse
from burstd.staging.controller.tasks import StageFailed
from burstd.staging.submission.quota import QuotaUsage
from tests.crash.stage_world import LISTING_S, TICK_S, StageWorld
from tests.crash.workers import Delay

pytestmark = pytest.mark.crash

LINE = "#BURST checkpoint step-* every=60s keep=2 signal=USR1 within=30s\n"


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[StageWorld]:
    made = StageWorld(tmp_path, template=template)
    made.submit("7", run_s=1000.0, lines=LINE)
    made.run(200, made.phase("7", "running"))
    yield made
    made.kill()


def row(world: StageWorld) -> Staging:
    return world.store.staging("7")


def paths(world: StageWorld) -> list[str]:
    return [one.path for one in row(world).checkpoints]


def write(world: StageWorld, number: int) -> None:
    """The job writes one, and it is taken."""
    world.locations.states["7"] = f"step-{number}"
    world.run(100, lambda: f"step-{number}" in paths(world))
    assert paths(world)[-1] == f"step-{number}"


def restart(world: StageWorld) -> None:
    """Its node dies, and the job starts again."""
    before = world.slurm.jobs["7"].runs
    (node,) = world.slurm.jobs["7"].nodes
    world.break_node(node, requeue=True)
    world.run(1000, lambda: world.slurm.jobs["7"].runs > before and world.slurm.jobs["7"].phase == "running")


def test_the_newest_is_put_back_and_as_many_are_kept_as_asked_for(world: StageWorld) -> None:
    began = world.clock.now()
    assert world.controller is not None
    assert world.controller.job_environment("7")["BURST_CHECKPOINT"] == ""
    for number in (1, 2, 3):
        write(world, number)
    assert paths(world) == ["step-2", "step-3"]
    assert 170 < world.clock.now() - began < 220
    restart(world)
    assert world.locations.put_back == [("7", "0", "step-3")]
    assert world.controller.job_environment("7")["BURST_CHECKPOINT"].endswith("/out/step-3")
    write(world, 4)
    assert world.locations.pruned[-1] == ("7", "step-2", "step-3"), "step-1 is released before the next is brought"
    world.kill()
    world.start()
    assert world.controller.job_environment("7")["BURST_CHECKPOINT"].endswith("/out/step-4")
    restart(world)
    assert [path for _, _, path in world.locations.put_back] == ["step-3", "step-4"]
    world.calm()
    world.check_end()
    assert paths(world) == []
    assert world.locations.put_back == [], "removed with all of them"


def test_it_is_put_back_when_its_user_requeues_it(world: StageWorld) -> None:
    write(world, 1)
    world.slurm.requeue("7")
    world.run(1000, lambda: world.slurm.jobs["7"].runs == 2 and world.slurm.jobs["7"].phase == "running")
    assert world.locations.put_back == [("7", "0", "step-1")]


def test_one_that_the_store_has_lost_gives_way_to_the_one_before(world: StageWorld) -> None:
    write(world, 1)
    write(world, 2)
    world.locations.damaged.add("step-2")
    restart(world)
    assert world.locations.put_back == [("7", "0", "step-1")]
    assert world.locations.environments["7"]["BURST_CHECKPOINT"].endswith("/out/step-1"), "not step-2, which is damaged"
    world.locations.damaged.add("step-1")
    restart(world)
    assert (paths(world), row(world).state) == ([], S.FETCHED), "it begins anew"
    assert world.locations.environments["7"]["BURST_CHECKPOINT"] == ""
    assert not world.locations.violations


def test_what_is_damaged_is_not_promised_after_a_restart_of_burstd(world: StageWorld) -> None:
    write(world, 1)
    write(world, 2)
    world.locations.damaged.add("step-2")
    (node,) = world.slurm.jobs["7"].nodes
    world.break_node(node, requeue=True)
    world.run(1000, lambda: row(world).checkpoint_error != "")
    world.kill()
    world.start()
    world.run(1000, lambda: world.slurm.jobs["7"].runs == 2 and world.slurm.jobs["7"].phase == "running")
    assert world.locations.put_back == [("7", "0", "step-1")]
    assert not world.locations.violations


def test_a_job_that_slurm_does_not_requeue_does_not_start_with_what_is_not_there(world: StageWorld) -> None:
    write(world, 1)
    write(world, 2)
    world.locations.damaged.add("step-2")
    world.locations.faults["requeue", "7"] = StageFailed("Requested operation is disabled", retryable=False)
    world.break_node(world.slurm.jobs["7"].nodes[0], requeue=True)
    world.run(1000, lambda: world.slurm.jobs["7"].refused == 1)
    world.run(1000, lambda: world.slurm.jobs["7"].runs == 2 and world.slurm.jobs["7"].phase == "running")
    assert world.locations.put_back == [("7", "0", "step-1")]
    assert not world.locations.violations


def test_what_fails_is_told_tried_again_and_holds_nothing(world: StageWorld) -> None:
    world.locations.states["7"] = "step-1"
    world.locations.faults["checkpoint", "7"] = StageFailed("the store is full", retryable=True, full=True)
    world.run(100, lambda: bool(row(world).checkpoint_error))
    assert (row(world).checkpoint_error, row(world).state) == ("the store is full", S.FETCHED)
    failed = world.clock.now()
    world.run(100, lambda: bool(row(world).checkpoints))
    assert world.clock.now() - failed < 30
    assert row(world).checkpoint_error == ""


def test_one_larger_than_the_quota_is_not_taken(world: StageWorld) -> None:
    uses = QuotaUsage(StorageUse("ada", 50, 149), StorageUse("", 0, None))
    world.quotas = lambda _row, _sources: uses
    world.kill()
    world.start()
    world.locations.states["7"] = "step-1"
    world.run(100, lambda: bool(row(world).checkpoint_error))
    assert row(world).checkpoint_error == "the checkpoint has 100 B, and 99 B are left of the quota"


def notice(world: StageWorld, seconds: float) -> float:
    """The machine of the job is taken back; when it was announced."""
    (node,) = world.slurm.jobs["7"].nodes
    world.slurm.reasons[node] = notice_reason(Notice("i-1", NoticeKind.INTERRUPTION, world.clock.wall() + seconds))
    return world.clock.now()


def waited_for(world: StageWorld) -> bool:
    """Whether the job is left alone for its last checkpoint."""
    assert world.controller is not None
    return world.controller.data_views()["7"].last_checkpoint_until > world.clock.now()


def test_the_last_one_before_the_machine_goes(world: StageWorld) -> None:
    """It is taken whatever time it is, and no other after it; the clock was set meanwhile."""
    world.clock.jump(-5000.0)
    write(world, 1)
    world.locations.states["7"] = "step-2"
    told = notice(world, 60)
    world.run(60, lambda: waited_for(world))
    world.run(60, lambda: not waited_for(world))
    assert (paths(world)[-1], world.locations.told) == ("step-2", ["7"])
    assert world.clock.now() - told <= LISTING_S + TICK_S
    world.locations.states["7"] = "step-3"
    world.run(100)
    assert (paths(world)[-1], world.locations.told) == ("step-2", ["7"])


def test_the_last_one_before_another_project_gets_the_gpus(world: StageWorld) -> None:
    write(world, 1)
    world.locations.states["7"] = "step-2"
    world.leaving["7"] = world.clock.now() + 120
    world.run(60, lambda: waited_for(world))
    world.run(60, lambda: not waited_for(world))
    assert (paths(world)[-1], world.locations.told) == ("step-2", ["7"])
    restart(world)
    assert world.locations.put_back == [("7", "0", "step-2")]


def test_a_last_one_for_which_the_grace_is_too_short_is_given_up_at_its_end(world: StageWorld) -> None:
    write(world, 1)
    world.delays["stage:nodes"] = Delay(300.0)
    world.leaving["7"] = world.clock.now() + 20
    told = world.clock.now()
    world.run(60, lambda: waited_for(world))
    world.run(60, lambda: not waited_for(world))
    assert 19 <= world.clock.now() - told < 22


def test_a_last_one_that_takes_too_long_is_given_up_while_there_is_time_for_the_requeue(world: StageWorld) -> None:
    write(world, 1)
    world.delays["stage:nodes"] = Delay(300.0)
    told = notice(world, 60)
    world.run(60, lambda: waited_for(world))
    world.run(60, lambda: not waited_for(world))
    assert 49 <= world.clock.now() - told < 52


@pytest.mark.parametrize("seconds", [12.0, -100.0])
def test_a_notice_without_time_is_not_waited_for(world: StageWorld, seconds: float) -> None:
    write(world, 1)
    notice(world, seconds)
    world.run(30, lambda: waited_for(world))
    assert not waited_for(world)
    assert world.locations.told == []


@pytest.mark.parametrize("fails", [False, True])
def test_the_jobs_own_command_runs_before_the_last_one_is_taken(world: StageWorld, *, fails: bool) -> None:
    world.submit("8", run_s=1000.0, lines="#BURST checkpoint step-* command=./save.sh within=30s\n")
    world.run(200, world.phase("8", "running"))
    world.locations.states["8"] = "step-1"
    if fails:
        world.locations.faults["command", "8"] = StageFailed("the job has no process there", retryable=True)
    (node,) = world.slurm.jobs["8"].nodes
    world.slurm.reasons[node] = notice_reason(Notice("i-1", NoticeKind.INTERRUPTION, world.clock.wall() + 120))
    world.run(60, lambda: bool(world.store.staging("8").checkpoints))
    assert world.store.staging("8").checkpoints[-1].path == ("step-1" if fails else "step-by-command")
    assert world.locations.commands == ([] if fails else [("8", node, 30.0)])
    text = "was not run: the job has no process there" if fails else "ended with exit code 3 after 2 s"
    assert any(text in event.reason for event in world.store.events(subject="stage:8", limit=1000))
    world.run(100)
    assert len(world.locations.commands) <= 1
