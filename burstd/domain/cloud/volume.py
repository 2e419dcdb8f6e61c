"""A persistent disk as a cloud lists it, and the request for one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TAG_VOLUME_CLUSTER = "burstd-volume-cluster"
"""The cluster's name on persistent disks. They never bear TAG_CLUSTER: what bears that and has no owner is removed."""
TAG_VOLUME = "burstd-volume"
"""The id of the volume on burstd's record."""

TAG_VOLUME_NAME, TAG_VOLUME_USER = "burstd-volume-name", "burstd-volume-user"
"""For a person who looks at the cloud's own console."""


@dataclass(frozen=True, slots=True)
class DiskRequest:
    """A disk to be made. Recorded before the call; the same ``volume_id`` means the same disk."""

    volume_id: str
    zone: str
    """As in the offer of the machine that is to have it; empty where machines have disks from their launch on."""
    size_bytes: int
    tags: Mapping[str, str]
    """TAG_VOLUME_CLUSTER and TAG_VOLUME among others."""
    region: str = ""


@dataclass(frozen=True, slots=True)
class LaunchDisk:
    """A persistent disk that a machine has from its launch to its end."""

    disk_id: str
    path: str
    """Where its file system is mounted on the machine."""


@dataclass(frozen=True, slots=True)
class Disk:
    """One persistent disk that bears our cluster's tag."""

    id: str
    volume_id: str
    """From its tag; empty: it has none."""
    zone: str
    """Empty: machines of any zone can have it, as far as the provider knows."""
    size_bytes: int
    ready: bool
    """It may be attached, or is attached whole; False: the cloud is at work on it."""
    attached_to: str = ""
    """Id of the instance; empty: of none, also not half."""
    device_paths: tuple[str, ...] = ()
    """Paths of which one is its block device on that instance. Shell patterns; each can only be this disk's."""
    error: str = ""
    """What the cloud says of a disk that will never be ready."""
    status: str = ""
    """The cloud's own word for its state."""
    tags: Mapping[str, str] = field(default_factory=dict)
