"""One step of a volume at a time, in the deciding thread.

All that matters is on record: each call to a cloud follows a transition that says that it is, or is about to be, made.
What is mounted where is found out again after a crash, by the very step that mounts or unmounts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal

from burstd.db import Store, UnknownClaim
from burstd.domain.claim import USABLE, Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.volume import (
    TAG_VOLUME,
    TAG_VOLUME_CLUSTER,
    TAG_VOLUME_NAME,
    TAG_VOLUME_USER,
    Disk,
    DiskRequest,
)
from burstd.domain.errors import AuthFailed, BadRequest, InsufficientCapacity, QuotaExceeded
from burstd.domain.plugins.provider import Provider
from burstd.domain.staging import Staging
from burstd.domain.units import size_text
from burstd.domain.volume import ON_MACHINE, Volume
from burstd.domain.volume import VolumeState as S
from burstd.planner.staging.volume_life import (
    SETTLE_INTERVAL_S,
    HolderPhase,
    VolumeSight,
    VolumeStep,
    disk_fault,
    holder_phase,
    hourly_price,
    next_volume_step,
)
from burstd.staging.movement.moves import reachable_machines
from burstd.staging.volumes.disk_calls import DiskCalls
from burstd.staging.volumes.node_mounts import VolumeMounts, VolumeRefused

_REFUSALS = (BadRequest, QuotaExceeded, InsufficientCapacity, AuthFailed)
"""With these a disk was not made, and its job is told so."""
_CALLS = frozenset(
    {
        VolumeStep.CREATE, VolumeStep.ATTACH, VolumeStep.MOUNT, VolumeStep.UNMOUNT, VolumeStep.DETACH,
        VolumeStep.DETACH_STRAY, VolumeStep.DELETE,
    }
)  # fmt: skip
"""Steps that call a cloud or a node: one at a time."""


class VolumeSteps:
    """``advance`` brings one volume on; the rest is what it has found out, and what it goes by."""

    def __init__(
        self,
        cluster: str,
        store: Store,
        clock: Clock,
        providers: Mapping[str, Provider],
        calls: DiskCalls,
        mounts: VolumeMounts,
        prices: Mapping[str, Decimal],
    ) -> None:
        self.prices = prices
        """By provider, of one GiB for a month; replaced whole."""
        self._cluster, self._store, self._clock, self._providers = cluster, store, clock, providers
        self._calls, self._mounts = calls, mounts
        self.claims: Sequence[Claim] = ()
        self._machines: Mapping[str, Claim] = {}
        self.faults: dict[str, str] = {}
        """By job, why it cannot start with its volume."""
        self.mounted: set[tuple[str, str]] = set()
        """Volume and claim where this process has seen it mounted, ..."""
        self._unmounted: set[tuple[str, str]] = set()
        """... and where it has unmounted it."""

    def observe_claims(self, claims: Sequence[Claim]) -> None:
        """Takes in which machines there are."""
        self.claims, self._machines = claims, reachable_machines(claims)

    def forget_mounts(self, volumes: Collection[Volume]) -> None:
        """Forgets what was mounted, but for the volumes among these that are on machines."""
        live = {volume.id for volume in volumes if volume.state in ON_MACHINE}
        self.mounted = {seen for seen in self.mounted if seen[0] in live}
        self._unmounted = {seen for seen in self._unmounted if seen[0] in live}

    def machine(self, row: Staging | None) -> Claim | None:
        """Of the only node of a job."""
        return self._machines.get(row.nodes[0]) if row is not None and row.nodes else None

    def advance(self, volume: Volume, row: Staging | None) -> None:
        """Begins the step that is due. ``row``: of the job whose turn it is."""
        now = self._clock.now()
        settled = volume.settled_until or volume.billed_from
        if settled is not None and now - settled >= SETTLE_INTERVAL_S:
            volume = self._store.update_volume(volume.id, settled_until=now)
        if volume.provider and volume.provider not in self._calls.providers:
            error = f"provider {volume.provider} is not among the prices of [volumes] any more"
            if error != volume.error:
                self._store.update_volume(volume.id, error, error=error)
            return
        sight = self._sight(volume, row)
        fault = disk_fault(volume, sight)
        if fault != volume.error:
            volume = self._store.update_volume(volume.id, fault or "its disk is as it should be", error=fault)
        step = next_volume_step(volume, sight)
        if fault and volume.state is S.AVAILABLE and step is not VolumeStep.RELEASE:
            return
        if step is VolumeStep.NOTHING or (self._calls.is_busy(volume) and step in _CALLS):
            return
        self._carry_out(step, volume, sight, row)

    def _sight(self, volume: Volume, row: Staging | None) -> VolumeSight:
        disk, listed = self._calls.disk(volume)
        provider = self._providers.get(volume.provider)
        machine = self.machine(row)
        pair = (volume.id, volume.claim_id)
        return VolumeSight(
            phase=holder_phase(row),
            has_machine=machine is not None and bool(machine.instance_id),
            other_machine=machine is not None and machine.id != volume.claim_id,
            machine_gone=bool(volume.claim_id) and self._is_gone(volume.claim_id),
            disk=disk,
            listed=listed,
            settle_s=provider.settle_s if provider is not None else 0.0,
            mounted=pair in self.mounted,
            unmounted=pair in self._unmounted,
            stray=self._stray_machine(volume, disk) is not None,
            at_launch=self._calls.is_at_launch(volume.provider),
            launching=self._launching(row) is not None,
        )

    def _stray_machine(self, volume: Volume, disk: Disk | None) -> Claim | None:
        """That has the disk and is not to have it."""
        meant = volume.instance_id if volume.state in ON_MACHINE else ""
        if disk is None or disk.attached_to in ("", meant) or self._calls.is_at_launch(volume.provider):
            return None
        found = (c for c in self._machines.values() if c.offer.provider == volume.provider)
        return next((claim for claim in found if claim.instance_id == disk.attached_to), None)

    def _launching(self, row: Staging | None) -> Claim | None:
        """The machine that is to be launched with the volume of a job that waits."""
        if row is None or holder_phase(row) is not HolderPhase.WAITING:
            return None
        own = (claim for claim in self.claims if row.job_id in claim.jobs and claim.state in USABLE)
        return next((claim for claim in own if self._calls.is_at_launch(claim.offer.provider)), None)

    def _is_gone(self, claim_id: str) -> bool:
        if any(claim.id == claim_id for claim in self.claims):
            return False
        try:
            return self._store.claim(claim_id).state is ClaimState.GONE
        except UnknownClaim:
            return False

    def _carry_out(self, step: VolumeStep, volume: Volume, sight: VolumeSight, row: Staging | None) -> None:
        store, disk = self._store, sight.disk
        match step:
            case VolumeStep.FORGET:
                store.transition_volume(volume.id, S.PLANNED, S.GONE, "its job is over, and it was never made")
            case VolumeStep.CREATE:
                self._create(volume, self.machine(row) or self._launching(row))
            case VolumeStep.ADOPT_DISK if disk is not None and not disk.error:
                store.transition_volume(
                    volume.id, S.CREATING, S.AVAILABLE, f"disk {disk.id} is there", disk_id=disk.id,
                    billed_from=volume.called or self._clock.now(),
                )  # fmt: skip
                self._calls.retry_at_once(volume.id)
            case VolumeStep.ADOPT_DISK if disk is not None:
                # Nobody has written to it: what cannot be had is given back.
                why = f"{volume.provider} could not make it: {disk.error}"
                self.faults[volume.job_id] = f"volume {volume.name}: {why}"
                store.transition_volume(volume.id, S.CREATING, S.REMOVING, why, disk_id=disk.id, job_id="")
            case VolumeStep.RELEASE:
                store.update_volume(volume.id, f"job {volume.job_id} is over", job_id="")
            case VolumeStep.BEGIN_ATTACHING if (machine := self.machine(row)) is not None:
                self._begin_attaching(volume, machine)
            case VolumeStep.ATTACH:
                self._attach(volume)
            case VolumeStep.NOTE_ATTACHED:
                store.transition_volume(volume.id, S.ATTACHING, S.IN_USE, f"on {volume.instance_id}")
                self._calls.retry_at_once(volume.id)
            case VolumeStep.MOUNT if (machine := self.machine(row)) is not None and disk is not None:
                self._mount(volume, machine, disk.device_paths)
            case VolumeStep.UNMOUNT:
                self._unmount(volume, disk.device_paths if disk is not None else ())
            case VolumeStep.BEGIN_DETACHING:
                why = "its machine is gone" if sight.machine_gone else "it is not mounted any more"
                store.transition_volume(volume.id, volume.state, S.DETACHING, why)
                self._calls.retry_at_once(volume.id)
            case VolumeStep.DETACH:
                provider, force = self._calls.providers[volume.provider], sight.machine_gone
                self._calls.call(volume, lambda: provider.detach_disk(volume.disk_id, volume.instance_id, force=force))
            case VolumeStep.DETACH_STRAY if disk is not None:
                self._detach_stray(volume, disk)
            case VolumeStep.NOTE_DETACHED:
                over = sight.phase in (HolderPhase.OVER, HolderPhase.ENDED, HolderPhase.WAITING)
                store.transition_volume(
                    volume.id, S.DETACHING, S.AVAILABLE, "on no machine", claim_id="",
                    job_id="" if over else volume.job_id,
                )  # fmt: skip
                self._calls.retry_at_once(volume.id)
            case VolumeStep.DELETE:
                provider = self._calls.providers[volume.provider]
                self._calls.call(volume, lambda: provider.delete_disk(volume.disk_id))
            case VolumeStep.NOTE_GONE:
                store.transition_volume(volume.id, S.REMOVING, S.GONE, "its cloud does not list it any more")
            case _:
                pass

    def _attach(self, volume: Volume) -> None:
        provider, job_id = self._calls.providers[volume.provider], volume.job_id

        def refused(error: Exception) -> None:
            if provider.disks_at_launch and isinstance(error, BadRequest):
                self.faults[job_id] = f"volume {volume.name}: {error}"

        self._calls.call(volume, lambda: provider.attach_disk(volume.disk_id, volume.instance_id), on_error=refused)

    def _create(self, volume: Volume, machine: Claim | None) -> None:
        """The cloud makes the disk where the job's machine is."""
        first = volume.state is S.PLANNED
        if first:
            if machine is None or machine.offer.provider not in self._calls.providers:
                place = machine.offer.provider if machine is not None else "nowhere"
                self.faults[volume.job_id] = f"volume {volume.name}: Slurm started the job on {place}, which has none"
                return
            offer, price = machine.offer, self.prices.get(machine.offer.provider, Decimal(0))
            volume = self._store.transition_volume(
                volume.id, S.PLANNED, S.CREATING, f"job {volume.job_id} has {machine.slot}", provider=offer.provider,
                region=offer.region, zone="" if self._calls.is_at_launch(offer.provider) else offer.zone,
                currency=offer.currency, called=self._clock.now(), price=hourly_price(price, volume.size_bytes),
            )  # fmt: skip
        else:
            volume = self._store.update_volume(volume.id, "asked for again", called=self._clock.now())
        tags = {
            TAG_VOLUME_CLUSTER: self._cluster,
            TAG_VOLUME: volume.id,
            TAG_VOLUME_NAME: volume.name,
            TAG_VOLUME_USER: volume.user,
        }
        request = DiskRequest(volume.id, volume.zone, volume.size_bytes, tags, volume.region)
        provider, job_id = self._calls.providers[volume.provider], volume.job_id

        def refused(error: Exception) -> None:
            if not isinstance(error, _REFUSALS):
                return
            self.faults[job_id] = f"volume {volume.name} of {size_text(volume.size_bytes)}: {error}"
            if not first:
                # An earlier call may have made it all the same: lists say so in time.
                return
            self._store.transition_volume(volume.id, S.CREATING, S.GONE, str(error), job_id="")

        self._calls.call(volume, lambda: provider.create_disk(request), on_error=refused)

    def _begin_attaching(self, volume: Volume, machine: Claim) -> None:
        offer = machine.offer
        if not (need := self._calls.need(volume)).admits(offer):
            self.faults[volume.job_id] = (
                f"volume {volume.name} is in {need.place}, and Slurm started the job in zone {offer.zone} of "
                f"{offer.provider}"
            )
            return
        self._store.transition_volume(
            volume.id, S.AVAILABLE, S.ATTACHING, f"for job {volume.job_id} on {machine.slot}", claim_id=machine.id,
            instance_id=machine.instance_id,
        )  # fmt: skip
        self._calls.retry_at_once(volume.id)

    def _mount(self, volume: Volume, machine: Claim, device_paths: Sequence[str]) -> None:
        """Two steps: that there is a file system is on record before anybody can write to it."""
        at_launch = self._calls.is_at_launch(volume.provider)
        job_id, pair = volume.job_id, (volume.id, machine.id)

        def refused(error: Exception) -> None:
            if isinstance(error, VolumeRefused):
                self.faults[job_id] = f"volume {volume.name}: {error}"

        def formatted() -> None:
            self._store.update_volume(volume.id, "burstd has made a file system on it", formatted=True)
            self._calls.retry_at_once(volume.id)

        def mounted() -> None:
            self.mounted.add(pair)

        if volume.formatted:
            work, done = lambda: self._mounts.mount(machine, volume, device_paths), mounted
        elif at_launch:
            work, done = lambda: self._mounts.hand_over(machine, volume), formatted
        else:
            work, done = lambda: self._mounts.format(machine, volume, device_paths), formatted
        self._unmounted.discard(pair)
        self._calls.call(volume, work, done, refused, on_node=True)

    def _unmount(self, volume: Volume, device_paths: Sequence[str]) -> None:
        machine = next((claim for claim in self._machines.values() if claim.id == volume.claim_id), None)
        if machine is None:
            return  # Nobody can unmount it: its machine ends, and is listed until it has.

        def unmount() -> None:
            if self._calls.is_at_launch(volume.provider):
                self._mounts.write_back(machine, volume)
            else:
                self._mounts.unmount(machine, volume, device_paths)

        self._calls.call(volume, unmount, lambda: self._unmounted.add((volume.id, machine.id)), on_node=True)

    def _detach_stray(self, volume: Volume, disk: Disk) -> None:
        machine = self._stray_machine(volume, disk)
        if machine is None:
            return
        provider = self._calls.providers[volume.provider]

        def work() -> None:
            # The record may be an older copy, and the disk in use there.
            self._mounts.require_unmounted(machine, disk.device_paths)
            provider.detach_disk(volume.disk_id, machine.instance_id, force=False)

        self._calls.call(volume, work, on_node=True)
