"""A machine, and other things, as a provider lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from burstd.domain.cloud.bounds import MAX_NAME_LENGTH, normal_address, valid_name, valid_tag_value, valid_time
from burstd.domain.cloud.quoting import one_line

TAG_CLUSTER = "burstd-cluster"
TAG_CLAIM = "burstd-claim"
TAG_BATCH = "burstd-batch"
TAG_SLOT = "burstd-slot"
TAG_POOL = "burstd-pool"


class InstanceState(StrEnum):
    """State of an instance, over all clouds."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    TERMINATED = "terminated"
    """Gone, still listed."""
    ERROR = "error"
    """Exists, will never run, must be deleted."""
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """It is gone, or on its way."""
        return self in (InstanceState.TERMINATED, InstanceState.STOPPING)


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance that bears our cluster's tag. ``launched`` in seconds since 1970 by the provider's clock."""

    id: str
    provider: str
    state: InstanceState
    claim_id: str
    """From its tag; empty: it has none."""
    tags: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    zone: str = ""
    instance_type: str = ""
    spot: bool = False
    address: str = ""
    """Private address, empty while it has none."""
    launched: float = 0.0
    error: str = ""
    """What the cloud says of a failure or of an end by its own hand (spot interruption)."""
    batch: str = ""
    """``LaunchRequest.batch`` of the call that made it; where that made several, ``claim_id`` is empty: a cloud cannot
    tag them one by one, and burstd knows them by the ids that the call answered."""
    cause: str = ""
    """With ERROR: the ``cause`` of the ProviderError that this is, where a cloud takes a launch first and refuses it
    then (``capacity``, ``quota``); empty: it is of this machine alone."""

    def __post_init__(self) -> None:
        """A time, claim or address that cannot be one is not known. Raises ValueError for an id that cannot be."""
        if not valid_name(self.id, "the id of an instance"):
            raise ValueError(f"{self.provider} lists an instance without an id")
        object.__setattr__(self, "launched", valid_time(self.launched))
        for name in ("claim_id", "batch"):
            object.__setattr__(self, name, valid_tag_value(getattr(self, name)))
        for name in ("name", "zone", "instance_type", "cause"):
            object.__setattr__(self, name, one_line(getattr(self, name), MAX_NAME_LENGTH))
        object.__setattr__(self, "address", normal_address(self.address))
        object.__setattr__(self, "error", one_line(self.error))


@dataclass(frozen=True, slots=True)
class Leftover:
    """A volume, port, address, object ... that bears our cluster's tag and is not an instance."""

    kind: str
    id: str
    provider: str
    claim_id: str
    attached_to: str = ""
    """Instance that still uses it; empty: none."""

    def __post_init__(self) -> None:
        """Raises ValueError for an id that cannot be."""
        valid_name(self.id, "the id of a leftover")
        object.__setattr__(self, "claim_id", valid_tag_value(self.claim_id))
