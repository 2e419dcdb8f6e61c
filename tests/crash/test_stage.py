"""A job's data in every trouble that a job can have: home or held, nothing left, nothing moved twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import create_autospec

import pytest

from burstd.domain.staging import StageState as S
from burstd.slurm.hooks.stage_server import StageCall, StageReply
from burstd.staging.controller.tasks import StageFailed
from burstd.staging.volumes.turns import VolumeTurns
from tests.crash.stage_world import WORKER_QUEUES, StageWorld
from tests.crash.workers import Delay

pytestmark = pytest.mark.crash


@pytest.fixture
def world(tmp_path: Path, template: Path) -> Iterator[StageWorld]:
    """Transfers take three seconds each."""
    made = StageWorld(tmp_path, template=template)
    made.delays.update({lane: Delay(3.0) for lane in WORKER_QUEUES if lane != "stage:slurm"})
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
        "looking": S.WAITING, "sending": S.UPLOADING, "placing": S.FETCHING, "collecting": S.COLLECTING,
        "bringing": S.DELIVERING, "home": S.DELIVERED,
    }.get(when)  # fmt: skip
    until = world.is_(job, place) if place else world.phase(job, when)
    world.run(600, until)
    assert until(), world.report()


BURSTD = ["lives", "dies after", "dies before"]
NAMED = [nothing, cancel, requeue, node_dies]
"""Troubles that meet every death of burstd in the midst of every transfer; the others meet one each."""
CASES = [
    (trouble, when, burstd)
    for t, trouble in enumerate(TROUBLES)
    for w, when in enumerate(WHEN)
    for b, burstd in enumerate(BURSTD)
    if (t + w) % 3 == b or (trouble in NAMED and when in ("sending", "running", "collecting", "bringing"))
]


@pytest.mark.parametrize(("trouble", "when", "burstd"), CASES)
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
    assert not world.jobs_needing_attention()


AGAIN = StageFailed("the store does not answer", retryable=True)
NEVER = StageFailed("nobody may read /data/b", retryable=False)


def test_a_job_goes_through_once(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    finish(world)
    assert [kind for kind, _, _ in world.locations.completed_transfers] == [
        "look", "send", "place", "place", "collect", "collect", "bring", "clear",
    ]  # fmt: skip
    assert world.locations.woken_jobs == [job]
    assert {o.node for o in world.locations.delivered} == {"c1", "c2"}


def test_refused_input_holds_the_job_until_somebody_releases_it(world: StageWorld) -> None:
    job = world.submit("7")
    world.locations.faults["send", job] = NEVER
    world.run(60, world.phase(job, "held"))
    world.kill()
    world.start()
    world.run(120)
    assert ("7", "data_in", "refused") in world.slurm.hook_replies
    row = world.store.staging(job)
    assert (row.state, row.error) == (S.HELD, str(NEVER))
    assert world.controller is not None
    assert world.controller.retry(job, "root")
    finish(world)
    assert world.locations.delivered


def test_a_job_whose_node_cannot_run_it_gets_no_second_one_before_somebody_asks(world: StageWorld) -> None:
    """As where the image lacks the container's program."""
    job = world.submit("7")
    world.locations.faults["place", job] = NEVER
    world.run(600, world.phase(job, "held"))
    world.run(600)
    assert [hook for _, hook, result in world.slurm.hook_replies if result == "refused"] == ["pre_run", "data_in"]
    assert (world.store.staging(job).state, world.store.staging(job).error) == (S.HELD, str(NEVER))
    assert world.controller is not None
    assert world.controller.retry(job, "root") == "the data of job 7 goes on from waiting"
    finish(world)
    assert world.locations.delivered


@pytest.mark.parametrize("asked", ["at once", "when Slurm holds it"])
def test_a_job_that_cannot_have_its_volume_gets_no_second_node_before_somebody_asks(
    world: StageWorld, asked: str
) -> None:
    """Slurm starts a job again whose pre_run was refused."""
    faults = {S.FETCHING: "volume corpus: c1: the image lacks mkfs.ext4"}
    volumes = create_autospec(VolumeTurns, instance=True)
    volumes.hold_reason.side_effect = lambda row, _queue_id: faults.get(row.state, "")
    volumes.allocation_wait.return_value = volumes.start_wait.return_value = volumes.unmount_wait.return_value = ""
    world.volumes = volumes
    world.kill()
    world.start()
    job = world.submit("7", lines="#BURST volume corpus 1G\n")
    world.run(60, lambda: ("7", "pre_run", "refused") in world.slurm.hook_replies)
    assert world.store.staging(job).nodes == ("c1",)
    world.kill()
    world.start()
    if asked == "when Slurm holds it":
        world.run(600, world.phase(job, "held"))
        world.run(600)
        refusals = [hook for _, hook, result in world.slurm.hook_replies if result == "refused"]
        assert refusals == ["pre_run", "data_in"]
        row = world.store.staging(job)
        assert (row.state, row.error, row.nodes) == (S.HELD, faults[S.FETCHING], ())
    faults.clear()
    assert world.controller is not None
    assert world.controller.retry(job, "root") == "the data of job 7 goes on from waiting"
    reach(world, job, "running")
    finish(world)


def test_a_task_of_an_array_that_names_a_volume_is_held_at_once(world: StageWorld) -> None:
    """In the queue it has another id than for its hooks."""
    volumes = create_autospec(VolumeTurns, instance=True)
    volumes.hold_reason.side_effect = lambda row, queue_id: VolumeTurns.hold_reason(volumes, row, queue_id)
    world.volumes = volumes
    world.kill()
    world.start()
    job = world.submit("8", queue_id="7_1", lines="#BURST volume corpus 1G\n")
    world.run(60, world.phase(job, "held"))
    row = world.store.staging(job)
    assert "volume corpus: jobs of arrays and het jobs cannot have volumes" in row.error
    assert [result for _, hook, result in world.slurm.hook_replies if hook == "data_in"] == ["refused"]
    assert world.locations.completed_transfers == []


def test_one_node_of_two_is_tried_again_alone_and_after_its_pause(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "ready")
    for kind in ("place", "collect"):
        world.locations.faults[kind, job] = AGAIN
    reach(world, job, "running")
    assert world.count("place", job) == 2
    world.run(600, world.is_(job, S.DELIVERING))
    assert world.count("collect", job) == 2
    pauses = [e for e in world.store.events(subject="stage:7") if "tried again" in e.reason]
    assert len(pauses) == 2
    finish(world)


def test_one_user_s_slow_looks_keep_nobody_else_waiting(world: StageWorld) -> None:
    world.delays["stage:look"] = Delay(100.0)
    for job in "12345":
        world.submit(job)
    world.submit("6", user="bob")
    world.run(20)
    assert world.controller is not None
    looked_at = [job for job, readings in world.controller.progress_by_job().items() if readings]
    assert (len(looked_at), "6" in looked_at) == (3, True)
    finish(world)


def test_damaged_input_is_sent_again_while_the_job_keeps_its_nodes(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "ready")
    world.locations.faults["place", job] = StageFailed("an object is damaged", retryable=True, resend=True)
    reach(world, job, "running")
    assert (world.count("send", job), world.count("place", job)) == (2, 3)
    finish(world)


@pytest.mark.parametrize("kind", ["collect", "bring"])
@pytest.mark.parametrize("dies", [False, True])
def test_held_output_keeps_its_nodes_until_it_is_home_or_given_up(world: StageWorld, kind: str, dies: bool) -> None:
    job = world.submit("7")
    world.locations.faults[kind, job] = NEVER
    world.run(600, world.is_(job, S.HELD))
    if dies:
        world.kill()
        world.start()
    world.run(300)  # the world looks whether the node is kept
    world.check()
    assert world.jobs_needing_attention() == [job]
    assert world.phase(job, "data_out")()
    assert world.controller is not None
    if kind == "bring":
        assert world.controller.retry(job, "root")
    else:
        world.locations.discarded_jobs.add(job)
        assert world.controller.discard(job, "root")
    finish(world)
    assert bool(world.locations.delivered) is (kind == "bring")


def test_nothing_is_given_up_of_a_job_that_runs(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "running")
    assert world.controller is not None
    assert "has not ended" in world.controller.discard(job, "root")
    finish(world)
    assert world.locations.delivered


def test_a_full_disk_repeats_no_transfer(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    for state in (S.UPLOADING, S.FETCHING, S.COLLECTING, S.DELIVERING):
        world.run(600, world.is_(job, state))
        world.disk.writes_left = 0
        world.run(30)
        assert world.state(job) is state
        world.disk.writes_left = None
        world.run(6, lambda state=state: world.state(job) is not state)  # type: ignore[misc]
    finish(world)
    assert [world.count(kind, job) for kind in ("send", "place", "collect", "bring")] == [1, 2, 2, 1]


def test_a_silent_slurm_is_asked_again_for_a_job_that_is_not_on_record(world: StageWorld) -> None:
    world.slurm.silent = True
    job = world.submit("7")
    world.run(90)
    assert world.state(job) is None
    world.slurm.silent = False
    finish(world)
    assert world.locations.delivered


def test_a_slow_slurm_loses_no_task_of_an_array(world: StageWorld) -> None:
    job = world.submit("7", queue_id="5_1", run_s=200)
    reach(world, job, "running")
    world.kill()
    # Listings come, and show the task by a name that nobody knows so far.
    world.delays["stage:slurm"] = Delay(90.0)
    world.start()
    world.run(80)
    assert world.state(job) is S.FETCHED
    finish(world)


def test_a_job_whose_stage_out_slurm_forgot_is_brought_home(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "post_run")
    world.slurm.restart(recent=True)
    world.kill()
    world.start()
    world.run(60)
    assert world.phase(job, "stuck")()
    assert world.state(job) is S.DELIVERED
    finish(world)


def test_a_job_that_runs_twice_brings_both_home(world: StageWorld) -> None:
    job = world.submit("7", nodes=2, run_s=20)
    reach(world, job, "running")
    world.slurm.requeue(job)
    finish(world)
    assert {(o.run, o.node) for o in world.locations.delivered} == {(1, "c1"), (1, "c2"), (2, "c1"), (2, "c2")}


def test_polling_slurm_is_not_told_of_data_that_is_not_there(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "sending")
    said: list[StageReply] = []
    world.send_call(StageCall("test_data_in", job, 1001, 1001), said.append)
    world.run(1.0)
    assert not said
    finish(world)
    assert said[0].result == "ok"


def test_a_job_moved_from_premises_to_the_cloud_has_its_input_sent(world: StageWorld) -> None:
    job = world.submit("7", partition="onprem")
    reach(world, job, "ready")
    assert world.count("send", job) == 0
    world.slurm.jobs[job].partition = "burst"
    world.run(600, world.phase(job, "running"))
    assert world.count("send", job) == 1
    # Nobody could have known.
    assert world.locations.violations.pop() == "job 7 was allocated before its input was in the store"
    finish(world)


def test_few_are_sent_at_once(world: StageWorld) -> None:
    for n in range(8):
        world.submit(str(n), user="ada" if n % 2 else "bob", run_s=1)
    finish(world)
    assert len(world.locations.delivered) == 8


def test_a_node_that_went_costs_what_it_cost_and_is_told(world: StageWorld) -> None:
    job = world.submit("7", nodes=2, run_s=180)
    reach(world, job, "collecting")
    world.break_node("c1", noticed_s=0.5, again_s=0.5)
    world.run(600, world.is_(job, S.DELIVERED))
    (ended,) = world.locations.ended[job]
    assert (ended.lost_nodes, ended.cost) == (("c1",), "0.1000 EUR")
    finish(world)


def test_a_job_that_gets_other_nodes_is_not_told_to_start_there_without_its_input(world: StageWorld) -> None:
    job = world.submit("7", nodes=2)
    reach(world, job, "placing")
    world.slurm.restart(recent=True, other_nodes=True)
    world.run(600, world.phase(job, "running"))
    world.check()
    assert world.slurm.jobs[job].nodes == ("c3", "c4")
    finish(world)


def test_nobody_stages_for_a_client_that_slurm_has_killed(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "sending")
    world.slurm.restart(recent=False)
    finish(world)
    assert len([e for e in world.store.events(subject="stage:7") if not e.old]) == 2


def test_cancelling_the_next_run_does_not_give_up_the_output_of_the_last(world: StageWorld) -> None:
    job = world.submit("7")
    reach(world, job, "running")
    world.locations.faults["collect", job] = NEVER
    world.slurm.restart(recent=True, other_nodes=True)
    world.run(600, world.phase(job, "held"))
    world.kill()
    world.start()
    world.slurm.cancel(job)
    world.run(60)
    assert world.phase(job, "gone")()
    assert world.jobs_needing_attention() == [job]
    finish(world)
    assert len(world.locations.delivered) == 1
