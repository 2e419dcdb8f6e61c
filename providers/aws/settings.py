"""What ``[providers.NAME]`` of kind ``aws`` may hold. Credentials are boto3's business: none stands here."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(min_length=1)]
Names = tuple[Name, ...]
ImageOwner = Annotated[str, StringConstraints(pattern=r"^(self|amazon|\d{12})$")]
Price = Annotated[Decimal, Field(ge=0)]
_ADDRESS_HOUR = Decimal("0.005")
"""Of a public IPv4 address in use, in USD, the same in all regions. Source: https://aws.amazon.com/vpc/pricing/"""


class AwsRootVolume(BaseModel):
    """The disk that a machine boots from: always encrypted, and gone with the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gib: Annotated[int, Field(ge=1, le=16384)] = 30
    """At least; an image that needs more gets what it needs."""
    type: Literal["gp3", "io2"] = "gp3"
    iops: Annotated[int, Field(ge=3000, le=256000)] | None = None
    throughput_mib_s: Annotated[int, Field(ge=125, le=1000)] | None = None
    """Of gp3."""
    kms_key: str = ""
    """Id, alias or ARN; empty: the account's key for EBS."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.type == "io2" and self.iops is None:
            raise ValueError("a root volume of type io2 needs iops")
        if self.type != "gp3" and self.throughput_mib_s is not None:
            raise ValueError("throughput_mib_s is of root volumes of type gp3 only")
        return self


class AwsSettings(BaseModel):
    """Times in seconds. Patterns of instance types are as in the shell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-\d$")]
    profile: str = ""
    """Of ~/.aws/config of the user that burstd runs as; empty: what boto3 finds (instance role, environment ...)."""
    endpoint_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Instead of Amazon's own, for every service: a mock."""

    subnets: Annotated[Names, Field(min_length=1)]
    """At most one for each zone is used: the first."""
    security_groups: Annotated[Names, Field(min_length=1)]
    public_address: bool = False
    address_hour: Price | None = None
    """What an hour of a public address costs; left out: Amazon's price in USD."""
    egress_gb: Price = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves Amazon for the site."""
    instance_profile: str = ""
    """Name or ARN, for the machines; empty: none."""

    instance_types: Annotated[Names, Field(min_length=1)]
    """The types that the site allows: nothing else is ever offered."""
    image: str = ""
    """Of pools whose rules name none: ``ami-...``, ``name:PATTERN`` (the newest that fits) or ``ssm:PARAMETER``."""
    image_owners: Annotated[tuple[ImageOwner, ...], Field(min_length=1)] = ("self",)
    """For ``name:``: account numbers, ``self`` or ``amazon``. There is no word for all: anybody may publish an AMI."""
    root: AwsRootVolume = AwsRootVolume()
    gpu_names: dict[str, str] = Field(default_factory=dict)
    """Amazon's name of a GPU -> its type in slurm.conf; else Amazon's name in small letters."""
    usable_memory: Annotated[float, Field(gt=0, le=1)] = 0.95
    """What of the memory in Amazon's list the operating system sees."""

    prices: dict[str, Price] = Field(default_factory=dict)
    """Instance type -> price of an hour on demand; before every other source."""
    spot_prices: dict[str, Price] = Field(default_factory=dict)
    price_list: bool = True
    """Whether to ask Amazon's price list for what ``prices`` lacks."""
    currency: str = "USD"

    on_demand_strategy: Literal["prioritized", "lowest-price"] = "prioritized"
    spot_strategy: Literal["price-capacity-optimized", "capacity-optimized-prioritized", "lowest-price"] = (
        "price-capacity-optimized"
    )
    placement_groups: bool = True
    """Machines of one job of many nodes in a cluster placement group."""
    efa: bool = True
    """Elastic Fabric Adapters on the machines of such a job, where their type has them."""
    reservations: Names = ()
    """Capacity reservations and capacity blocks (``cr-...``): their type, in their zone, is launched in them only."""
    notices_queue: str = ""
    """URL of an SQS queue that EventBridge fills with interruption warnings; empty: the machines alone tell."""
    tags: dict[str, str] = Field(default_factory=dict)
    """More tags for all that is made; ``burstd-...`` are burstd's own."""

    batch: Annotated[int, Field(ge=1, le=1000)] = 100
    """Machines to one call."""
    page: Annotated[int, Field(ge=5, le=1000)] = 1000
    """Things to one page of a list."""
    settle_s: Annotated[float, Field(ge=0)] = 30.0
    """How long a new machine may be missing in lists."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the answer to one call."""
    unused_s: Annotated[float, Field(ge=0)] = 3600.0
    """How long a launch template or placement group that nobody uses is kept."""

    @model_validator(mode="after")
    def _prices_addresses(self) -> Self:
        if self.public_address and self.address_hour is None and self.currency != "USD":
            raise ValueError(f"public_address needs address_hour: what an hour of an address costs in {self.currency}")
        return self

    @model_validator(mode="after")
    def _leaves_own_tags(self) -> Self:
        if own := [key for key in self.tags if key.startswith("burstd-")]:
            raise ValueError(f"tags: {', '.join(own)} would be burstd's own: by those it knows what to delete")
        return self

    @property
    def address_price(self) -> Decimal:
        """What an hour of a machine's public address costs; 0: it has none."""
        own = _ADDRESS_HOUR if self.address_hour is None else self.address_hour
        return own if self.public_address else Decimal(0)

    @property
    def instances_page(self) -> int:
        """Machines to one page: with many network cards the description of one has some 40 KiB."""
        return min(self.page, 100)
