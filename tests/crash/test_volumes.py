"""Volumes under crashes: burstd is killed at any call, answers are lost, machines die, and no data is.

Jobs with volumes come and go on a sandbox cloud in this process. What must hold after each step: a disk has one file
system, made once; it is mounted on one machine at most, and is attached to that machine; none is made twice, none is
deleted. And once nothing breaks any more, every job that waits gets its turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from burstd.db import Store
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.slurm.node import Reservation
from burstd.domain.slurm.shape import Shape
from burstd.domain.snapshot import SlurmView
from burstd.domain.staging import Directives, Staging, VolumeLine
from burstd.domain.staging import StageState as T
from burstd.domain.volume import Volume, VolumeState
from burstd.planner.staging.volume_life import VolumeLimits
from burstd.staging.volumes.controller import VolumeController, VolumeRules
from burstd.staging.volumes.node_mounts import VolumeMounts, VolumeNotReady, VolumeRefused
from burstd.staging.volumes.turns import UNMOUNT_S
from providers.sandbox.client import DirectApi
from providers.sandbox.cloud.cloud import SandboxCloud
from providers.sandbox.cloud.faults import FaultKind, SandboxFault
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType
from providers.sandbox.cloud.inventory.resources import SandboxLaunchRequest, SandboxMachine
from providers.sandbox.provider import SandboxProvider
from tests.crash.workers import QueuedWorkers
from tests.doubles.immediate_disks import ImmediateDisks
from tests.examples import examples
from tests.virtual.clock import VirtualClock

GIB = 1 << 30
CALLS = ("create-disk", "disks", "attach-disk", "detach-disk")
SHAPE = Shape(2, 2000)


class _Boxes(ImmediateDisks):
    """Machines in name only."""

    def start(self, machine: SandboxMachine) -> None:
        """Nothing to start."""

    def stop(self, machine: SandboxMachine) -> None:
        """Nothing to stop."""

    def console(self, machine: SandboxMachine) -> str:
        del machine
        return ""


@dataclass
class NodeMounts:
    """What volume.sh does, on machines that may be gone by then."""

    cloud: SandboxCloud
    live: dict[str, Claim] = field(default_factory=dict)
    """Machines that run, by claim."""
    formatted: dict[str, str] = field(default_factory=dict)
    """Disk -> the volume whose file system it has."""
    written: set[str] = field(default_factory=set)
    """Disks on which a job has written."""
    mounted: dict[str, str] = field(default_factory=dict)
    """Claim -> disk."""

    def format(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        disk = self._disk(claim, device_paths)
        if self.formatted.get(disk) == volume.id:
            return
        if disk in self.formatted:
            raise VolumeRefused("it has another file system")
        assert disk not in self.written
        self.formatted[disk] = volume.id

    def mount(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        disk = self._disk(claim, device_paths)
        assert self.formatted[disk] == volume.id, "no file system is mounted before it is made"
        assert disk not in self.mounted.values() or self.mounted.get(claim.id) == disk, "two writers"
        self.mounted[claim.id] = disk

    def unmount(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        del volume
        if not device_paths:
            raise VolumeNotReady("no list has shown its device")
        if claim.id not in self.live:
            raise VolumeNotReady("the machine does not answer")
        self.mounted.pop(claim.id, None)

    def require_unmounted(self, claim: Claim, device_paths: Sequence[str]) -> None:
        if self.mounted.get(claim.id) == self._disk(claim, device_paths):
            raise VolumeNotReady("it is mounted")

    def _disk(self, claim: Claim, device_paths: Sequence[str]) -> str:
        if claim.id not in self.live:
            raise VolumeNotReady("the machine does not answer")
        there = {disk.device_path: disk for disk in self.cloud.disks.snapshot()}
        found = next((there[path] for path in device_paths if path in there), None)
        if found is None or found.attached_to != claim.instance_id:
            raise VolumeNotReady("its device is not there yet")
        return found.id


class VolumesUnderCrashes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        types = (SandboxInstanceType("c2", 2, 2000, Decimal("0.1")),)
        catalog = SandboxCatalog(types, {"a": {"c2": 50}, "b": {"c2": 50}}, boot_s=0.0, quota=100)
        self.cloud = SandboxCloud(catalog, self.clock.now, _Boxes())
        self.provider = SandboxProvider("north", "ours", DirectApi(self.cloud), settle_s=5.0, page=2)
        self.store = Store.open(":memory:", self.clock)
        self.nodes = NodeMounts(self.cloud)
        self.rows: dict[str, Staging] = {}
        self.claims: dict[str, Claim] = {}
        """By job, also of those that have ended."""
        self.made = 0
        self.start_burstd()

    def teardown(self) -> None:
        self.finish_jobs()
        assert not self.rows, (self.rows, self.store.volumes())
        assert {v.state for v in self.store.volumes()} <= {VolumeState.AVAILABLE}
        assert {v.job_id for v in self.store.volumes()} <= {""}
        self.store.close()

    def finish_jobs(self) -> None:
        """Nothing breaks any more."""
        self.cloud.cancel_fault()
        for _ in range(60):
            for job_id in sorted(self.rows):
                self.go_on(job_id)
                self.data_is_safe()
            self.loop()
            self.data_is_safe()

    def start_burstd(self) -> None:
        self.workers = QueuedWorkers(self.clock, {})
        pool = Pool("cpu", ("n1",), ("burst",), SHAPE)
        self.volumes = VolumeController(
            cluster="ours", store=self.store, workers=self.workers, clock=self.clock,
            providers={"north": self.provider}, mounts=cast("VolumeMounts", self.nodes), pools=lambda: {"cpu": pool},
            rules=VolumeRules({"north": Decimal("0.1")}, VolumeLimits()),
        )  # fmt: skip

    @rule(user=st.sampled_from(["ada", "bob"]), name=st.sampled_from(["x", "y"]))
    def submit(self, user: str, name: str) -> None:
        if len(self.rows) >= 5:
            return
        self.made += 1
        job_id, uid = str(self.made), {"ada": 1, "bob": 2}[user]
        asked = Directives(volume=VolumeLine(name, GIB))
        now = self.clock.now()
        self.rows[job_id] = Staging(job_id, user, uid, uid, asked, T.STAGED, now, now)

    @rule(which=st.integers(0, 9), steps=st.integers(1, 12), killed=st.sets(st.integers(0, 11)), done=st.integers(0, 3))
    def job_goes_on(self, which: int, steps: int, killed: set[int], done: int) -> None:
        """Slurm, or the job itself, takes it further where it may, and burstd follows; now and then it is killed."""
        for step in range(steps):
            if self.rows:
                self.go_on(sorted(self.rows)[which % len(self.rows)])
                self.data_is_safe()
                self.deciding_thread()
                if step in killed:
                    self.kill_burstd(done)
                self.data_is_safe()
                self.loop()
                self.data_is_safe()

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.rows:
            job_id = sorted(self.rows)[which % len(self.rows)]
            if self.rows[job_id].state in (T.STAGED, T.FETCHING):
                del self.rows[job_id]
            elif self.rows[job_id].state is T.FETCHED:
                self.change(job_id, T.COLLECTING)

    @rule(which=st.integers(0, 9))
    def machine_dies(self, which: int) -> None:
        live = sorted(self.nodes.live)
        if live:
            self.end_machine(live[which % len(live)])

    @rule(
        fault=st.sampled_from([FaultKind.LOSE_ANSWER, FaultKind.UNAVAILABLE, FaultKind.ERROR]),
        call=st.sampled_from(CALLS),
    )
    def fault(self, fault: FaultKind, call: str) -> None:
        self.cloud.inject_fault(SandboxFault(fault, calls=(call,), count=1))

    @rule(done=st.integers(0, 3))
    def kill_burstd(self, done: int) -> None:
        """Of what it had asked for some is carried out, and nobody hears of it."""
        for _ in range(done):
            self.workers.run_one()
        self.start_burstd()

    @rule(which=st.integers(0, 3))
    def one_call(self, which: int) -> None:
        self.workers.run_one(which)

    @rule()
    def deciding_thread(self) -> None:
        """A step, and nothing of what it asks for is carried out so far."""
        self.workers.run_callbacks()
        self.volumes.step(tuple(self.rows.values()), self.slurm(), self.machines())

    def machines(self) -> list[Claim]:
        """Those that burstd has on record and that have not ended."""
        return [claim for claim in self.claims.values() if claim.id in self.nodes.live]

    @rule()
    def loop(self) -> None:
        self.deciding_thread()
        while self.workers.run_one():
            pass
        self.workers.run_callbacks()
        self.clock.advance(2.0)

    def slurm(self) -> SlurmView:
        bound = {job_id for job_id in self.claims if job_id in self.rows}
        jobs = tuple(
            Job(
                job_id, row.user, JobState.PENDING, ("burst",), row.created,
                reservation=f"burstd-job-{job_id}" if job_id in bound else "",
            )
            for job_id, row in self.rows.items()
        )  # fmt: skip
        reservations = tuple(Reservation(f"burstd-job-{j}", frozenset({f"n{j}"}), job_id=j) for j in bound)
        return SlurmView(jobs, {}, reservations, self.clock.now())

    def change(self, job_id: str, state: T, **fields: object) -> None:
        self.rows[job_id] = replace(self.rows[job_id], state=state, since=self.clock.now(), **fields)  # type: ignore[arg-type]

    def go_on(self, job_id: str) -> None:
        row = self.rows[job_id]
        assert self.volumes.turns.hold_reason(row) == ""
        claim = self.claims.get(job_id)
        match row.state:
            case T.STAGED if claim is None or claim.id not in self.nodes.live:
                if (need := self.volumes.turns.needs().get(job_id)) is not None:
                    self.launch(job_id, need.zone or ("a" if int(job_id) % 2 else "b"))
            case T.STAGED if not self.volumes.turns.allocation_wait(row):
                self.change(job_id, T.FETCHING, nodes=(f"n{job_id}",))
            case T.FETCHING if claim is None or claim.id not in self.nodes.live:
                del self.rows[job_id]
            case T.FETCHING if claim is not None and not self.volumes.turns.start_wait(row):
                disk = self.nodes.mounted[claim.id]
                self.nodes.written.add(disk)
                self.change(job_id, T.FETCHED)
            case T.FETCHED:
                self.change(job_id, T.COLLECTING)
            case T.COLLECTING if not self.volumes.turns.unmount_wait(row):
                late = self.clock.now() - row.since > UNMOUNT_S
                assert late or claim is None or claim.id not in self.nodes.mounted, "what it wrote last may be lost"
                del self.rows[job_id]
                if claim is not None:
                    self.end_machine(claim.id)

    def launch(self, job_id: str, zone: str) -> None:
        claim_id = f"c{job_id}-{len(self.store.find_claims())}"
        tags = {TAG_CLUSTER: "ours", TAG_CLAIM: claim_id}
        machine = self.cloud.launch(SandboxLaunchRequest(claim_id, claim_id, zone, "c2", "debian", tags=tags))
        offer = Offer("north", "here", zone, "c2", False, SHAPE, Decimal("0.1"))
        now = self.clock.now()
        claim = Claim(
            claim_id, "ours", "cpu", f"n{job_id}", offer, Cause.DEMAND, ClaimState.IN_SERVICE, now, now,
            jobs=(job_id,), instance_id=machine.id,
        )  # fmt: skip
        self.store.adopt_claim(claim)
        self.claims[job_id] = self.nodes.live[claim_id] = claim

    def end_machine(self, claim_id: str) -> None:
        """Its cloud ends it, and burstd has made sure."""
        if claim_id not in self.nodes.live:
            return
        claim = self.nodes.live.pop(claim_id)
        self.nodes.mounted.pop(claim_id, None)
        self.cloud.terminate(claim.instance_id)
        way = (ClaimState.IN_SERVICE, ClaimState.LOST, ClaimState.TERMINATING, ClaimState.GONE)
        for old, new in pairwise(way):
            self.store.transition_claim(claim_id, old, new, "gone")
        row = self.rows.get(claim.jobs[0])
        if row is not None and row.state is T.FETCHED:
            self.change(row.job_id, T.COLLECTING)

    @invariant()
    def data_is_safe(self) -> None:
        disks = {disk.id: disk for disk in self.cloud.disks.snapshot()}
        assert self.nodes.written <= disks.keys(), "what has data is never deleted"
        volumes = [disk.tags[TAG_VOLUME] for disk in disks.values()]
        assert len(set(volumes)) == len(volumes), "no disk is made twice"
        for claim_id, disk_id in self.nodes.mounted.items():
            assert disks[disk_id].attached_to == self.nodes.live[claim_id].instance_id, "none is detached under a mount"
        assert len(set(self.nodes.mounted.values())) == len(self.nodes.mounted)


TestVolumesUnderCrashes = VolumesUnderCrashes.TestCase
TestVolumesUnderCrashes.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_a_disk_that_is_not_on_record_is_shown_and_left_alone() -> None:
    """As after an older copy of the database was put back."""
    world = VolumesUnderCrashes()
    world.submit("ada", "x")
    for _ in range(8):
        world.job_goes_on(0, 1, set(), 0)
    made = world.cloud.disks.create("a", GIB, {TAG_VOLUME_CLUSTER: "ours", TAG_VOLUME: "v-old"})
    world.cloud.disks.create("a", GIB, {TAG_VOLUME_CLUSTER: "theirs", TAG_VOLUME: "v-other"})
    world.clock.advance(400.0)
    for _ in range(3):
        world.loop()
    assert [disk.id for disk in world.volumes.unknown_disks()] == [made.id]
    assert any("burstd never removes them" in alarm for alarm in world.volumes.alarms())
    assert len(world.cloud.disks.snapshot()) == 3
    assert not {left.id for left in world.provider.leftovers()} & {disk.id for disk in world.cloud.disks.snapshot()}
    world.teardown()


def test_an_attachment_that_comes_late_is_undone() -> None:
    """burstd had given it up, and the next job's machine is another. Never under a mount."""
    world = VolumesUnderCrashes()
    world.submit("ada", "x")
    while world.rows["1"].state is not T.FETCHED:
        world.job_goes_on(0, 1, set(), 0)
    del world.rows["1"]
    for _ in range(8):
        world.loop()
    (volume,), (old,) = world.store.volumes(), world.nodes.live.values()
    assert volume.state is VolumeState.AVAILABLE
    world.submit("ada", "x")
    while world.rows["2"].state is not T.FETCHING:
        world.loop()
        world.go_on("2")
    world.cloud.disks.attach(volume.disk_id, old.instance_id)
    world.nodes.mounted[old.id] = volume.disk_id
    for _ in range(8):
        world.loop()
    assert world.cloud.disks.snapshot()[0].attached_to == old.instance_id
    del world.nodes.mounted[old.id]
    world.teardown()


def test_held_jobs_do_not_keep_a_volume_and_are_named() -> None:
    world = VolumesUnderCrashes()
    world.submit("ada", "x")
    world.finish_jobs()
    for _ in range(3):
        world.submit("ada", "x")
    world.change("2", T.HELD, resume=T.WAITING.value)
    world.change("3", T.HELD, resume=T.DELIVERING.value)
    world.loop()
    (volume,) = world.store.volumes()
    assert "and job 4's" in world.volumes.remove(volume, "ada")
    world.cancel(2)
    world.loop()
    (volume,) = world.store.volumes()
    assert world.volumes.held_jobs(volume) == ("2",)
    assert world.volumes.remove(volume, "ada") == ""
    world.rows.clear()
    world.store.close()
