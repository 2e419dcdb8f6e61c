"""File systems of volumes on nodes, by volume.sh over the way in by which the node was validated. Calls block."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib.resources import files

from burstd.domain.claim import Claim
from burstd.domain.cloud.volume import LaunchDisk
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.shell import Shell
from burstd.domain.staging import Staging
from burstd.domain.volume import Volume, VolumeState
from burstd.transfer.privsep.errors import printable

VOLUMES_DIRECTORY = "/run/burst-volumes"
"""On nodes. Apart from jobs' folders, which are cleared away with all that is in them."""
_NAMESPACE = uuid.UUID("3f4d8f8e-6f0e-4ad1-9d5c-5a1d0a2b7c11")
_REFUSED = 1
_FORMAT_S, _MOUNT_S = 600.0, 120.0
_SHOWN = 300


class VolumeRefused(BurstdError):
    """The node will never do it; the text says why and what is left as it was."""


class VolumeNotReady(BurstdError):
    """The node could not do it now."""


class NoVolume(BurstdError):
    """Nobody needs the machine: it is not the turn of its job to have the volume, or the volume cannot be made."""


class VolumeMounts:
    """Several threads may call. ``connect``: a session with a claim's node."""

    def __init__(self, connect: Callable[[Claim], Shell]) -> None:
        self._connect = connect
        self._script = files("burstd.node").joinpath("scripts", "volume.sh").read_text(encoding="utf-8")

    def format(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        """Makes the file system of a volume that never had one. Raises VolumeRefused, VolumeNotReady, NodeNotReady."""
        owner = f"{volume.uid}:{volume.gid}"
        self._run(claim, _FORMAT_S, "format", file_system_uuid(volume), owner, *device_paths)

    def mount(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        """Mounts it for its job; raises as ``format`` does."""
        self._run(claim, _MOUNT_S, "mount", file_system_uuid(volume), mount_path(volume), *device_paths)

    def unmount(self, claim: Claim, volume: Volume, device_paths: Sequence[str]) -> None:
        """Writes all back and unmounts it, and makes sure that no mount is left. Raises as ``format`` does."""
        self._run(claim, _MOUNT_S, "unmount", mount_path(volume), *device_paths)

    def require_unmounted(self, claim: Claim, device_paths: Sequence[str]) -> None:
        """Raises VolumeNotReady where any process of the node has it mounted, and NodeNotReady."""
        self._run(claim, _MOUNT_S, "check", *device_paths)

    def hand_over(self, claim: Claim, volume: Volume) -> None:
        """Gives the volume's owner a file system that the machine was launched with; raises as ``format`` does."""
        self._run(claim, _MOUNT_S, "hand_over", mount_path(volume), f"{volume.uid}:{volume.gid}")

    def write_back(self, claim: Claim, volume: Volume) -> None:
        """Writes all back, and leaves it mounted: it goes with its machine. Raises as ``format`` does."""
        self._run(claim, _MOUNT_S, "write_back", mount_path(volume))

    def _run(self, claim: Claim, timeout_s: float, *args: str) -> None:
        with self._connect(claim) as session:
            done = session.script(self._script, *args, timeout_s=timeout_s)
        if done.rc == 0:
            return
        text = printable(done.last_line[:_SHOWN].removeprefix("refused: ").removeprefix("again: "))
        raise (VolumeRefused if done.rc == _REFUSED else VolumeNotReady)(f"{claim.slot}: {text}")


def job_volumes_path(job_id: str) -> str:
    """$BURST_VOLUMES of a job."""
    return f"{VOLUMES_DIRECTORY}/{job_id}"


def mount_path(volume: Volume) -> str:
    """Where the job that has it finds it."""
    return f"{job_volumes_path(volume.job_id)}/{volume.name}"


def launch_disks(
    claim: Claim, stagings: Iterable[Staging], volumes: Collection[Volume]
) -> tuple[LaunchDisk, ...] | None:
    """What a machine is launched with where that is the only way (VolumeProvider.disks_at_launch): its jobs' volumes.

    None: one of them has no disk so far. Raises NoVolume.
    """
    found = []
    for row in stagings:
        if row.job_id not in claim.jobs or row.directives.volume is None:
            continue
        volume = next((one for one in volumes if one.job_id == row.job_id), None)
        if volume is None:
            raise NoVolume(f"job {row.job_id} has no volume {row.directives.volume.name}")
        if volume.state is not VolumeState.AVAILABLE or volume.provider != claim.offer.provider:
            return None
        found.append(LaunchDisk(volume.disk_id, mount_path(volume)))
    return tuple(found)


def file_system_uuid(volume: Volume) -> str:
    """The same at every time, so that a file system that was made is known again."""
    return str(uuid.uuid5(_NAMESPACE, volume.id))
