"""Versions of an image that come, break and go, while jobs run and burstd is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from burstd.domain.claim import Claim, ClaimState
from burstd.domain.cloud.offer import Pool
from burstd.domain.errors import BadRequest, NodeNotReady, NodeRefused, NoSuchImage
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from burstd.node.errors import SlurmdNotStarted
from tests.crash.test_directed import ends_well, running
from tests.crash.world import PACE, World
from tests.virtual.job import JobSpec
from tests.virtual.provider import SimProvider
from tests.virtual.validator import SimValidator

pytestmark = pytest.mark.crash
LONG = JobSpec(exclusive=True, run_s=1500, time_limit_s=20 * 3600)
IMAGE_POLL_S = PACE.image_polls * PACE.cloud_poll_s + 10
"""Until a new version has been seen."""
SHORT = JobSpec(exclusive=True, run_s=120, time_limit_s=20 * 3600)


class FakeImageVersions:
    """The versions of the one image, newest first, and those of which no machine becomes a node."""

    def __init__(self) -> None:
        self.versions = ["v1"]
        self.bad: set[str] = set()
        self.hangs: set[str] = set()
        """Of these no machine ever answers."""
        self.deleted: set[str] = set()
        """Listed, and gone when a machine is launched from them."""
        self.down = False

    def images(self, _word: str) -> Sequence[str]:
        if self.down:
            raise BadRequest("there is no such image")
        return tuple(self.versions)


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> FakeImageVersions:
    shelf = FakeImageVersions()
    prove = SimValidator.validate

    def proved(
        self: SimValidator, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]
    ) -> str:
        if claim.image in shelf.hangs:
            raise NodeNotReady("no answer on port 22")
        if claim.image in shelf.bad:
            raise NodeRefused(f"{claim.image} has no slurmd", cause="slurm")
        return prove(self, claim, pool, console, reached)

    def launched(self: SimProvider, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        gone = [one for one in requests if one.image in shelf.deleted]
        refused = [LaunchOutcome(one.claim_id, NoSuchImage(f"{one.image} is not there")) for one in gone]
        return [*refused, *launch(self, [one for one in requests if one not in gone])]

    launch = SimProvider.launch
    monkeypatch.setattr(SimProvider, "launch", launched)
    monkeypatch.setattr(SimValidator, "validate", proved)
    monkeypatch.setattr(SimProvider, "images", shelf.images, raising=False)
    return shelf


@pytest.fixture
def world(shelf: FakeImageVersions, tmp_path: Path, template: Path) -> World:
    w = World(tmp_path, template=template, alpha="sim")
    w.run(20)
    return w


def attempts_of_version(w: World, version: str) -> list[str]:
    """The clouds that were asked for machines of a version, one for each claim."""
    claims = sorted(w.all_claims(), key=lambda c: c.created)
    return [claim.offer.provider for claim in claims if claim.image == version]


def test_a_new_version_that_fails_is_left_for_the_one_before_it(world: World, shelf: FakeImageVersions) -> None:
    running(world, world.slurm.submit(LONG))
    shelf.versions.insert(0, "v2")
    shelf.bad.add("v2")
    world.run(IMAGE_POLL_S)
    second = world.slurm.submit(SHORT)
    assert running(world, second, 200).image == "v1"
    # Each cloud was asked for a machine of it once.
    assert attempts_of_version(world, "v2") == ["alpha", "beta"]
    # Nor after a crash, and the offer that it was tried with is not to blame.
    world.kill()
    world.start()
    world.run(20)
    third = world.slurm.submit(SHORT)
    assert running(world, third, 200).image == "v1"
    assert attempts_of_version(world, "v2") == ["alpha", "beta"]
    assert {b.cause for b in world.store.breakers()} <= {"version", "capacity"}
    shelf.versions.insert(0, "v3")
    world.run(IMAGE_POLL_S)
    fourth = world.slurm.submit(SHORT)
    assert running(world, fourth, 200).image == "v3"
    ends_well(world, second, third, fourth)


def test_a_version_of_which_there_was_a_node_is_not_to_blame(world: World, shelf: FakeImageVersions) -> None:
    shelf.versions.insert(0, "v2")
    world.run(IMAGE_POLL_S)
    ends_well(world, world.slurm.submit(SHORT))
    world.calm()
    world.kill()
    world.start()
    world.run(20)
    shelf.bad.add("v2")
    job = world.slurm.submit(SHORT)
    world.run_until(lambda: "slurm" in {b.cause for b in world.store.breakers()}, 300)
    assert "version" not in {b.cause for b in world.store.breakers()}
    shelf.bad.clear()
    ends_well(world, job)


def test_an_idle_node_of_an_old_version_goes_before_its_time_and_a_busy_one_stays(
    world: World, shelf: FakeImageVersions
) -> None:
    busy, idle = running(world, world.slurm.submit(LONG)), running(world, world.slurm.submit(SHORT))
    shelf.versions.insert(0, "v2")
    done = idle.id
    world.run_until(lambda: world.store.claim(done).state is not ClaimState.IN_SERVICE, 200)
    reason = next(e.reason for e in world.store.claim_events(done) if e.new == "draining")
    assert "it runs v1, and new nodes start from v2" in reason
    assert world.store.claim(busy.id).state is ClaimState.IN_SERVICE


def test_an_image_that_cannot_be_looked_up_any_more_is_told_and_changes_nothing(
    world: World, shelf: FakeImageVersions
) -> None:
    running(world, world.slurm.submit(LONG))
    shelf.down = True
    world.run(IMAGE_POLL_S)
    assert world.reconciler is not None
    assert "there is no such image" in world.reconciler.alarm
    assert running(world, world.slurm.submit(SHORT), 200).image == "v1"


def test_nothing_is_launched_before_an_image_is_known_and_it_is_asked_for_soon_again(
    shelf: FakeImageVersions, tmp_path: Path, template: Path
) -> None:
    shelf.down = True
    world = World(tmp_path, template=template, alpha="sim")
    job = world.slurm.submit(SHORT)
    world.run(60)
    assert world.all_claims() == ()
    shelf.down = False
    ends_well(world, job)


def test_an_image_whose_slurmd_does_not_start_is_left(
    world: World, shelf: FakeImageVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SimValidator.start_slurmd

    def started(self: SimValidator, claim: Claim, pool: Pool, watch: str = "") -> None:
        if claim.image == "v2":
            raise SlurmdNotStarted("slurmd: fatal: no plug-in")
        start(self, claim, pool, watch)

    monkeypatch.setattr(SimValidator, "start_slurmd", started)
    shelf.versions.insert(0, "v2")
    world.run(IMAGE_POLL_S)
    job = world.slurm.submit(SHORT)
    assert running(world, job, 400).image == "v1"
    assert attempts_of_version(world, "v2")
    assert {claim.error for claim in world.all_claims() if claim.image == "v2"} == {"slurmd"}


def test_a_version_whose_second_machine_hangs_at_boot_is_left_for_the_one_before_it(
    world: World, shelf: FakeImageVersions
) -> None:
    """Also where burstd dies between the two; the places where they hung are not to blame."""
    running(world, world.slurm.submit(LONG))
    shelf.versions.insert(0, "v2")
    shelf.hangs.add("v2")
    world.run(IMAGE_POLL_S)
    job = world.slurm.submit(SHORT)
    world.run_until(lambda: "boot_timeout" in {b.cause for b in world.store.breakers()}, 300)
    world.kill()
    world.start()
    assert running(world, job, 1000).image == "v1"
    assert max(Counter(attempts_of_version(world, "v2")).values()) == 2
    assert {b.cause for b in world.store.breakers()} <= {"version", "capacity"}
    ends_well(world, job)


def test_machines_that_hang_where_no_version_was_ever_a_node_say_nothing_of_the_image(
    world: World, shelf: FakeImageVersions
) -> None:
    shelf.versions.insert(0, "v2")
    shelf.hangs |= {"v1", "v2"}
    world.run(IMAGE_POLL_S)
    job = world.slurm.submit(SHORT)
    world.run_until(lambda: len(attempts_of_version(world, "v2")) >= 3, 2000)
    assert attempts_of_version(world, "v1") == []
    assert {b.cause for b in world.store.breakers()} <= {"boot_timeout", "capacity"}
    shelf.hangs.clear()
    ends_well(world, job)


def test_a_version_that_is_deleted_is_left_at_once_and_the_offers_stay(world: World, shelf: FakeImageVersions) -> None:
    """Whether or not there was a node of it."""
    running(world, world.slurm.submit(LONG))
    shelf.versions.insert(0, "v2")
    world.run(IMAGE_POLL_S)
    assert running(world, world.slurm.submit(LONG), 200).image == "v2"
    shelf.deleted.add("v2")
    job = world.slurm.submit(SHORT)
    assert running(world, job, 100).image == "v1"
    assert {b.cause for b in world.store.breakers()} <= {"version", "capacity"}
