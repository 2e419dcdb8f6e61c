"""Volumes of pods under crashes: as in test_volumes.py, where a machine has the disks of its launch and no others ever.

The disk is made while the job waits, its machine is launched with it, and the machine's end alone takes it off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from hypothesis import settings

from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.cloud.volume import Disk, DiskRequest
from burstd.domain.errors import BadRequest
from burstd.domain.staging import StageState as T
from burstd.domain.volume import Volume, VolumeState
from burstd.staging.volumes.node_mounts import NoVolume, VolumeNotReady, launch_disks
from providers.sandbox.client import DirectApi
from providers.sandbox.provider import SandboxProvider
from tests.crash.test_volumes import SHAPE, NodeMounts, VolumesUnderCrashes
from tests.examples import examples

ZONE = "a"


class PodProvider(SandboxProvider):
    """Its machines are pods."""

    disks_at_launch = True

    def disks(self) -> Iterator[Disk]:
        return (replace(disk, zone="", device_paths=()) for disk in super().disks())

    def create_disk(self, request: DiskRequest) -> None:
        assert not request.zone
        super().create_disk(replace(request, zone=ZONE))

    def attach_disk(self, disk_id: str, instance_id: str) -> None:
        if not any(disk.id == disk_id and disk.attached_to == instance_id for disk in super().disks()):
            raise BadRequest(f"{instance_id} was launched without {disk_id}")

    def detach_disk(self, disk_id: str, instance_id: str, *, force: bool) -> None:
        """A pod has it until its end."""


@dataclass
class PodMounts(NodeMounts):
    """What volume.sh does in pods; ``mounted``: where somebody may write."""

    def hand_over(self, claim: Claim, volume: Volume) -> None:
        disk = self._disk(claim, ())
        assert disk not in self.written, "a volume changes hands only before anybody has written to it"
        self.formatted[disk] = volume.id

    def write_back(self, claim: Claim, volume: Volume) -> None:
        super().unmount(claim, volume, ("it has no device",))

    def format(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        raise AssertionError(f"the file system is the cloud's: {claim.id} {volume.id} {device_paths}")

    def unmount(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        raise AssertionError(f"a pod cannot unmount: {claim.id} {volume.id} {device_paths}")

    def _disk(self, claim: Claim, device_paths: Sequence[str]) -> str:
        assert not device_paths
        if claim.id not in self.live:
            raise VolumeNotReady("the machine does not answer")
        (disk,) = (disk for disk in self.cloud.disks.snapshot() if disk.attached_to == claim.instance_id)
        return disk.id


class PodVolumesUnderCrashes(VolumesUnderCrashes):
    def __init__(self) -> None:
        self.planned: dict[str, Claim] = {}
        """By job, machines that are not launched so far."""
        super().__init__()

    def start_burstd(self) -> None:
        self.provider = PodProvider("north", "ours", DirectApi(self.cloud), settle_s=5.0, page=2)
        if not isinstance(self.nodes, PodMounts):
            self.nodes = PodMounts(self.cloud)
        super().start_burstd()

    def machines(self) -> list[Claim]:
        return [*super().machines(), *self.planned.values()]

    def loop(self) -> None:
        super().loop()
        for claim in [*self.nodes.live.values()]:
            # burstd ends a machine whose jobs are over, or wait anew for a volume that it still has.
            row = self.rows.get(claim.jobs[0])
            used = any(v.claim_id == claim.id and v.state is VolumeState.IN_USE for v in self.store.volumes())
            if row is None and not used:
                self.end_machine(claim.id)
        self.planned = {job_id: claim for job_id, claim in self.planned.items() if job_id in self.rows}

    def launch(self, job_id: str, zone: str) -> None:
        """In two steps, as a claim is; the disk goes to one machine at a time, as a scheduler sees to it."""
        del zone
        offer = Offer("north", "here", ZONE, "c2", False, SHAPE, Decimal("0.1"))
        now = self.clock.now()
        plan = Claim(
            "plan", "ours", "cpu", f"n{job_id}", offer, Cause.DEMAND, ClaimState.PLANNED, now, now, jobs=(job_id,)
        )
        try:
            disks = launch_disks(self.planned.setdefault(job_id, plan), self.rows.values(), self.store.volumes())
        except NoVolume:
            del self.planned[job_id]
            return
        there = {disk.id: disk for disk in self.cloud.disks.snapshot()}
        if disks is None or any(there[disk.disk_id].attached_to for disk in disks):
            return
        del self.planned[job_id]
        super().launch(job_id, ZONE)
        self.cloud.cancel_fault()  # What was ordered for a call of burstd's own.
        for disk in disks:
            self.cloud.disks.attach(disk.disk_id, self.claims[job_id].instance_id)


TestPodVolumesUnderCrashes = PodVolumesUnderCrashes.TestCase
TestPodVolumesUnderCrashes.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_a_machine_without_the_volume_is_no_place_for_its_job() -> None:
    world = PodVolumesUnderCrashes()
    world.submit("ada", "x")
    while world.rows["1"].state is not T.FETCHING:
        world.loop()
        world.go_on("1")
    (disk,) = world.cloud.disks.snapshot()
    world.cloud.disks.detach(disk.id, disk.attached_to)
    for _ in range(4):
        world.loop()
    assert "was launched without" in world.volumes.turns.hold_reason(world.rows["1"])
    world.rows.clear()
    world.teardown()
