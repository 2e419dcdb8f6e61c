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
from burstd.domain.staging import DataView, Directives, StageIn, StageState, Staging
from burstd.domain.storage_node import StoreNode
from tests.crash.clouds import CPU
from tests.crash.test_directed import ends_well
from tests.crash.workers import Delay
from tests.crash.world import SLOTS, World
from tests.virtual.job import JobSpec

pytestmark = pytest.mark.crash

IDLE_S = 100.0
SLOT = "storage-near"
POOL = Pool(SLOT, (SLOT,), (), CPU, (OfferRule("alpha", ("cpu.*",)), OfferRule("beta", ("cpu.*",))))


class Near:
    """Staging with a store whose node is launched. See Data."""

    def __init__(self) -> None:
        self.configured = True

    def step(self, slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        del slurm, claims
        return float("inf")

    def views(self) -> Mapping[str, DataView]:
        return {job_id: DataView(StageState.WAITING, 0.0, store="near") for job_id in ("7", "8")}

    def alarms(self) -> Sequence[str]:
        return ()

    def store_nodes(self) -> Sequence[StoreNode]:
        return (StoreNode("near", POOL, IDLE_S),) if self.configured else ()


@pytest.fixture(params=["sandbox", "sim"])
def world(request: pytest.FixtureRequest, tmp_path: Path, template: Path) -> World:
    """A site that stages, once with each cloud as the cheaper one."""
    return World(tmp_path, template=template, alpha=request.param, stage=Near())


def wants(store: Store, job_id: str = "7") -> None:
    """A job's input waits."""
    directives = Directives((StageIn("data", "data"),))
    store.make_staging(Staging(job_id, "ada", 1, 1, directives, StageState.WAITING, 0.0, 0.0, store="near"))


def over(store: Store, job_id: str = "7") -> None:
    """It does not any more."""
    store.move_staging(job_id, StageState.WAITING, StageState.CLEARED, "cancelled")


def node(w: World) -> Claim | None:
    return next((c for c in w.claims() if c.cause is Cause.STORAGE), None)


def is_open(w: World) -> bool:
    if w.reconciler is None:
        w.start()
    claim = node(w)
    return claim is not None and claim.state is ClaimState.OPEN


def ends(w: World) -> None:
    """Nothing needs it: it goes, and all is paid for."""
    over(w.store)
    began = w.clock.now()
    w.run_until(lambda: not w.living(), 2 * IDLE_S + 100)
    assert w.clock.now() - began >= IDLE_S - 1
    ends_well(w)


def test_it_lives_while_it_is_needed_beside_slurms_nodes_which_know_nothing_of_it(world: World) -> None:
    world.run(20)
    assert not world.made()
    wants(world.store)
    job = world.slurm.submit(JobSpec(run_s=30))
    world.run_until(lambda: is_open(world), 120)
    claim = node(world)
    assert claim is not None
    world.run(3 * IDLE_S)
    assert world.states(job) == [JobState.COMPLETED]
    assert [i.claim_id for i in world.living()] == [claim.id], "it is needed, the job's node is not"
    [gate] = world.slurm.reservations()
    assert gate.nodes == SLOTS
    assert all(n.name != SLOT for n in world.slurm.nodes())
    ends(world)
    assert world.store.claim(claim.id).cost(world.clock.now()) > 0
    assert {line.key for line in world.store.bill("pool", 0.0) if line.cost} == {"cpu", SLOT}


def life(w: World, places: tuple[int, int]) -> tuple[list[str], list[str]]:
    """From need to end, killed at one place on the way up and at one on the way down; the places that were passed."""
    w.run(20)
    wants(w.store)
    w.bomb.arm(places[0])
    w.run_until(lambda: is_open(w), 300)
    up = list(w.bomb.passed)
    assert len(w.made()) == 1, w.report()
    w.bomb.disarm()
    over(w.store)
    w.run(IDLE_S)
    w.bomb.arm(places[1])
    end = w.clock.now() + 200
    while w.living() or w.reconciler is None:
        assert w.clock.now() < end, w.report()
        w.start()
        w.run(1.0)
    down = list(w.bomb.passed)
    assert len(w.made()) == 1, w.report()
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
        return World(tmp_path / name, template=template, alpha="sandbox", stage=Near())

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
    w = World(tmp_path, template=template, alpha="none", beta=way, lag_s=4.0, stage=Near())
    w.run(5)
    w.kits["beta"].fail(kind, 2)
    w.delays["beta"] = Delay(before_s=40.0)
    wants(w.store)
    if crash:
        w.run_until(lambda: w.asked("beta"), 60)
        w.kill()
        w.start()
    w.run_until(lambda: is_open(w), 400)
    assert len(w.made()) == 1
    w.delays.clear()
    ends(w)


def test_a_node_that_is_lost_is_replaced_while_it_is_needed(world: World) -> None:
    wants(world.store)
    world.run_until(lambda: is_open(world), 120)
    first = node(world)
    assert first is not None
    one = world.instance_of(first)
    world.kits[one.provider].lose(one.id)
    world.run_until(lambda: world.store.claim(first.id).error == "lost", 90)
    world.run_until(lambda: is_open(world), 200)
    second = node(world)
    assert second is not None
    assert second.id != first.id
    ends(world)


@pytest.mark.parametrize(("kind", "n"), [("launch refused", 1), ("bad boot", 1), ("bad boot", 2)])
def test_a_stockout_or_a_bad_boot_moves_to_the_next_offer(world: World, kind: str, n: int) -> None:
    world.run(5)
    world.kits["alpha"].fail(kind, n)
    wants(world.store)
    world.run_until(lambda: is_open(world), 400)
    claim = node(world)
    assert claim is not None
    assert claim.offer.provider == "beta"
    ends(world)


def test_needed_again_before_it_went_it_stays(world: World) -> None:
    wants(world.store)
    world.run_until(lambda: is_open(world), 120)
    over(world.store)
    world.run(IDLE_S / 2)
    wants(world.store, "8")
    world.run(3 * IDLE_S)
    assert is_open(world)
    assert len(world.made()) == 1
    over(world.store, "8")
    world.run_until(lambda: not world.living(), 3 * IDLE_S)


def test_a_store_that_leaves_the_settings_takes_its_node_along(tmp_path: Path, template: Path) -> None:
    near = Near()
    w = World(tmp_path, template=template, stage=near)
    wants(w.store)
    w.run_until(lambda: is_open(w), 120)
    over(w.store)
    near.configured = False
    w.run_until(lambda: not w.living(), 60)
    ends_well(w)


def test_burstd_on_hold_launches_none_and_ends_none(world: World) -> None:
    world.store.set_meta("paused", "an administrator looks")
    wants(world.store)
    world.run(100)
    assert not world.made()
    world.store.set_meta("paused", "")
    world.run_until(lambda: is_open(world), 120)
    world.store.set_meta("paused", "an administrator looks")
    over(world.store)
    world.run(3 * IDLE_S)
    assert is_open(world)
    world.store.set_meta("paused", "")
    world.run_until(lambda: not world.living(), 3 * IDLE_S)
