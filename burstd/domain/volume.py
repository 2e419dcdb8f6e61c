"""A user's volume: a disk in a cloud that stays when the jobs that use it end. Its life, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from burstd.domain.cloud.offer import Offer


class VolumeState(StrEnum):
    """The life of a volume; which move may follow which is in VOLUME_TRANSITIONS."""

    PLANNED = "planned"
    """On record for its first job; no cloud knows of it."""
    CREATING = "creating"
    """The cloud has been, or is about to be, asked for the disk."""
    AVAILABLE = "available"
    """The disk is there, on no machine."""
    ATTACHING = "attaching"
    """... and on its way to a machine: the cloud has been, or is about to be, asked."""
    IN_USE = "in_use"
    """It is attached to the machine of its job."""
    DETACHING = "detaching"
    """It is not mounted any more, or its machine is gone; the cloud has been, or is about to be, asked."""
    REMOVING = "removing"
    """Its owner or an administrator gave it up; the cloud has been, or is about to be, asked."""
    GONE = "gone"
    """The cloud does not list it any more, or never made it. The end."""


_S = VolumeState
VOLUME_TRANSITIONS: Mapping[VolumeState, frozenset[VolumeState]] = {
    _S.PLANNED: frozenset({_S.CREATING, _S.GONE}),
    # GONE: the cloud refused it for good.
    _S.CREATING: frozenset({_S.AVAILABLE, _S.REMOVING, _S.GONE}),
    _S.AVAILABLE: frozenset({_S.ATTACHING, _S.REMOVING}),
    _S.ATTACHING: frozenset({_S.IN_USE, _S.DETACHING}),
    _S.IN_USE: frozenset({_S.DETACHING}),
    _S.DETACHING: frozenset({_S.AVAILABLE}),
    _S.REMOVING: frozenset({_S.GONE}),
    _S.GONE: frozenset(),
}
ON_MACHINE = frozenset({_S.ATTACHING, _S.IN_USE, _S.DETACHING})
"""A machine has, or may have, the disk."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume on record. Times in seconds since 1970 in burstd's own time; None: not yet. The user's name and NAME
    are one volume at most that is not GONE."""

    id: str
    name: str
    user: str
    uid: int
    gid: int
    account: str
    """Of the job that made it: the project that pays."""
    size_bytes: int
    state: VolumeState
    created: float
    since: float
    reason: str = ""
    provider: str = ""
    """Where it is; empty before the first job has a machine."""
    region: str = ""
    zone: str = ""
    disk_id: str = ""
    """The cloud's id; empty: none is known."""
    price: Decimal = Decimal(0)
    """For an hour, the whole volume."""
    currency: str = ""
    job_id: str = ""
    """The job that has it, or is the next to have it; empty: nobody's turn."""
    claim_id: str = ""
    """While ON_MACHINE, the claim of the machine."""
    instance_id: str = ""
    """... and the cloud's id of that machine."""
    formatted: bool = False
    """burstd has made a file system on it. It is never made again."""
    called: float | None = None
    """When the cloud was last asked to create it."""
    billed_from: float | None = None
    billed_until: float | None = None
    settled_until: float | None = None
    """Up to when its cost is in the ledger."""
    error: str = ""
    """Why it does not go on; empty: it does."""

    def cost(self, now: float) -> Decimal:
        """What it has cost by ``now``: price of an hour times hours."""
        if self.billed_from is None:
            return Decimal(0)
        end = self.billed_until if self.billed_until is not None else now
        return self.price * Decimal(max(0.0, end - self.billed_from)) / 3600


@dataclass(frozen=True, slots=True)
class VolumeNeed:
    """What the machine of a job must be so that the job can have its volume. Of the job whose turn it is."""

    volume: str
    """Its name."""
    providers: frozenset[str]
    zone: str = ""
    """Empty: any, the disk does not exist yet."""
    region: str = ""

    def admits(self, offer: Offer) -> bool:
        """Whether a machine of this offer can have the disk."""
        return offer.provider in self.providers and (
            not self.zone or (offer.region, offer.zone) == (self.region, self.zone)
        )

    @property
    def place(self) -> str:
        """Where, for a person."""
        provider = " or ".join(sorted(self.providers))
        return f"zone {self.zone} of {provider}" if self.zone else f"cloud {provider}"


@dataclass(frozen=True, slots=True)
class UnknownDisk:
    """A disk that bears the cluster's volume tag and is not on record. burstd never removes one."""

    provider: str
    id: str
    volume_id: str
    zone: str
    size_bytes: int
    attached_to: str
    tags: Mapping[str, str] = field(default_factory=dict)
