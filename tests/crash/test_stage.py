"""A job's data in every trouble that a job can have: home or held, nothing left, nothing moved twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from burstd.model.data import StageState as S
from tests.crash.stage_world import LANES, StageWorld
from tests.crash.workers import Delay

pytestmark = pytest.mark.crash


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[StageWorld]:
    """Transfers take three seconds each."""
    made = StageWorld(tmp_path, template=template)
    made.delays.update({lane: Delay(3.0) for lane in LANES if lane != "stage:slurm"})
    yield made
    made.kill()


def finish(world: StageWorld) -> None:
    """Everything comes to its end without a person."""
    world.calm()
    world.check_end()


Trouble = Callable[[StageWorld, str], None]


def cancel(world: StageWorld, job: str) -> None:
    world.slurm.cancel(job)


def cancel_in_a_hurry(world: StageWorld, job: str) -> None:
    world.slurm.cancel(job, hurry=True)


def requeue(world: StageWorld, job: str) -> None:
    world.slurm.requeue(job)


def node_dies(world: StageWorld, job: str) -> None:
    for node in world.slurm.jobs[job].nodes[:1]:
        world.break_node(node)


def node_dies_and_requeue(world: StageWorld, job: str) -> None:
    for node in world.slurm.jobs[job].nodes[:1]:
        world.break_node(node, requeue=True)


def node_is_another_soon(world: StageWorld, job: str) -> None:
    for node in world.slurm.jobs[job].nodes[:1]:
        world.break_node(node, noticed_s=0.5, again_s=0.5)


def slurm_restarts(world: StageWorld, _job: str) -> None:
    world.slurm.restart(recent=False)


def slurm_forgets_a_little(world: StageWorld, _job: str) -> None:
    world.slurm.restart(recent=True)


def slurm_forgets_and_moves(world: StageWorld, _job: str) -> None:
    world.slurm.restart(recent=True, other_nodes=True)


def slurm_loses_the_job(world: StageWorld, job: str) -> None:
    world.slurm.lose(job)


def number_is_given_again(world: StageWorld, job: str) -> None:
    world.slurm.lose(job)
    world.submit(job, user="bob")


def nothing(_world: StageWorld, _job: str) -> None:
    pass


TROUBLES: list[Trouble] = [
    nothing, cancel, cancel_in_a_hurry, requeue, node_dies, node_dies_and_requeue, node_is_another_soon,
    slurm_restarts, slurm_forgets_a_little, slurm_forgets_and_moves, slurm_loses_the_job, number_is_given_again,
]  # fmt: skip
WHEN = ["setup", "looking", "sending", "ready", "placing", "running", "post_run", "collecting", "bringing", "home"]


def reach(world: StageWorld, job: str, when: str) -> None:
    """The world as it is in the midst of a step."""
    place = {
        "looking": S.WAITING, "sending": S.SENDING, "placing": S.PLACING, "collecting": S.COLLECTING,
        "bringing": S.BRINGING, "home": S.HOME,
    }.get(when)  # fmt: skip
    until = world.is_(job, place) if place else world.phase(job, when)
    world.run(600, until)
    assert until(), world.report()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("burstd", ["lives", "dies after", "dies before"])
def test_in_the_midst(world: StageWorld, trouble: Trouble, when: str, burstd: str) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, when)
    if burstd == "dies before":
        world.kill()
    trouble(world, job)
    if burstd == "dies after":
        world.run(0.001)
        world.kill()
    world.run(2.0)
    world.start()
    finish(world)
    assert not world.held()
