"""Volumes: each step of a life as a table, and the machine that a job with a volume gets."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import ClassVar

import pytest

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.cloud.volume import Disk
from burstd.domain.plugins.policy import NodeRelease, Target, Want
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.domain.staging import Directives, StageState, Staging, VolumeLine
from burstd.domain.volume import VOLUME_TRANSITIONS, Volume, VolumeNeed, VolumeState
from burstd.planner.staging.volume_life import (
    STUCK_S,
    HolderPhase,
    VolumeLimits,
    VolumeSight,
    VolumeStep,
    disk_fault,
    disk_size,
    holder_phase,
    hourly_price,
    line_fault,
    next_volume_step,
    submitted_job_fault,
)
from burstd.planner.volumes import add_volume_wants

S, P, D = VolumeState, HolderPhase, VolumeStep
GIB = 1 << 30
NOW = 1000.0
FREE = Disk("d-1", "v1", "a", GIB, ready=True)
HERE = replace(FREE, attached_to="i-1", device_paths=("/dev/x",))
ELSEWHERE = replace(FREE, attached_to="i-9")
MOVING = replace(FREE, ready=False)
POD = {"at_launch": True}
BASE = Volume(
    "v1", "corpus", "ann", 1, 1, "physics", GIB, S.PLANNED, 0.0, 100.0, provider="north", zone="a", job_id="7",
    disk_id="d-1", claim_id="c-1", instance_id="i-1", called=100.0,
)  # fmt: skip


def step(state: VolumeState, phase: HolderPhase, disk: Disk | None = FREE, **more: object) -> VolumeStep:
    sight = VolumeSight(phase, **{"has_machine": True, "disk": disk, "listed": NOW, "settle_s": 30.0, **more})  # type: ignore[arg-type]
    return next_volume_step(replace(BASE, state=state), sight)


@pytest.mark.parametrize(
    ("state", "phase", "disk", "more", "expected"),
    [
        (S.PLANNED, P.WAITING, None, {"has_machine": False}, D.NOTHING),
        (S.PLANNED, P.STARTING, None, {"has_machine": False}, D.NOTHING),
        (S.PLANNED, P.STARTING, None, {}, D.CREATE),
        (S.PLANNED, P.OVER, None, {}, D.FORGET),
        # A pod has it from its launch on: the disk is there before, and its list may show the pod early or late.
        (S.PLANNED, P.WAITING, None, {"has_machine": False, "launching": True}, D.CREATE),
        (S.AVAILABLE, P.WAITING, ELSEWHERE, {"has_machine": False, **POD}, D.NOTHING),
        (S.AVAILABLE, P.STARTING, ELSEWHERE, POD, D.BEGIN_ATTACHING),
        (S.AVAILABLE, P.STARTING, None, POD, D.NOTHING),
        # Asked for: the cloud's list says what came of it, once it can be believed.
        (S.CREATING, P.STARTING, None, {"listed": float("-inf")}, D.NOTHING),
        (S.CREATING, P.STARTING, None, {"listed": 130.0}, D.NOTHING),
        (S.CREATING, P.STARTING, None, {"listed": 130.5}, D.CREATE),
        (S.CREATING, P.STARTING, MOVING, {}, D.NOTHING),
        (S.CREATING, P.OVER, FREE, {}, D.ADOPT_DISK),
        (S.AVAILABLE, P.WAITING, FREE, {}, D.NOTHING),
        (S.AVAILABLE, P.STARTING, FREE, {}, D.BEGIN_ATTACHING),
        (S.AVAILABLE, P.STARTING, FREE, {"has_machine": False}, D.NOTHING),
        (S.AVAILABLE, P.STARTING, None, {}, D.NOTHING),
        (S.AVAILABLE, P.STARTING, ELSEWHERE, {}, D.NOTHING),
        (S.AVAILABLE, P.STARTING, MOVING, {}, D.NOTHING),
        (S.AVAILABLE, P.OVER, FREE, {}, D.RELEASE),
        # An attachment of before that came through late.
        (S.AVAILABLE, P.STARTING, HERE, {}, D.DETACH),
        *((state, P.STARTING, ELSEWHERE, {"stray": True}, D.DETACH_STRAY) for state in (S.ATTACHING, S.DETACHING)),
        (S.AVAILABLE, P.STARTING, HERE, {"stray": True}, D.DETACH_STRAY),
        (S.ATTACHING, P.STARTING, FREE, {}, D.ATTACH),
        (S.ATTACHING, P.STARTING, None, {}, D.ATTACH),
        (S.ATTACHING, P.STARTING, HERE, {}, D.NOTE_ATTACHED),
        (S.ATTACHING, P.STARTING, replace(HERE, ready=False), {}, D.ATTACH),
        (S.ATTACHING, P.OVER, HERE, {}, D.BEGIN_DETACHING),
        (S.ATTACHING, P.STARTING, FREE, {"machine_gone": True}, D.BEGIN_DETACHING),
        (S.ATTACHING, P.STARTING, FREE, {"other_machine": True}, D.BEGIN_DETACHING),
        (S.IN_USE, P.STARTING, HERE, {}, D.MOUNT),
        (S.IN_USE, P.STARTING, HERE, {"mounted": True}, D.NOTHING),
        (S.IN_USE, P.RUNNING, HERE, {}, D.NOTHING),
        # What the list lacks is no reason to take anything from a job that runs.
        (S.IN_USE, P.RUNNING, None, {}, D.NOTHING),
        (S.IN_USE, P.RUNNING, HERE, {"machine_gone": True}, D.BEGIN_DETACHING),
        (S.IN_USE, P.STARTING, HERE, {"other_machine": True}, D.UNMOUNT),
        *((S.IN_USE, phase, HERE, {}, D.UNMOUNT) for phase in (P.ENDED, P.OVER, P.WAITING)),
        *((S.IN_USE, phase, HERE, {"unmounted": True}, D.BEGIN_DETACHING) for phase in (P.ENDED, P.OVER, P.WAITING)),
        (S.DETACHING, P.OVER, HERE, {}, D.DETACH),
        (S.DETACHING, P.OVER, MOVING, {}, D.DETACH),
        (S.DETACHING, P.OVER, None, {}, D.DETACH),
        (S.DETACHING, P.OVER, FREE, {"listed": 100.0}, D.DETACH),
        (S.DETACHING, P.OVER, FREE, {}, D.NOTE_DETACHED),
        (S.REMOVING, P.OVER, FREE, {}, D.DELETE),
        (S.REMOVING, P.OVER, None, {"listed": 110.0}, D.DELETE),
        (S.REMOVING, P.OVER, None, {}, D.NOTE_GONE),
        (S.GONE, P.OVER, None, {}, D.NOTHING),
    ],
)
def test_the_next_step(
    state: VolumeState, phase: HolderPhase, disk: Disk | None, more: dict[str, object], expected: VolumeStep
) -> None:
    assert step(state, phase, disk, **more) is expected


def test_a_volume_is_only_taken_off_a_machine_that_is_gone_or_has_unmounted_it() -> None:
    """Whatever else is known."""
    for phase in P:
        for disk in (None, FREE, HERE, ELSEWHERE, MOVING):
            for flags in range(8):
                more = {"mounted": bool(flags & 1), "other_machine": bool(flags & 2), "has_machine": bool(flags & 4)}
                assert step(S.IN_USE, phase, disk, **more) not in (D.BEGIN_DETACHING, D.DETACH, D.NOTE_DETACHED)


def test_only_a_person_brings_a_disk_with_data_to_its_end() -> None:
    """REMOVING is entered by a command (or for a disk that was never ready), and no step but there deletes."""
    for state in S:
        for phase in P:
            for disk in (None, FREE, HERE, MOVING):
                found = step(state, phase, disk)
                assert (found in (D.DELETE, D.NOTE_GONE)) == (state is S.REMOVING), (state, phase, disk, found)
    assert {state for state, to in VOLUME_TRANSITIONS.items() if S.GONE in to} == {S.PLANNED, S.CREATING, S.REMOVING}


@pytest.mark.parametrize(
    ("state", "resume", "phase"),
    [
        (StageState.STAGED, "", P.WAITING),
        (StageState.FETCHING, "", P.STARTING),
        (StageState.FETCHED, "", P.RUNNING),
        (StageState.COLLECTING, "", P.ENDED),
        (StageState.DELIVERING, "", P.OVER),
        (StageState.HELD, "waiting", P.OVER),
        (StageState.HELD, "collecting", P.ENDED),
        (StageState.HELD, "delivering", P.OVER),
        (StageState.CLEARED, "", P.OVER),
    ],
)
def test_the_phase_of_its_job(state: StageState, resume: str, phase: HolderPhase) -> None:
    row = Staging("7", "ann", 1, 1, Directives(volume=VolumeLine("corpus")), state, 0.0, 0.0, resume=resume)
    assert holder_phase(row) is phase
    assert holder_phase(None) is P.OVER


def test_what_the_list_says_against_the_record() -> None:
    free = VolumeSight(P.OVER, disk=FREE, listed=NOW)
    available = replace(BASE, state=S.AVAILABLE)
    assert disk_fault(available, free) == ""
    assert "does not list its disk d-1" in disk_fault(available, replace(free, disk=None))
    assert disk_fault(available, replace(free, disk=None, listed=99.0)) == "", "the list is older than the state"
    assert "attached to i-9, and burstd has not" in disk_fault(available, replace(free, disk=ELSEWHERE))
    assert disk_fault(available, replace(free, disk=ELSEWHERE, stray=True)) == ""
    half = replace(free, disk=replace(FREE, ready=False, attached_to="?", status="reserved"))
    assert disk_fault(available, half) == "its disk is in state 'reserved', and burstd has not done that"
    assert disk_fault(replace(BASE, state=S.ATTACHING), replace(half, listed=BASE.since + STUCK_S)) == ""
    assert "stays in state 'reserved': an administrator" in disk_fault(replace(BASE, state=S.ATTACHING), half)
    assert disk_fault(available, replace(free, disk=ELSEWHERE, at_launch=True)) == "", "its next pod has it already"
    assert disk_fault(replace(BASE, state=S.IN_USE), replace(free, disk=HERE)) == ""


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({}, ""),
        # As burst_buffer/lua tells it, and job_submit/lua, where 4294967294 is what nobody said.
        ({"partition": "onprem,burst", "num_nodes": "1"}, ""),
        ({"partition": "burst", "min_nodes": "4294967294"}, ""),
        ({"partition": "burst", "array_inx": "1-2"}, "jobs of arrays"),
        ({"partition": "burst", "num_nodes": "2"}, "asks for 2: add -N 1"),
        ({"min_nodes": "2.0"}, "asks for 2: add -N 1"),
        ({"partition": "onprem"}, "submit the job to a partition of burstd's"),
    ],
)
def test_what_slurm_tells_at_sbatch(info: dict[str, str], why: str) -> None:
    found = submitted_job_fault(info, {"burst"})
    assert why in found
    assert bool(found) == bool(why)


def test_sizes_and_prices() -> None:
    limits = VolumeLimits(max_size=4 * GIB, user_size=6 * GIB)
    line = VolumeLine("corpus", 3 * GIB)
    assert line_fault(line, None, 3 * GIB, limits) == ""
    assert "6 GiB is the most in all" in line_fault(line, None, 4 * GIB, limits)
    assert "4 GiB that a volume may have" in line_fault(VolumeLine("corpus", 5 * GIB), None, 0, limits)
    # What is made is a whole number of GiB, and that is what counts.
    assert "6 GiB is the most in all" in line_fault(VolumeLine("corpus", 2 * GIB + 1), None, 4 * GIB, limits)
    assert "4 GiB is more than the 3.5 GiB" in line_fault(
        VolumeLine("corpus", 3 * GIB + GIB // 2), None, 0, VolumeLimits(3 * GIB + GIB // 2)
    )
    grown = replace(BASE, size_bytes=disk_size(100 << 20))
    assert line_fault(VolumeLine("corpus", 200 << 20), grown, 0, limits) == ""
    assert "write its size" in line_fault(VolumeLine("corpus"), None, 0, limits)
    assert line_fault(VolumeLine("corpus"), BASE, 0, limits) == ""
    assert line_fault(VolumeLine("corpus", GIB), BASE, 0, limits) == ""
    assert "volumes do not grow" in line_fault(VolumeLine("corpus", GIB + 1), BASE, 0, limits)
    assert [disk_size(size) for size in (1, GIB, GIB + 1)] == [GIB, GIB, 2 * GIB]
    assert hourly_price(Decimal("0.073"), 100 * GIB) == Decimal("0.0100000000")


class TestMachines:
    """What ``add_volume_wants`` makes of the jobs whose turn it is."""

    SHAPE = Shape(4, 8000)
    NEED = VolumeNeed("corpus", frozenset({"north"}), "b", "r")

    def offer(self, zone: str, price: str, provider: str = "north") -> Offer:
        return Offer(provider, "r", zone, "t", spot=False, shape=self.SHAPE, price=Decimal(price))

    def snapshot(self, *claims: Claim, need: VolumeNeed = NEED, **job: object) -> Snapshot:
        pools = {
            name: Pool(name, tuple(f"{name}{n}" for n in (1, 2)), ("burst",), self.SHAPE) for name in ("dear", "cheap")
        }
        waits = replace(Job("7", "ann", JobState.PENDING, ("burst",), NOW), **job)  # type: ignore[arg-type]
        slurm = SlurmView((waits,), {}, (), NOW)
        return Snapshot(NOW, "x", pools, slurm, {}, claims, volume_needs={"7": need})

    def target(self, **fields: object) -> Target:
        offers = {
            "cheap": (self.offer("a", "1"), self.offer("b", "2")),
            "dear": (self.offer("b", "3"), self.offer("b", "1", "south")),
        }
        return replace(Target(offers=offers), **fields)  # type: ignore[arg-type]

    SLOTS: ClassVar[dict[str, list[str]]] = {"cheap": ["cheap1", "cheap2"], "dear": ["dear1", "dear2"]}

    def test_it_is_dedicated_and_where_the_volume_is(self) -> None:
        [want] = add_volume_wants(self.snapshot(), self.target(), self.SLOTS).wants
        assert (want.pool, want.slots, want.jobs, want.dedicated) == ("cheap", ("cheap1",), ("7",), True)
        assert [(offer.zone, offer.provider) for offer in want.offers] == [("b", "north")]

    def test_before_the_first_use_any_zone_of_a_provider_with_volumes_will_do(self) -> None:
        need = VolumeNeed("corpus", frozenset({"south"}))
        [want] = add_volume_wants(self.snapshot(need=need), self.target(), self.SLOTS).wants
        assert [(offer.zone, offer.provider) for offer in want.offers] == [("b", "south")]

    def test_no_slot_is_given_twice(self) -> None:
        taken = Want("cheap", 1, Cause.DEMAND, "x", (self.offer("a", "1"),), slots=("cheap1",))
        target = add_volume_wants(self.snapshot(), self.target(wants=(taken,)), self.SLOTS)
        assert [want.slots for want in target.wants] == [("cheap1",), ("cheap2",)]

    @pytest.mark.parametrize(
        ("need", "job", "slots", "why"),
        [
            (VolumeNeed("corpus", frozenset({"north"}), "c", "r"), {}, SLOTS, "no pool of its partitions has nodes in"),
            (NEED, {"partitions": ("other",)}, SLOTS, "no pool of its partitions has nodes in zone b of north"),
            (NEED, {}, {}, "has no free slot"),
            (NEED, {"cpus": 5}, SLOTS, "is not enough for it"),
        ],
    )
    def test_why_there_is_none(
        self, need: VolumeNeed, job: dict[str, object], slots: dict[str, list[str]], why: str
    ) -> None:
        target = add_volume_wants(self.snapshot(need=need, **job), self.target(), slots)
        assert target.wants == ()
        assert [(r.verdict, why in r.reason) for r in target.remarks] == [("wait", True)], target.remarks

    def test_its_machine_is_kept_while_it_waits(self) -> None:
        claim = Claim(
            "c-1", "x", "cheap", "cheap1", self.offer("b", "2"), Cause.DEMAND, ClaimState.READY, NOW, NOW, jobs=("7",)
        )
        target = self.target(releases=(NodeRelease("c-1", "cheap", "idle"), NodeRelease("c-2", "cheap", "idle")))
        found = add_volume_wants(self.snapshot(claim), target, self.SLOTS)
        assert (found.wants, [release.claim_id for release in found.releases]) == ((), ["c-2"])
        assert [remark.verdict for remark in found.remarks] == ["covered"]
