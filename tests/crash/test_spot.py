"""Machines that a cloud takes back: by its queue or by their own watch, with burstd alive or dead meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from burstd.domain.claim import ClaimState
from burstd.domain.plan import JobRun, RequeueJobs
from burstd.domain.plugins.provider import Notice
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import Snapshot
from burstd.planner.demand.requeued_jobs import interruptions_over_limit
from burstd.reconciler.reconciler import Reconciler
from tests.crash.test_directed import COMPLETED, PENDING, RUNNING, ends_well, running
from tests.crash.world import ADMIN_REASON, PACE, SLURM, TUNING, World, memory_folder
from tests.planner.worlds import make_snapshot
from tests.virtual.job import JobSpec
from tests.virtual.provider import SimProvider

pytestmark = pytest.mark.crash

JOB = JobSpec(run_s=300, time_limit_s=20 * 3600)
CONF = replace(SLURM, requeue_delay_s=121.0)


@pytest.fixture(params=["sandbox", "sim", "batches"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    """A site that may use spot machines."""
    return World(tmp_path, template=template, alpha=request.param, spot=True, conf=CONF)


def take_back(w: World, job: str, notice_s: float | None) -> str:
    """Has the cloud announce the end of the machine under a job; returns the slot."""
    slot = w.slurm.job(job).nodes[0]
    one = w.instance_of(w.claim_on(slot))
    w.kits[one.provider].interrupt_spot(one.id, notice_s)
    return slot


def _last_snapshot(w: World) -> Snapshot:
    """An empty one before the first loop."""
    latest = w.reconciler.latest if w.reconciler is not None else None
    return latest[0] if latest is not None else make_snapshot()


def interruptions(w: World, job: str) -> list[int]:
    return [e.data["run"] for e in w.store.events(subject=f"job:{job}") if e.new == "interrupted"]


def test_an_announced_end_drains_the_node_and_the_job_begins_anew_at_once(world: World) -> None:
    job = world.slurm.submit(JOB)
    first = running(world, job)
    assert first.offer.spot
    slot = take_back(world, job, 120.0)
    world.run_until(lambda: world.states(job) == [PENDING], 12)
    node = world.slurm.node(slot)
    assert node.reason.startswith("burstd: interruption, ends 2027-")
    assert "DRAIN" in node.flags
    second = running(world, job, 60)
    assert second.id != first.id
    world.run_until(lambda: world.store.claim(first.id).state is ClaimState.GONE, 90)
    assert (interruptions(world, job), world.slurm.job(job).restarts) == ([0], 1)
    ends_well(world, job)
    assert world.slurm.job(job).restarts == 1


def test_after_enough_interruptions_a_job_gets_a_machine_on_demand(world: World) -> None:
    job = world.slurm.submit(JOB)
    offers = []
    for _ in range(TUNING.spot_interruptions):
        claim = running(world, job, 120)
        offers.append(claim.offer.spot)
        take_back(world, job, 120.0)
        world.run_until(lambda: world.states(job) == [PENDING], 15)
    last = running(world, job, 120)
    assert (offers, last.offer.spot) == ([True] * TUNING.spot_interruptions, False)
    assert "on demand: its nodes were interrupted 2 times" in world.store.claim_events(last.id)[0].reason
    ends_well(world, job)


def test_a_machine_lost_without_a_word_counts_as_well(world: World) -> None:
    job = world.slurm.submit(JOB)
    for run in range(TUNING.spot_interruptions):
        one = world.instance_of(running(world, job, 120))
        world.kits[one.provider].end_instance(one.id)
        world.run_until(lambda: world.states(job) == [PENDING], 60)
        assert interruptions(world, job) == list(range(run + 1))
    assert not running(world, job, 60).offer.spot
    ends_well(world, job)


def test_a_hint_lets_the_job_end_and_takes_no_new_one(world: World) -> None:
    job = world.slurm.submit(replace(JOB, run_s=100))
    claim = running(world, job)
    slot = take_back(world, job, None)
    world.run_until(lambda: "DRAIN" in world.slurm.node(slot).flags, 12)
    other = world.slurm.submit(JobSpec(run_s=30))
    world.run_until(lambda: world.states(other) == [RUNNING], 60)
    assert world.slurm.job(other).nodes != (slot,)
    world.run_until(lambda: world.states(job) == [COMPLETED], 120)
    world.run_until(lambda: world.store.claim(claim.id).state is ClaimState.GONE, 90)
    assert (world.slurm.job(job).restarts, interruptions(world, job)) == (0, [])
    ends_well(world, job, other)


def test_an_interruption_overrules_a_hint(world: World) -> None:
    job = world.slurm.submit(JOB)
    running(world, job)
    slot = take_back(world, job, None)
    world.run_until(lambda: world.slurm.node(slot).reason == "burstd: rebalance hint", 12)
    take_back(world, job, 60.0)
    world.run_until(lambda: world.states(job) == [PENDING], 12)
    ends_well(world, job)


def test_a_job_that_must_not_be_requeued_runs_until_its_machine_ends(world: World) -> None:
    job = world.slurm.submit(replace(JOB, requeue=False))
    claim = running(world, job)
    take_back(world, job, 60.0)
    world.run_until(lambda: bool(world.slurm.job(job).comment), 15)
    assert "Requested operation is presently disabled" in world.slurm.job(job).comment
    assert interruptions(world, job) == [0]
    assert [e.data for e in world.store.events(subject=f"job:{job}") if e.new == "not requeued"] == [{"run": 0}]
    assert world.states(job) == [RUNNING]
    assert world.reconciler is not None
    assert "refused" not in world.reconciler.alarm
    world.run_until(lambda: world.states(job) != [RUNNING], 120)
    assert interruptions(world, job) == [0]
    world.run_until(lambda: world.store.claim(claim.id).state is ClaimState.GONE, 90)


@pytest.mark.parametrize("how", ["cancelled", "ended"])
def test_a_job_that_ends_before_it_is_requeued_is_not_run_again(
    world: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.slurm.submit(JOB)
    running(world, job)
    requeue = world.slurm.requeue_jobs
    asked: list[str] = []

    def late(ids: Collection[str]) -> None:
        asked.extend(ids)
        if how == "cancelled":
            world.slurm.cancel(job)
        else:
            world.slurm._jobs._finish(world.slurm.job(job))
        requeue(ids)

    monkeypatch.setattr(world.slurm, "requeue_jobs", late)
    take_back(world, job, 120.0)
    final = JobState.CANCELLED if how == "cancelled" else COMPLETED
    world.run_until(lambda: world.states(job) == [final], 30)
    world.run(60)
    assert (asked, world.slurm.job(job).restarts, world.states(job)) == ([job], 0, [final])


def test_a_requeue_for_another_reason_is_not_held_against_the_cloud(world: World) -> None:
    job = world.slurm.submit(JOB)
    running(world, job)
    assert world.reconciler is not None
    run = JobRun(job, (job,), 0, "the line is broken", "mounts")
    world.reconciler._executor.slurm.apply(RequeueJobs((run,)))
    for _ in range(2):
        world.run_until(lambda: _last_snapshot(world).interruptions == {job: frozenset({0})}, 30)
        assert interruptions_over_limit(_last_snapshot(world), [job], 1) == 0
        world.kill()
        world.start()
    assert [e.new for e in world.store.events(subject=f"job:{job}") if e.data.get("run") == 0] == ["requeued"]
    ends_well(world, job)


def test_several_nodes_are_taken_back_at_once(world: World) -> None:
    jobs = [world.slurm.submit(replace(JOB, exclusive=True)) for _ in range(3)]
    for job in jobs:
        running(world, job)
    for job in jobs:
        take_back(world, job, 120.0)
    world.run_until(lambda: all(world.states(job) == [PENDING] for job in jobs), 15)
    assert [interruptions(world, job) for job in jobs] == [[0], [0], [0]]
    ends_well(world, *jobs)


def test_a_node_drains_itself_while_burstd_is_dead(world: World) -> None:
    job = world.slurm.submit(JOB)
    one = world.instance_of(running(world, job))
    world.kill()
    world.kits[one.provider].interrupt_spot(one.id, 100.0)
    world.clock.advance(20)
    assert "DRAIN" in world.slurm.node(world.slurm.job(job).nodes[0]).flags
    world.start()
    world.run_until(lambda: world.states(job) == [PENDING], 10)
    ends_well(world, job)


def test_a_queue_alone_is_enough_and_is_emptied(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="none")  # No spot machines: none watches.
    job = w.slurm.submit(JOB)
    running(w, job)
    take_back(w, job, 200.0)
    w.run_until(lambda: w.states(job) == [PENDING], 70)
    w.run_until(lambda: not w.kits["beta"].provider.notices(), 70)  # type: ignore[attr-defined]
    ends_well(w, job)


def test_a_queue_without_news_costs_no_loop_and_none_is_not_asked(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: Counter[str] = Counter()
    step, notices = Reconciler.step, SimProvider.notices

    def counted_step(self: Reconciler) -> float:
        begun["loops"] += 1
        return step(self)

    def counted_notices(self: SimProvider) -> Sequence[Notice]:
        begun["asked"] += 1
        return notices(self)

    monkeypatch.setattr(Reconciler, "step", counted_step)
    monkeypatch.setattr(SimProvider, "notices", counted_notices)
    seen = []
    for has in (True, False):
        monkeypatch.setattr(SimProvider, "notice_markets", frozenset({"spot"} if has else ()))
        folder = tmp_path / str(has)
        folder.mkdir()
        w = World(folder, template=template, alpha="sim", spot=True)
        running(w, w.slurm.submit(replace(JOB, run_s=5000)))
        assert w.reconciler is not None
        w.reconciler.queue_is_watched = True
        begun.clear()
        w.run(300)
        seen.append((begun["loops"], begun["asked"]))
    (with_queue, asked), (without, unasked) = seen
    assert (unasked, asked >= 300 / PACE.notices_s) == (0, True)
    assert abs(with_queue - without) <= 2


def test_a_queue_that_cannot_be_read_is_an_alarm_and_no_more(tmp_path: Path, template: Path) -> None:
    w = World(tmp_path, template=template, alpha="none")
    job = w.slurm.submit(JOB)
    running(w, job)
    w.kits["beta"].fail("down", 3)
    w.run_until(lambda: w.reconciler is not None and "notices of provider beta" in w.reconciler.alarm, 200)
    w.kits["beta"].heal()
    w.run_until(lambda: w.reconciler is not None and not w.reconciler.alarm, 100)
    ends_well(w, job)


@pytest.mark.parametrize("after_s", [1.0, 5.0, 14.0])
def test_a_machine_that_is_no_node_yet_is_given_up(world: World, after_s: float) -> None:
    job = world.slurm.submit(JOB)
    world.run_until(lambda: bool(world.running_instances()), 10)
    [one] = world.running_instances()
    world.run(after_s)
    world.kits[one.provider].interrupt_spot(one.id, 300.0)
    claim = running(world, job, 120)
    assert claim.id != one.claim_id
    world.run_until(lambda: not any(i.id == one.id for i in world.running_instances()), 60)
    assert world.store.claim(one.claim_id).error == "interrupted"
    ends_well(world, job)


def test_a_person_s_drain_and_words_stay(world: World) -> None:
    job = world.slurm.submit(JOB)
    running(world, job)
    slot = world.slurm.job(job).nodes[0]
    world.slurm.drain([slot], ADMIN_REASON)
    take_back(world, job, 120.0)
    world.run_until(lambda: world.states(job) == [PENDING], 12)
    assert world.slurm.node(slot).reason.startswith(f"{ADMIN_REASON}; burstd: interruption")
    world.run_until(lambda: world.slurm.node(slot).view(0.0).powered_down, 90)
    world.slurm.drain([slot], f"{ADMIN_REASON}; burstd: rebalance hint")
    world.run(60)
    assert "DRAIN" in world.slurm.node(slot).flags
    world.slurm.resume([slot])
    ends_well(world, job)


def test_a_drain_that_outlives_its_machine_is_taken_off(world: World) -> None:
    world.run(5)
    world.slurm.drain(["c1", "c2"], "burstd: interruption, ends 2027-01-15T08:00:00Z")
    world.run_until(lambda: not any("DRAIN" in world.slurm.node(s).flags for s in ("c1", "c2")), 30)
    job = world.slurm.submit(JobSpec(run_s=30))
    assert running(world, job).slot == "c1"
    ends_well(world, job)


def test_a_het_job_begins_anew_as_a_whole(world: World) -> None:
    job = world.slurm.submit(JOB, JOB)
    world.run_until(lambda: set(world.states(job)) == {RUNNING}, 120)
    take_back(world, f"{job}+1", 120.0)
    world.run_until(lambda: all(part.restarts == 1 for part in world.slurm.all_of(job)), 15)
    assert [interruptions(world, f"{job}+{i}") for i in (0, 1)] == [[0], [0]]
    world.run_until(lambda: set(world.states(job)) == {RUNNING}, 120)
    ends_well(world, job)


@pytest.mark.parametrize("alpha", ["sandbox", "sim"])
def test_whatever_dies_on_the_way_the_run_counts_once(tmp_path: Path, template: Path, alpha: str) -> None:
    @contextmanager
    def taken_back() -> Iterator[tuple[World, str]]:
        with memory_folder(tmp_path) as folder:
            w = World(folder, template=template, alpha=alpha, spot=True, conf=CONF)
            job = w.slurm.submit(JOB)
            running(w, job)
            take_back(w, job, 60.0)
            yield w, job
            w.kill()

    with taken_back() as (w, _), w.recorded_places():
        w.run(15)
    for place in (number for number in w.crash_points.distinct_places() if number < 60):
        with taken_back() as (w, job):
            w.crash_points.arm(place)
            w.run(15)
            assert w.reconciler is None, place
            w.start()
            w.run_until(lambda job=job, w=w: w.slurm.job(job).restarts == 1 and w.states(job) == [RUNNING], 300)  # type: ignore[misc]
            assert interruptions(w, job) == [0], w.crash_points.passed[-1]
            ends_well(w, job)
