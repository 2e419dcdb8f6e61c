"""What ``[providers.NAME]`` of kind ``google`` may hold. A key file is named here; no secret stands here."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(min_length=1)]
Names = tuple[Name, ...]
MachineType = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9*?\[\]!-]+(\+[a-z][a-z0-9-]*:[1-9][0-9]?)?$", max_length=120)
]
NetworkTag = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{0,63}$")]
Price = Annotated[Decimal, Field(ge=0)]
_ADDRESS_HOUR = Decimal("0.005")
"""Of an external IPv4 address in use, in USD. Source: https://cloud.google.com/vpc/network-pricing"""


class GoogleBootDisk(BaseModel):
    """The disk that a machine boots from: deleted with the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gib: Annotated[int, Field(ge=10, le=65536)] | None = None
    """None: as large as the image. Google refuses less than that."""
    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")] = "pd-balanced"
    """One that the machine types take: some take ``hyperdisk-balanced`` only."""
    kms_key: str = ""
    """``projects/P/locations/L/keyRings/R/cryptoKeys/K``; empty: Google's own key."""


class GoogleSettings(BaseModel):
    """Times in seconds. Patterns of machine types are as in the shell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z]([-a-z0-9]{4,28}[a-z0-9])$")]
    """Its id, not its number."""
    region: Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+\d+$")]
    zones: tuple[Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+\d+-[a-z]+$")], ...] = ()
    """Empty: all that the region has."""
    credentials_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """A service account's key, or a configuration of Workload Identity Federation. None: Application Default
    Credentials, which on a machine of Google's are those of its service account."""
    endpoint: Annotated[str, Field(pattern=r"^(https?://[^\s/]+)?$")] = ""
    """Instead of ``https://{service}.googleapis.com``, as for Private Service Connect; ``{service}`` is replaced by
    ``compute``, ``cloudbilling``, ``cloudresourcemanager``."""

    subnetwork: Annotated[str, Field(pattern=r"^(projects/[^/\s]+/regions/[^/\s]+/subnetworks/)?[a-z][-a-z0-9]*$")]
    """A name in the region, or a host project's ``projects/HOST/regions/REGION/subnetworks/NAME``."""
    network_tags: tuple[NetworkTag, ...] = ()
    """By which firewall rules know the machines."""
    public_address: bool = False
    address_hour: Price | None = None
    """What an hour of a public address costs; left out: Google's price in USD."""
    egress_gb: Price = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves Google for the site."""
    service_account: str = ""
    """E-mail address, for the machines; empty: they have none."""

    machine_types: Annotated[tuple[MachineType, ...], Field(min_length=1)]
    """The types that the site allows: nothing else is ever offered. ``n1-standard-8+nvidia-tesla-t4:1`` is one with
    GPUs attached."""
    image: str = ""
    """Of pools whose rules name none: ``family:NAME``, ``family:PROJECT/NAME``, ``NAME`` or ``PROJECT/NAME``."""
    disk: GoogleBootDisk = GoogleBootDisk()
    live_migration: bool = True
    """False: machines without GPUs end where Google maintains their host; some types cannot be moved."""
    max_run_h: Annotated[int, Field(ge=1, le=2880)] | None = None
    """Google deletes a machine after so many hours, whatever burstd does. None: never."""
    preemption_notice_s: Annotated[int, Field(ge=0, le=120)] = 0
    """Asked for between the notice to a Spot VM and the signal to shut down, after which it has half a minute."""
    gpu_names: dict[str, str] = Field(default_factory=dict)
    """Google's accelerator type -> its type in slurm.conf; else Google's without ``nvidia-`` and ``tesla-``."""
    usable_memory: Annotated[float, Field(gt=0, le=1)] = 0.95
    """What of the memory in Google's list the operating system sees."""

    prices: dict[str, Price] = Field(default_factory=dict)
    """Machine type -> price of an hour on demand; before every other source."""
    spot_prices: dict[str, Price] = Field(default_factory=dict)
    price_list: bool = True
    """Whether to ask Google's price list (Cloud Billing) for what ``prices`` lacks."""
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """More labels for all that is made; ``burstd-...`` are burstd's own."""

    page: Annotated[int, Field(ge=1, le=500)] = 500
    """Things to one page of a list."""
    side_by_side: Annotated[int, Field(ge=1, le=32)] = 8
    """Calls under way at a time for one launch or one end."""
    settle_s: Annotated[float, Field(ge=0)] = 60.0
    """How long a new machine may be missing in lists."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the answer to one call."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.public_address and self.address_hour is None and self.currency != "USD":
            raise ValueError(f"public_address needs address_hour: what an hour of an address costs in {self.currency}")
        if own := [key for key in self.labels if key.startswith("burstd-")]:
            raise ValueError(f"labels: {', '.join(own)} would be burstd's own: by those it knows what to delete")
        strange = [zone for zone in self.zones if not zone.startswith(f"{self.region}-")]
        if strange:
            raise ValueError(f"zones {', '.join(strange)} are not of region {self.region}: a second region is a second "
                             "provider")  # fmt: skip
        return self

    @property
    def address_price(self) -> Decimal:
        """What an hour of a machine's public address costs; 0: it has none."""
        own = _ADDRESS_HOUR if self.address_hour is None else self.address_hour
        return own if self.public_address else Decimal(0)
