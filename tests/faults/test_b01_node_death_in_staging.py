"""A node that dies, or a cancel, in every phase of staging: the job starts again, or ends, and no hook waits on."""

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
PHASES = ["setup", *STATES, "ready", "cleaning", "running", "post_run"]


@pytest.fixture
def world(template: Path) -> Iterator[StageWorld]:
    """Transfers take three seconds each."""
    with memory_folder() as folder:
        made = StageWorld(folder, template=template)
        made.delays.update({lane: Delay(3.0) for lane in WORKER_QUEUES if lane != "stage:slurm"})
        yield made
        made.kill()


def reach(world: StageWorld, job: str, when: str) -> None:
    if when == "cleaning":
        reach(world, job, "placing")
        world.slurm.requeue(job)
    until = world.is_(job, STATES[when]) if when in STATES else world.phase(job, when)
    world.run(600, until)
    assert until(), world.report()


def refusals(world: StageWorld, job: str) -> int:
    return world.slurm.hook_replies.count((job, "pre_run", "refused"))


def finish(world: StageWorld) -> None:
    world.calm()
    world.check_end()


@pytest.mark.parametrize("burstd", ["lives", "dies after", "dies before"])
@pytest.mark.parametrize("loss", ["dies", "dies unnoticed", "requeue"])
def test_a_job_whose_nodes_are_lost_while_its_input_is_placed_starts_again(
    world: StageWorld, loss: str, burstd: str
) -> None:
    """Slurm tears it down at once, ends no pre_run, and waits for its answer before it starts the job again."""
    job = world.submit("7", nodes=2)
    reach(world, job, "placing")
    if burstd == "dies before":
        world.kill()
    if loss == "requeue":
        world.slurm.requeue(job)
    else:
        world.break_node("c1", requeue=True, noticed_s=60.0 if loss == "dies unnoticed" else 0.5)
    assert world.phase(job, "cleaning")()
    if burstd == "dies after":
        world.run(2.5)
        world.kill()
    world.run(5.0)
    world.start()
    world.run(45, lambda: refusals(world, job) > 0)
    assert refusals(world, job) == 1, world.report()
    assert world.slurm.jobs[job].runs == 0
    world.run(600, world.phase(job, "running"))
    assert world.slurm.jobs[job].life == 2
    finish(world)
    assert {output.run for output in world.locations.delivered} == {1}


def test_a_job_that_is_not_requeued_ends(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "placing")
    world.break_node("c1", requeue=False)
    world.run(60, world.phase(job, "gone"))
    assert world.phase(job, "gone")(), world.report()
    assert world.slurm.jobs[job].state == "NODE_FAIL"
    finish(world)


def test_no_word_of_slurm_no_refusal(world: StageWorld) -> None:
    """Whether the nodes are gone is Slurm's to say: while it is silent, pre_run waits."""
    job = world.submit("7")
    reach(world, job, "placing")
    world.slurm.silent = True
    world.slurm.requeue(job)
    world.run(90)
    assert not refusals(world, job)
    world.slurm.silent = False
    world.run(60, lambda: refusals(world, job) > 0)
    finish(world)
    assert world.locations.delivered


@pytest.mark.parametrize("when", PHASES)
@pytest.mark.parametrize("trouble", ["node", "node, requeue", "cancel", "hurry"])
def test_in_every_phase(world: StageWorld, when: str, trouble: str) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, when)
    if trouble.startswith("node"):
        world.break_node("c1", requeue="requeue" in trouble)
    else:
        world.slurm.cancel(job, hurry=trouble == "hurry")
    finish(world)
    assert not world.jobs_needing_attention()
