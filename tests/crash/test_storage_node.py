"""A storage node in virtual time: one machine whatever dies, none when nothing needs it, never one without an owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import pytest

from burstd.db import Store
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.plugins.provider import Idempotency
from burstd.domain.slurm.job import JobState
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import Directives, StageIn, StageState, Staging, StagingView
from burstd.domain.storage_node import StorageNodeView
from burstd.domain.volume import VolumeNeed
from tests.crash.clouds import CPU
from tests.crash.test_directed import ends_well
from tests.crash.workers import Delay
from tests.crash.world import SLOTS, World
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

IDLE_S = 100.0
SLOT = "storage-near"
POOL = Pool(SLOT, (SLOT,), (), CPU, (OfferRule("alpha", ("cpu.*",)), OfferRule("beta", ("cpu.*",))))


class StagingWithStorageNode:
    """Staging with a store whose node is launched. See Data."""

    def __init__(self) -> None:
        self.configured = True

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim], leaving: Mapping[str, float]) -> float:
        del slurm, claims, leaving
        return float("inf")

    def views(self) -> Mapping[str, StagingView]:
        return {job_id: StagingView(StageState.WAITING, 0.0, store="near") for job_id in ("7", "8")}

    def alarms(self) -> Sequence[str]:
        return ()

    def volume_needs(self) -> Mapping[str, VolumeNeed]:
        return {}

    def store_nodes(self) -> Sequence[StorageNodeView]:
        return (StorageNodeView("near", POOL, IDLE_S),) if self.configured else ()


@pytest.fixture(params=["sandbox", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    """A site that stages, once with each cloud as the cheaper one."""
    return World(tmp_path, template=template, alpha=request.param, stage=StagingWithStorageNode())


def add_waiting_job(store: Store, job_id: str = "7") -> None:
    """A job's input waits."""
    directives = Directives((StageIn("data", "data"),))
    store.make_staging(Staging(job_id, "ada", 1, 1, directives, StageState.WAITING, 0.0, 0.0, store="near"))


def clear_job(store: Store, job_id: str = "7") -> None:
    """It does not any more."""
    store.transition_staging(job_id, StageState.WAITING, StageState.CLEARED, "cancelled")


def node(w: World) -> Claim | None:
    return next((c for c in w.claims() if c.cause is Cause.STORAGE), None)


def in_service(w: World) -> bool:
    if w.reconciler is None:
        w.start()
    claim = node(w)
    return claim is not None and claim.state is ClaimState.IN_SERVICE


def node_terminates(w: World) -> None:
    """Nothing needs it: it goes, and all is paid for."""
    clear_job(w.store)
    began = w.clock.now()
    w.run_until(lambda: not w.running_instances(), 2 * IDLE_S + 100)
    assert w.clock.now() - began >= IDLE_S - 1
    ends_well(w)


def test_it_lives_while_it_is_needed_beside_slurms_nodes_which_know_nothing_of_it(world: World) -> None:
    world.run(20)
    assert not world.launched_instances()
    add_waiting_job(world.store)
    job = world.slurm.submit(JobSpec(run_s=30))
    world.run_until(lambda: in_service(world), 120)
    claim = node(world)
    assert claim is not None
    world.run(3 * IDLE_S)
    assert world.states(job) == [JobState.COMPLETED]
    assert [i.claim_id for i in world.running_instances()] == [claim.id], "it is needed, the job's node is not"
    [gate] = world.slurm.reservations()
    assert gate.nodes == SLOTS
    assert all(n.name != SLOT for n in world.slurm.nodes())
    node_terminates(world)
    assert world.store.claim(claim.id).cost(world.clock.now()) > 0
    assert {line.key for line in world.store.bill("pool", 0.0) if line.cost} == {"cpu", SLOT}


def life(w: World, places: tuple[int, int]) -> tuple[list[str], list[str]]:
    """From need to end, killed at one place on the way up and at one on the way down; the places that were passed."""
    w.run(20)
    add_waiting_job(w.store)
    w.crash_points.arm(places[0])
    w.run_until(lambda: in_service(w), 300)
    up = list(w.crash_points.passed)
    assert len(w.launched_instances()) == 1, w.report()
    w.crash_points.disarm()
    clear_job(w.store)
    w.run(IDLE_S)
    w.crash_points.arm(places[1])
    end = w.clock.now() + 200
    while w.running_instances() or w.reconciler is None:
        assert w.clock.now() < end, w.report()
        w.start()
        w.run(1.0)
    down = list(w.crash_points.passed)
    assert len(w.launched_instances()) == 1, w.report()
    ends_well(w)
    w.kill()
    return up, down


def first_of_each(passed: list[str]) -> list[int]:
    """The first place of each kind that has to do with the machine or the record of it."""
    found: dict[str, int] = {}
    for number, place in enumerate(passed, 1):
        words = place.replace("(", " ").split()
        kind = " ".join([*words[:2], *(w for w in words if w.startswith("<ClaimState"))])
        if not any(other in kind for other in ("remarks", "pins", "offers", "jobs", "nodes", "reservations", "meta")):
            found.setdefault(kind, number)
    return list(found.values())


def test_a_burstd_that_is_killed_anywhere_leaves_one_machine_and_its_owner(tmp_path: Path, template: Path) -> None:
    def site(name: str) -> World:
        (tmp_path / name).mkdir()
        return World(tmp_path / name, template=template, alpha="sandbox", stage=StagingWithStorageNode())

    never = 10**6
    up, down = life(site("whole"), (never, never))
    ups, downs = first_of_each(up), first_of_each(down)
    assert any("launch" in up[n - 1] for n in ups)
    assert any("terminate" in down[n - 1] for n in downs)
    for number, places in enumerate(zip_longest(ups, downs, fillvalue=never)):
        life(site(str(number)), places)


@pytest.mark.parametrize("way", list(Idempotency))
@pytest.mark.parametrize("kind", ["answers lost", "requests lost", "requests late"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_launch_without_an_answer_makes_one_machine(
    tmp_path: Path, template: Path, way: Idempotency, kind: str, crash: bool
) -> None:
    w = World(tmp_path, template=template, alpha="none", beta=way, lag_s=4.0, stage=StagingWithStorageNode())
    w.run(5)
    w.kits["beta"].fail(kind, 2)
    w.delays["beta"] = Delay(before_s=40.0)
    add_waiting_job(w.store)
    if crash:
        w.run_until(lambda: w.launch_sent("beta"), 60)
        w.kill()
        w.start()
    w.run_until(lambda: in_service(w), 400)
    assert len(w.launched_instances()) == 1
    w.delays.clear()
    node_terminates(w)


def test_a_node_that_is_lost_is_replaced_while_it_is_needed(world: World) -> None:
    add_waiting_job(world.store)
    world.run_until(lambda: in_service(world), 120)
    first = node(world)
    assert first is not None
    one = world.instance_of(first)
    world.kits[one.provider].end_instance(one.id)
    world.run_until(lambda: world.store.claim(first.id).error == "lost", 90)
    world.run_until(lambda: in_service(world), 200)
    second = node(world)
    assert second is not None
    assert second.id != first.id
    node_terminates(world)


@pytest.mark.parametrize(("kind", "n"), [("launch refused", 1), ("bad boot", 1), ("bad boot", 2)])
def test_a_stockout_or_a_bad_boot_moves_to_the_next_offer(world: World, kind: str, n: int) -> None:
    world.run(5)
    world.kits["alpha"].fail(kind, n)
    add_waiting_job(world.store)
    world.run_until(lambda: in_service(world), 400)
    claim = node(world)
    assert claim is not None
    assert claim.offer.provider == "beta"
    node_terminates(world)


def test_needed_again_before_it_went_it_stays(world: World) -> None:
    add_waiting_job(world.store)
    world.run_until(lambda: in_service(world), 120)
    clear_job(world.store)
    world.run(IDLE_S / 2)
    add_waiting_job(world.store, "8")
    world.run(3 * IDLE_S)
    assert in_service(world)
    assert len(world.launched_instances()) == 1
    clear_job(world.store, "8")
    world.run_until(lambda: not world.running_instances(), 3 * IDLE_S)


def test_a_store_that_leaves_the_settings_takes_its_node_along(tmp_path: Path, template: Path) -> None:
    near = StagingWithStorageNode()
    w = World(tmp_path, template=template, stage=near)
    add_waiting_job(w.store)
    w.run_until(lambda: in_service(w), 120)
    clear_job(w.store)
    near.configured = False
    w.run_until(lambda: not w.running_instances(), 60)
    ends_well(w)


def test_burstd_on_hold_launches_none_and_ends_none(world: World) -> None:
    world.store.set_metadata("paused", "an administrator looks")
    add_waiting_job(world.store)
    world.run(100)
    assert not world.launched_instances()
    world.store.set_metadata("paused", "")
    world.run_until(lambda: in_service(world), 120)
    world.store.set_metadata("paused", "an administrator looks")
    clear_job(world.store)
    world.run(3 * IDLE_S)
    assert in_service(world)
    world.store.set_metadata("paused", "")
    world.run_until(lambda: not world.running_instances(), 3 * IDLE_S)
