"""What is to be done next with a volume. Pure: the record, its job's data and the cloud's list in, one step out.

What is on a volume outlives every doubt: it is detached only when it is not mounted any more or when its machine is
gone, and deleted only because its owner or an administrator said so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto

from burstd.domain.cloud.volume import Disk
from burstd.domain.staging import StageState as T
from burstd.domain.staging import Staging, VolumeLine
from burstd.domain.units import size_text
from burstd.domain.volume import Volume
from burstd.domain.volume import VolumeState as S

HOURS_OF_MONTH = 730
GIB = 1 << 30
_NO_VALUE = 0xFFFFFF00
"""Slurm's numbers for "not said", NO_VAL and INFINITE, are not below this."""
SETTLE_INTERVAL_S = 3600.0
"""How often the cost of a volume goes into the ledger."""
STUCK_S = 600.0
"""A cloud that has a disk half attached for longer needs a person."""


class HolderPhase(Enum):
    """How far the job is whose turn it is to have a volume."""

    WAITING = auto()
    """It has no node."""
    STARTING = auto()
    """It has its node, and waits for the volume."""
    RUNNING = auto()
    ENDED = auto()
    """Its processes have ended; the volume may still be mounted."""
    OVER = auto()
    """It needs the volume no more, or not now."""


_PHASES = {
    T.WAITING: HolderPhase.WAITING, T.UPLOADING: HolderPhase.WAITING, T.STAGED: HolderPhase.WAITING,
    T.FETCHING: HolderPhase.STARTING, T.FETCHED: HolderPhase.RUNNING, T.COLLECTING: HolderPhase.ENDED,
}  # fmt: skip


def holder_phase(row: Staging | None) -> HolderPhase:
    """Of the job whose data this is; None: it has none on record any more."""
    if row is None:
        return HolderPhase.OVER
    if row.state is T.HELD and row.resume == T.COLLECTING:
        return HolderPhase.ENDED
    return _PHASES.get(row.state, HolderPhase.OVER)


class VolumeStep(Enum):
    """One step. Those that call a cloud or a machine may be repeated."""

    NOTHING = auto()
    FORGET = auto()
    """It was never made, and its job is over."""
    CREATE = auto()
    ADOPT_DISK = auto()
    """The cloud lists the disk that it was asked for."""
    RELEASE = auto()
    """Its job is over: the next may have it."""
    BEGIN_ATTACHING = auto()
    ATTACH = auto()
    NOTE_ATTACHED = auto()
    MOUNT = auto()
    UNMOUNT = auto()
    BEGIN_DETACHING = auto()
    DETACH = auto()
    DETACH_STRAY = auto()
    """From a machine that is not to have it, where it is not mounted."""
    NOTE_DETACHED = auto()
    DELETE = auto()
    NOTE_GONE = auto()


@dataclass(frozen=True, slots=True)
class VolumeSight:
    """What is known of a volume beside its record. Times in burstd's time."""

    phase: HolderPhase
    has_machine: bool = False
    """The machine of its job is there, and the cloud's id of it is known."""
    other_machine: bool = False
    """... and it is not the one that the record has the volume on."""
    machine_gone: bool = False
    """The machine that the record has it on came to its end: its cloud does not list it any more."""
    disk: Disk | None = None
    """As it was listed last; None: not in the last complete list, or there was none."""
    listed: float = float("-inf")
    """When the last complete list began."""
    settle_s: float = 0.0
    """How long a new disk may be missing in lists."""
    mounted: bool = False
    unmounted: bool = False
    stray: bool = False
    """It is attached to a machine that is there, is burstd's, and is not to have it: a call came through late."""
    at_launch: bool = False
    """Its cloud's machines have disks from their launch on only (VolumeProvider.disks_at_launch)."""
    launching: bool = False
    """... and the machine of its job is to be launched with it."""


def next_volume_step(volume: Volume, sight: VolumeSight) -> VolumeStep:
    """The step that is due now; NOTHING: something else has to happen first."""
    phase, disk = sight.phase, sight.disk
    starting = phase is HolderPhase.STARTING and sight.has_machine
    match volume.state:
        case S.PLANNED:
            if phase in (HolderPhase.OVER, HolderPhase.ENDED):
                return VolumeStep.FORGET
            return VolumeStep.CREATE if starting or sight.launching else VolumeStep.NOTHING
        case S.CREATING if disk is not None:
            return VolumeStep.ADOPT_DISK if disk.ready or disk.error else VolumeStep.NOTHING
        case S.CREATING:
            return VolumeStep.CREATE if sight.listed > (volume.called or 0.0) + sight.settle_s else VolumeStep.NOTHING
        case S.AVAILABLE | S.ATTACHING | S.DETACHING if sight.stray:
            return VolumeStep.DETACH_STRAY
        case S.AVAILABLE:
            # A call of before may have come through late. Who else has attached it knows why.
            if disk is not None and disk.attached_to and disk.attached_to == volume.instance_id:
                return VolumeStep.DETACH
            if volume.job_id and phase in (HolderPhase.OVER, HolderPhase.ENDED):
                return VolumeStep.RELEASE
            can_attach = is_free(disk) or (sight.at_launch and disk is not None)
            return VolumeStep.BEGIN_ATTACHING if starting and can_attach else VolumeStep.NOTHING
        case S.ATTACHING:
            if sight.machine_gone or sight.other_machine or phase not in (HolderPhase.STARTING, HolderPhase.RUNNING):
                return VolumeStep.BEGIN_DETACHING
            attached = disk is not None and disk.ready and disk.attached_to == volume.instance_id
            return VolumeStep.NOTE_ATTACHED if attached else VolumeStep.ATTACH
        case S.IN_USE if sight.machine_gone:
            return VolumeStep.BEGIN_DETACHING
        case S.IN_USE if phase is HolderPhase.STARTING and not sight.other_machine:
            return VolumeStep.NOTHING if sight.mounted or not sight.has_machine else VolumeStep.MOUNT
        case S.IN_USE if phase is not HolderPhase.RUNNING:
            return VolumeStep.BEGIN_DETACHING if sight.unmounted else VolumeStep.UNMOUNT
        case S.DETACHING:
            return VolumeStep.NOTE_DETACHED if sight.listed > volume.since and is_free(disk) else VolumeStep.DETACH
        case S.REMOVING:
            lacks = disk is None and sight.listed > volume.since + sight.settle_s
            return VolumeStep.NOTE_GONE if lacks else VolumeStep.DELETE
        case _:
            return VolumeStep.NOTHING


def is_free(disk: Disk | None) -> bool:
    """Whether it is there, on no machine, not half either."""
    return disk is not None and disk.ready and not disk.attached_to


def disk_fault(volume: Volume, sight: VolumeSight) -> str:
    """What the cloud's list says against the record; empty: nothing."""
    if volume.state in (S.PLANNED, S.CREATING, S.REMOVING, S.GONE) or sight.listed < volume.since + sight.settle_s:
        return ""
    if sight.disk is None:
        return f"{volume.provider} does not list its disk {volume.disk_id} any more"
    if sight.disk.error:
        return f"its disk is broken: {sight.disk.error}"
    if volume.state in (S.ATTACHING, S.DETACHING) and not sight.disk.ready and sight.listed - volume.since > STUCK_S:
        return f"its disk stays in state '{sight.disk.status}': an administrator resets that in {volume.provider}"
    is_meant = sight.disk.attached_to in ("", volume.instance_id) or sight.stray or sight.at_launch
    if volume.state is S.AVAILABLE and not is_meant:
        place = f"attached to {sight.disk.attached_to}" if sight.disk.ready else f"in state '{sight.disk.status}'"
        return f"its disk is {place}, and burstd has not done that"
    return ""


@dataclass(frozen=True, slots=True)
class VolumeLimits:
    """What the settings say. Bytes; None: no limit."""

    max_size: int | None = None
    """Of one volume."""
    user_size: int | None = None
    """Of all volumes of one user."""


def job_fault(*, is_part: bool, nodes: int, partitions: Collection[str], cloud_partitions: Collection[str]) -> str:
    """Why no job like this can have a volume; empty: it can. ``is_part``: of an array or a het job.

    ``partitions``: empty, they are not known.
    """
    if is_part:
        return "jobs of arrays and het jobs cannot have volumes: submit each as a job of its own"
    if nodes > 1:
        return f"a job with a volume runs on one node, and this one asks for {nodes}: add -N 1"
    if partitions and set(partitions).isdisjoint(cloud_partitions):
        return "volumes are in the cloud only: submit the job to a partition of burstd's"
    return ""


def submitted_job_fault(info: Mapping[str, str], cloud_partitions: Collection[str]) -> str:
    """``job_fault`` of what Slurm tells at sbatch, by the names of burst_buffer/lua or of job_submit/lua.

    What it does not tell counts for nothing: burst_buffer/lua tells of no array, neither tells of a het job.
    """
    nodes, _, _ = (info.get("min_nodes") or info.get("num_nodes") or "").partition(".")
    partitions = [name for name in info.get("partition", "").split(",") if name]
    return job_fault(
        is_part=bool(info.get("array_inx")),
        nodes=int(nodes) if nodes.isdecimal() and int(nodes) < _NO_VALUE else 1,
        partitions=partitions,
        cloud_partitions=cloud_partitions,
    )


def line_fault(line: VolumeLine, volume: Volume | None, users_bytes: int, limits: VolumeLimits) -> str:
    """Why a job cannot have the volume of its line, ever; empty: it can. ``users_bytes``: of the user's other ones."""
    size = disk_size(line.size_bytes)
    if volume is not None:
        if size > volume.size_bytes:
            return f"it has {size_text(volume.size_bytes)}, and volumes do not grow: leave the size out"
        return ""
    if not line.size_bytes:
        return f"you have none of this name: write its size, as in 'volume {line.name} 100G', to have it made"
    if fault := size_fault(line, limits):
        return fault
    if limits.user_size is not None and users_bytes + size > limits.user_size:
        return (
            f"your other volumes have {size_text(users_bytes)}, and {size_text(limits.user_size)} is the most in all: "
            "'burstctl volume remove' gives some back"
        )
    return ""


def size_fault(line: VolumeLine, limits: VolumeLimits) -> str:
    """What is wrong with the size alone."""
    size = disk_size(line.size_bytes)
    if limits.max_size is not None and size > limits.max_size:
        return f"{size_text(size)} is more than the {size_text(limits.max_size)} that a volume may have"
    return ""


def disk_size(size_bytes: int) -> int:
    """What is asked of a cloud: whole GiB."""
    return -(-size_bytes // GIB) * GIB


def hourly_price(price: Decimal, size_bytes: int) -> Decimal:
    """For an hour of the whole volume. ``price``: of one GiB for a month of HOURS_OF_MONTH."""
    return (price * (disk_size(size_bytes) // GIB) / HOURS_OF_MONTH).quantize(Decimal("0.0000000001"))
