"""Volumes of users: whose turn it is, and one step of each at a time. In the deciding thread.

All that matters is on record: each call to a cloud follows a transition that says that it is, or is about to be, made.
What is mounted where is found out again after a crash, by the very step that mounts or unmounts.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import structlog

from burstd.db import Store, UnknownClaim
from burstd.db.record_mark import DOUBT_KEY
from burstd.domain.claim import USABLE, Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.cloud.offer import Pool
from burstd.domain.cloud.volume import (
    TAG_VOLUME,
    TAG_VOLUME_CLUSTER,
    TAG_VOLUME_NAME,
    TAG_VOLUME_USER,
    Disk,
    DiskRequest,
)
from burstd.domain.errors import AuthFailed, BadRequest, InsufficientCapacity, QuotaExceeded
from burstd.domain.plugins.provider import Provider, VolumeProvider
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging, VolumeLine
from burstd.domain.units import size_text
from burstd.domain.volume import ON_MACHINE, UnknownDisk, Volume, VolumeNeed
from burstd.domain.volume import VolumeState as S
from burstd.planner.staging.volume_life import (
    SETTLE_INTERVAL_S,
    HolderPhase,
    VolumeLimits,
    VolumeSight,
    VolumeStep,
    disk_fault,
    disk_size,
    holder_phase,
    hourly_price,
    job_fault,
    line_fault,
    next_volume_step,
    size_fault,
    submitted_job_fault,
)
from burstd.runtime.workers import Workers
from burstd.staging.movement.moves import reachable_machines
from burstd.staging.volumes.disk_calls import DiskCalls
from burstd.staging.volumes.node_mounts import VolumeMounts, VolumeRefused

log = structlog.get_logger(__name__)

REFUSALS = (BadRequest, QuotaExceeded, InsufficientCapacity, AuthFailed)
"""With these a disk was not made, and its job is told so."""
UNMOUNT_S = 120.0
"""For so long the output of a job waits for a volume that cannot be unmounted."""
MAKER_WAIT_S = 30.0
"""For so long a job that names no size waits for another that has the volume made."""
_MAX_ANNOUNCED = 10_000
_LANE = "stage:volumes"
_CHANGING = frozenset({S.CREATING, S.ATTACHING, S.DETACHING, S.REMOVING})


@dataclass(frozen=True, slots=True)
class VolumeRules:
    """What the settings say. ``prices``: by provider, of one GiB for a month."""

    prices: Mapping[str, Decimal]
    limits: VolumeLimits


class VolumeController:
    """``step`` brings every volume on; the others say what a job with a volume waits for."""

    def __init__(
        self,
        *,
        cluster: str,
        store: Store,
        workers: Workers,
        clock: Clock,
        providers: Mapping[str, Provider],
        mounts: VolumeMounts,
        pools: Callable[[], Mapping[str, Pool]],
        rules: VolumeRules,
    ) -> None:
        self.rules = rules
        """Those in force; replaced whole."""
        self._cluster, self._store, self._workers, self._clock = cluster, store, workers, clock
        self._mounts, self._pools = mounts, pools
        self._providers = providers
        able = {n: p for n, p in providers.items() if n in rules.prices and isinstance(p, VolumeProvider)}
        self._calls = DiskCalls(able, workers, clock)
        self._mounted: set[tuple[str, str]] = set()
        """Volume and claim where this process has seen it mounted, ..."""
        self._unmounted: set[tuple[str, str]] = set()
        """... and where it has unmounted it."""
        self._faults: dict[str, str] = {}
        """By job, why it cannot start with its volume."""
        self._volumes: tuple[Volume, ...] = ()
        """Those that are not GONE, as the last step left them; also read in other threads."""
        self._announced: deque[tuple[int, str]] = deque(maxlen=_MAX_ANNOUNCED)
        """Volumes, by uid and name, that jobs which were let in of late have made."""
        self._rows: tuple[Staging, ...] = ()
        self._claims: Sequence[Claim] = ()
        self._machines: Mapping[str, Claim] = {}
        self._jobs: Mapping[str, Job] = {}
        self._bound: frozenset[str] = frozenset()
        """Jobs that can start on their own node only."""

    # For the staging controller: what a job waits for.

    def hold_reason(self, row: Staging, queue_id: str = "") -> str:
        """Why a job with a volume can never start as it is; empty: it can, or names none.

        ``queue_id``: as in the queue, where a part of an array or a het job has another id than for its hooks.
        """
        if row.directives.volume is None or row.state not in (T.WAITING, T.STAGED, T.FETCHING):
            return ""
        if queue_id and queue_id != row.job_id:
            fault = job_fault(is_part=True, nodes=1, partitions=(), cloud_partitions=())
            return f"volume {row.directives.volume.name}: {fault}"
        if row.state is T.WAITING:
            return ""
        if all(row.job_id != known.job_id for known in self._rows):
            return ""  # It came after the last step, perhaps with others of which that step knows nothing either.
        return self._faults.get(row.job_id, "") or self._row_fault(row, row.directives.volume)

    def allocation_wait(self, row: Staging) -> str:
        """Why Slurm is not to give the job a node now; empty: it may."""
        line = row.directives.volume
        if line is None:
            return ""
        volume = self._find(row, line)
        if volume is None or volume.job_id != row.job_id:
            return _waiting_reason(line, volume)
        if not self._awaits_machine(volume):
            return f"volume {line.name} is {volume.state.value} after the last run"
        return "" if row.job_id in self._bound else f"its machine for volume {line.name} is on its way"

    def start_wait(self, row: Staging) -> str:
        """Why a job that has its node is not to start now; empty: its volume is mounted, or it names none."""
        line = row.directives.volume
        if line is None:
            return ""
        volume = self._find(row, line)
        machine = self._machine(row)
        if (
            volume is not None
            and machine is not None
            and volume.state is S.IN_USE
            and (volume.job_id, volume.claim_id) == (row.job_id, machine.id)
            and (volume.id, machine.id) in self._mounted
        ):
            return ""
        if volume is None or volume.job_id != row.job_id:
            return _waiting_reason(line, volume)
        error = self._calls.errors.get(volume.id, "")
        return f"volume {line.name} is {volume.state.value}" + (f": {error}" if error else "")

    def unmount_wait(self, row: Staging) -> str:
        """Why the node of a job that has ended is needed on; empty: its volume is off the node, or it names none."""
        line = row.directives.volume
        volume = self._find(row, line) if line is not None else None
        if volume is None or volume.job_id != row.job_id or volume.state is not S.IN_USE:
            return ""
        if self._clock.now() - row.since > UNMOUNT_S:
            return ""  # The output does not wait for it; its machine stays all the same.
        error = self._calls.errors.get(volume.id, "")
        return f"volume {volume.name} is being unmounted" + (f": {error}" if error else "")

    def mounted_nodes(self) -> dict[str, str]:
        """By job that needs its volume no more, the node where it may still be mounted, with what was written last."""
        slots = {claim.id: claim.slot for claim in self._claims}
        stagings = {row.job_id: row for row in self._rows}
        return {
            volume.job_id: slots[volume.claim_id]
            for volume in self._volumes
            if volume.state is S.IN_USE
            and volume.claim_id in slots
            and holder_phase(stagings.get(volume.job_id)) is HolderPhase.OVER
        }

    def view_reason(self, row: Staging) -> str:
        """What a decision on nodes is told of a job whose input is there: none is to be placed for it."""
        line = row.directives.volume
        if line is None or row.state is not T.STAGED:
            return ""
        need = self.needs().get(row.job_id)
        if need is not None:
            return f"it gets a machine of its own in {need.place}, for volume {line.name}"
        return self.allocation_wait(row) or f"its machine for volume {line.name} is there"

    def needs(self) -> dict[str, VolumeNeed]:
        """The jobs whose turn it is and that have no node, with what their machine must be."""
        stagings = {row.job_id: row for row in self._rows}
        found = {}
        for volume in self._volumes:
            row = stagings.get(volume.job_id)
            if row is None or row.state is not T.STAGED or not self._awaits_machine(volume):
                continue
            if volume.error:
                continue
            found[row.job_id] = self._need(volume)
        return found

    def _need(self, volume: Volume) -> VolumeNeed:
        providers = frozenset({volume.provider}) if volume.provider else frozenset(self._calls.providers)
        return VolumeNeed(volume.name, providers, volume.zone, volume.region)

    def _awaits_machine(self, volume: Volume) -> bool:
        """Whether the machine of its job may be made now; one that has it from its launch on is asked for before it."""
        if volume.state is S.CREATING:
            return self._is_at_launch(volume.provider)
        return volume.state in (S.PLANNED, S.AVAILABLE)

    def _is_at_launch(self, provider: str) -> bool:
        return provider in self._calls.providers and self._calls.providers[provider].disks_at_launch

    @property
    def is_on(self) -> bool:
        """Whether any provider has volumes."""
        return bool(self._calls.providers)

    # At sbatch, from any thread.

    def submit_fault(self, line: VolumeLine, uid: int | None, info: Mapping[str, str]) -> str:
        """Why a job that is submitted cannot have its volume; empty: as far as is known now it can.

        ``info``: see StageCall.
        """
        if not self._calls.providers:
            return "no provider of this site has volumes"
        if fault := submitted_job_fault(info, self._cloud_partitions()):
            return fault
        if uid is None:
            return size_fault(line, self.rules.limits)
        own = [volume for volume in self._volumes if volume.uid == uid]
        volume = next((volume for volume in own if volume.name == line.name), None)
        if volume is None and not line.size_bytes and (uid, line.name) in self._announced:
            return ""
        fault = line_fault(line, volume, sum(v.size_bytes for v in own if v is not volume), self.rules.limits)
        if not fault and line.size_bytes:
            self._announced.append((uid, line.name))
        return fault

    def unknown_disks(self) -> tuple[UnknownDisk, ...]:
        """Disks with the cluster's volume tag that are not on record."""
        return self._calls.unknown_disks(self._volumes)

    def errors(self) -> Mapping[str, str]:
        """By volume, why its last step failed."""
        return dict(self._calls.errors)

    # The loop.

    def step(self, rows: Sequence[Staging], slurm: SlurmView | Unavailable, claims: Sequence[Claim]) -> float:
        """Brings every volume on by what is due; returns when the next is, in burstd's time."""
        self._volumes = self._store.volumes()
        named = [row for row in rows if row.directives.volume is not None]
        if not self._volumes and not named and not self._calls.providers:
            return float("inf")
        if self._store.metadata(DOUBT_KEY):
            # What the record says of volumes and machines may be long over.
            return float("inf")
        self._rows, self._claims, self._machines = tuple(named), claims, reachable_machines(claims)
        if isinstance(slurm, SlurmView):
            self._jobs = {job.id: job for job in slurm.jobs}
            names = {r.job_id: r.name for r in slurm.reservations if r.job_id}
            self._bound = frozenset(
                j for j, name in names.items() if j in self._jobs and self._jobs[j].reservation == name
            )
            self._give_turns()
        stagings = {row.job_id: row for row in named}
        # What is held was told why.
        told = {row.job_id for row in named if row.state is T.HELD}
        self._faults = {job: why for job, why in self._faults.items() if job in stagings and job not in told}
        for volume in self._store.volumes():
            self._advance(volume, stagings.get(volume.job_id))
        self._volumes = self._store.volumes()
        live = {volume.id for volume in self._volumes if volume.state in ON_MACHINE}
        self._mounted = {seen for seen in self._mounted if seen[0] in live}
        self._unmounted = {seen for seen in self._unmounted if seen[0] in live}
        changing = {volume.provider for volume in self._volumes if volume.state in _CHANGING}
        self._calls.poll(self._volumes, changing)
        return self._calls.next_due()

    def alarms(self) -> list[str]:
        """What needs a person."""
        found = [*self._calls.listing_errors()]
        found += [f"volume {v.name} of {v.user}: {v.error}" for v in self._volumes if v.error]
        if unknown := self.unknown_disks():
            shown = ", ".join(f"{disk.id} of {disk.provider}" for disk in unknown[:3])
            found.append(
                f"{len(unknown)} disks with this cluster's volume tag are not on record ({shown}): burstd never "
                "removes them; see burstctl volume list"
            )
        return found

    def remove(self, volume: Volume, by: str) -> str:
        """Gives a volume up for good; why that is refused, or empty."""
        if volume.state is S.REMOVING:
            return ""
        if volume.job_id or volume.state is not S.AVAILABLE:
            return (
                f"volume {volume.name} is {volume.state.value}"
                + (f" and job {volume.job_id}'s" if volume.job_id else "")
                + ": it can be removed when no job has it"
            )
        waiting = [row.job_id for row in self._naming(volume) if holder_phase(row) is HolderPhase.WAITING]
        if waiting:
            return f"jobs wait for volume {volume.name}: {', '.join(waiting)}; cancel them first"
        self._store.transition_volume(volume.id, S.AVAILABLE, S.REMOVING, f"{by} gave it up", by, error="")
        self._calls.retry_at_once(volume.id)
        return ""

    def held_jobs(self, volume: Volume) -> tuple[str, ...]:
        """Jobs that ask for a volume and are held before their start: they do not keep it from being removed."""
        before_start = (T.WAITING, T.FETCHING)
        return tuple(r.job_id for r in self._naming(volume) if r.state is T.HELD and r.resume in before_start)

    def _naming(self, volume: Volume) -> list[Staging]:
        found = [row for row in self._rows if row.uid == volume.uid and row.directives.volume is not None]
        return [row for row in found if row.directives.volume and row.directives.volume.name == volume.name]

    # Whose turn it is.

    def _find(self, row: Staging, line: VolumeLine) -> Volume | None:
        return next((v for v in self._volumes if v.uid == row.uid and v.name == line.name), None)

    def _row_fault(self, row: Staging, line: VolumeLine) -> str:
        """What is wrong with the job itself, or its line."""
        job = self._jobs.get(row.job_id)
        subject = f"volume {line.name}: "
        if not self._calls.providers:
            return subject + "no provider of this site has volumes"
        if job is None:
            return ""
        fault = job_fault(
            is_part=bool(job.array_job_id or job.het_job_id), nodes=job.nodes, partitions=job.partitions,
            cloud_partitions=self._cloud_partitions(),
        )  # fmt: skip
        if fault:
            return subject + fault
        if job.reservation and job.id not in self._bound and row.state is T.STAGED:
            return subject + f"it cannot be had in a reservation ({job.reservation})"
        volume = self._find(row, line)
        if volume is not None and volume.error and volume.state is S.AVAILABLE:
            return f"{subject}{volume.error}; an administrator has to look at it"
        if volume is None and not line.size_bytes and self._is_awaited(row, line):
            return ""
        own = sum(v.size_bytes for v in self._volumes if v.uid == row.uid and v is not volume)
        fault = line_fault(line, volume, own, self.rules.limits)
        return subject + fault if fault else ""

    def _cloud_partitions(self) -> frozenset[str]:
        return frozenset(partition for pool in self._pools().values() for partition in pool.partitions)

    def _is_awaited(self, row: Staging, line: VolumeLine) -> bool:
        """Whether another job may be about to have the volume made: hooks of jobs come in any order."""
        if self._clock.now() - row.since < MAKER_WAIT_S:
            return True
        return any(_makes_volume(other, row, line) for other in self._rows)

    def _give_turns(self) -> None:
        """Each volume that is nobody's goes to the oldest job that waits for it."""
        for row in sorted(self._rows, key=lambda row: (row.created, row.job_id)):
            line = row.directives.volume
            job = self._jobs.get(row.job_id)
            if line is None or row.state is not T.STAGED or job is None or self.hold_reason(row):
                continue
            volume = self._find(row, line)
            if volume is None and not line.size_bytes:
                continue
            if volume is None:
                now = self._clock.now()
                self._store.make_volume(
                    Volume(
                        f"v-{secrets.token_hex(8)}", line.name, row.user, row.uid, row.gid, row.account,
                        disk_size(line.size_bytes), S.PLANNED, now, now, f"for job {row.job_id}", job_id=row.job_id,
                    )
                )  # fmt: skip
            elif not volume.job_id and volume.state is S.AVAILABLE:
                self._store.update_volume(volume.id, f"it is the turn of job {row.job_id}", job_id=row.job_id)
            else:
                continue
            self._volumes = self._store.volumes()

    # One volume.

    def _advance(self, volume: Volume, row: Staging | None) -> None:
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
        machine = self._machine(row)
        pair = (volume.id, volume.claim_id)
        return VolumeSight(
            phase=holder_phase(row),
            has_machine=machine is not None and bool(machine.instance_id),
            other_machine=machine is not None and machine.id != volume.claim_id,
            machine_gone=bool(volume.claim_id) and self._is_gone(volume.claim_id),
            disk=disk,
            listed=listed,
            settle_s=provider.settle_s if provider is not None else 0.0,
            mounted=pair in self._mounted,
            unmounted=pair in self._unmounted,
            stray=self._stray_machine(volume, disk) is not None,
            at_launch=self._is_at_launch(volume.provider),
            launching=self._launching(row) is not None,
        )

    def _stray_machine(self, volume: Volume, disk: Disk | None) -> Claim | None:
        """That has the disk and is not to have it."""
        meant = volume.instance_id if volume.state in ON_MACHINE else ""
        if disk is None or disk.attached_to in ("", meant) or self._is_at_launch(volume.provider):
            return None
        found = (c for c in self._machines.values() if c.offer.provider == volume.provider)
        return next((claim for claim in found if claim.instance_id == disk.attached_to), None)

    def _machine(self, row: Staging | None) -> Claim | None:
        """Of the only node of a job."""
        return self._machines.get(row.nodes[0]) if row is not None and row.nodes else None

    def _launching(self, row: Staging | None) -> Claim | None:
        """The machine that is to be launched with the volume of a job that waits."""
        if row is None or holder_phase(row) is not HolderPhase.WAITING:
            return None
        own = (claim for claim in self._claims if row.job_id in claim.jobs and claim.state in USABLE)
        return next((claim for claim in own if self._is_at_launch(claim.offer.provider)), None)

    def _is_gone(self, claim_id: str) -> bool:
        if any(claim.id == claim_id for claim in self._claims):
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
                self._create(volume, self._machine(row) or self._launching(row))
            case VolumeStep.ADOPT_DISK if disk is not None and not disk.error:
                store.transition_volume(
                    volume.id, S.CREATING, S.AVAILABLE, f"disk {disk.id} is there", disk_id=disk.id,
                    billed_from=volume.called or self._clock.now(),
                )  # fmt: skip
                self._calls.retry_at_once(volume.id)
            case VolumeStep.ADOPT_DISK if disk is not None:
                # Nobody has written to it: what cannot be had is given back.
                why = f"{volume.provider} could not make it: {disk.error}"
                self._faults[volume.job_id] = f"volume {volume.name}: {why}"
                store.transition_volume(volume.id, S.CREATING, S.REMOVING, why, disk_id=disk.id, job_id="")
            case VolumeStep.RELEASE:
                store.update_volume(volume.id, f"job {volume.job_id} is over", job_id="")
            case VolumeStep.BEGIN_ATTACHING if (machine := self._machine(row)) is not None:
                self._begin_attaching(volume, machine)
            case VolumeStep.ATTACH:
                self._attach(volume)
            case VolumeStep.NOTE_ATTACHED:
                store.transition_volume(volume.id, S.ATTACHING, S.IN_USE, f"on {volume.instance_id}")
                self._calls.retry_at_once(volume.id)
            case VolumeStep.MOUNT if (machine := self._machine(row)) is not None and disk is not None:
                self._mount(volume, machine, disk.device_paths)
            case VolumeStep.UNMOUNT:
                self._unmount(volume, disk.device_paths if disk is not None else ())
            case VolumeStep.BEGIN_DETACHING:
                why = "its machine is gone" if sight.machine_gone else "it is not mounted any more"
                store.transition_volume(volume.id, volume.state, S.DETACHING, why)
                self._calls.retry_at_once(volume.id)
            case VolumeStep.DETACH:
                provider, force = self._calls.providers[volume.provider], sight.machine_gone
                self._cloud_call(volume, lambda: provider.detach_disk(volume.disk_id, volume.instance_id, force=force))
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
                self._cloud_call(volume, lambda: provider.delete_disk(volume.disk_id))
            case VolumeStep.NOTE_GONE:
                store.transition_volume(volume.id, S.REMOVING, S.GONE, "its cloud does not list it any more")
            case _:
                pass

    def _cloud_call(
        self, volume: Volume, work: Callable[[], None], on_error: Callable[[Exception], None] = lambda _error: None
    ) -> None:
        self._calls.call(volume, f"{volume.provider}:volumes", work, on_error=on_error)

    def _attach(self, volume: Volume) -> None:
        provider, job_id = self._calls.providers[volume.provider], volume.job_id

        def refused(error: Exception) -> None:
            if provider.disks_at_launch and isinstance(error, BadRequest):
                self._faults[job_id] = f"volume {volume.name}: {error}"

        self._cloud_call(volume, lambda: provider.attach_disk(volume.disk_id, volume.instance_id), refused)

    def _create(self, volume: Volume, machine: Claim | None) -> None:
        """The cloud makes the disk where the job's machine is."""
        first = volume.state is S.PLANNED
        if first:
            if machine is None or machine.offer.provider not in self._calls.providers:
                place = machine.offer.provider if machine is not None else "nowhere"
                self._faults[volume.job_id] = f"volume {volume.name}: Slurm started the job on {place}, which has none"
                return
            offer, price = machine.offer, self.rules.prices.get(machine.offer.provider, Decimal(0))
            volume = self._store.transition_volume(
                volume.id, S.PLANNED, S.CREATING, f"job {volume.job_id} has {machine.slot}", provider=offer.provider,
                region=offer.region, zone="" if self._is_at_launch(offer.provider) else offer.zone,
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
            if not isinstance(error, REFUSALS):
                return
            self._faults[job_id] = f"volume {volume.name} of {size_text(volume.size_bytes)}: {error}"
            if not first:
                # An earlier call may have made it all the same: lists say so in time.
                return
            self._store.transition_volume(volume.id, S.CREATING, S.GONE, str(error), job_id="")

        self._cloud_call(volume, lambda: provider.create_disk(request), refused)

    def _begin_attaching(self, volume: Volume, machine: Claim) -> None:
        offer = machine.offer
        if not (need := self._need(volume)).admits(offer):
            self._faults[volume.job_id] = (
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
        at_launch = self._is_at_launch(volume.provider)
        job_id, pair = volume.job_id, (volume.id, machine.id)

        def refused(error: Exception) -> None:
            if isinstance(error, VolumeRefused):
                self._faults[job_id] = f"volume {volume.name}: {error}"

        def formatted() -> None:
            self._store.update_volume(volume.id, "burstd has made a file system on it", formatted=True)
            self._calls.retry_at_once(volume.id)

        def mounted() -> None:
            self._mounted.add(pair)

        if volume.formatted:
            work, done = lambda: self._mounts.mount(machine, volume, device_paths), mounted
        elif at_launch:
            work, done = lambda: self._mounts.hand_over(machine, volume), formatted
        else:
            work, done = lambda: self._mounts.format(machine, volume, device_paths), formatted
        self._unmounted.discard(pair)
        self._calls.call(volume, _LANE, work, done, refused, user=volume.uid)

    def _unmount(self, volume: Volume, device_paths: Sequence[str]) -> None:
        machine = next((claim for claim in self._machines.values() if claim.id == volume.claim_id), None)
        if machine is None:
            return  # Nobody can unmount it: its machine ends, and is listed until it has.

        def unmount() -> None:
            if self._is_at_launch(volume.provider):
                self._mounts.write_back(machine, volume)
            else:
                self._mounts.unmount(machine, volume, device_paths)

        self._calls.call(
            volume, _LANE, unmount,
            lambda: self._unmounted.add((volume.id, machine.id)), user=volume.uid,
        )  # fmt: skip

    def _detach_stray(self, volume: Volume, disk: Disk) -> None:
        machine = self._stray_machine(volume, disk)
        if machine is None:
            return
        provider = self._calls.providers[volume.provider]

        def work() -> None:
            # The record may be an older copy, and the disk in use there.
            self._mounts.require_unmounted(machine, disk.device_paths)
            provider.detach_disk(volume.disk_id, machine.instance_id, force=False)

        self._calls.call(volume, _LANE, work, user=volume.uid)


_CALLS = frozenset(
    {
        VolumeStep.CREATE, VolumeStep.ATTACH, VolumeStep.MOUNT, VolumeStep.UNMOUNT, VolumeStep.DETACH,
        VolumeStep.DETACH_STRAY, VolumeStep.DELETE,
    }
)  # fmt: skip
"""Steps that call a cloud or a node: one at a time."""


def _makes_volume(other: Staging, row: Staging, line: VolumeLine) -> bool:
    """Whether another job, of the same user, is about to have the volume made."""
    named = other.directives.volume
    before_start = other.state in (T.WAITING, T.UPLOADING, T.STAGED, T.FETCHING)
    return (
        other.job_id != row.job_id
        and before_start
        and other.uid == row.uid
        and named is not None
        and (named.name == line.name and bool(named.size_bytes))
    )


def _waiting_reason(line: VolumeLine, volume: Volume | None) -> str:
    if volume is None:
        return f"volume {line.name} is not there so far, and the line has no size to make it"
    if volume.job_id:
        return f"volume {line.name} is in use by job {volume.job_id}"
    return f"volume {line.name} is {volume.state.value}" + (f": {volume.error}" if volume.error else "")
