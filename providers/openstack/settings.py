"""What ``[providers.NAME]`` of kind ``openstack`` may hold. Credentials are openstacksdk's business: none is here."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Name = Annotated[str, StringConstraints(min_length=1)]
Names = tuple[Name, ...]
Price = Annotated[Decimal, Field(ge=0)]


class OpenStackRootVolume(BaseModel):
    """The volume that a machine boots from, made from its image, and gone with the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gib: Annotated[int, Field(ge=1, le=16384)]
    """At least; an image that needs more gets what it needs."""
    type: str = ""
    """Volume type; empty: the cloud's own choice."""


class OpenStackSettings(BaseModel):
    """Times in seconds. Patterns are as in the shell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cloud: str = ""
    """An entry of clouds.yaml; empty: the environment's ``OS_*``."""
    clouds_yaml: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """That file, where it is not where openstacksdk looks for it."""
    region: str = ""
    """Empty: the one of clouds.yaml, or the only one that the cloud has."""

    networks: Annotated[Names, Field(min_length=1)]
    """Names or ids; every machine has a port in each, the first is its address."""
    security_groups: Names = ()
    """Names or ids, for all ports; empty: the project's ``default``."""
    port_security: bool = True
    """False: ports without it, and without security groups."""
    vnic_type: Literal["normal", "direct", "macvtap", "direct-physical", "vdpa"] = "normal"
    floating_network: str = ""
    """Name or id of the network for floating IPs; empty: none."""
    address_hour: Price = Decimal(0)
    """What an hour of a floating IP costs."""
    key_name: str = ""
    """Key pair, beside what burstd needs; empty: none."""

    flavors: Annotated[Names, Field(min_length=1)]
    """Patterns of the flavors that the site allows: nothing else is ever offered."""
    zones: Names = ()
    """Patterns of availability zones; empty: all that are available."""
    image: str = ""
    """Of pools whose rules name none: an id, a name, ``newest:PATTERN`` or ``property:KEY=VALUE[,KEY=VALUE]``. Of
    several images the newest is meant."""
    image_owners: Annotated[Names, Field(min_length=1)] = ("self", "public")
    """Whose images a name, pattern or property may mean: ``self``, ``public`` (the cloud publishes it), or ids of
    projects that share theirs. The first that has any counts."""
    root: OpenStackRootVolume | None = None
    """To boot from a volume; else from the flavor's own disk."""
    config_drive: bool = False
    server_group: str = ""
    """Name or id of one that is there, for every machine; empty: none."""
    gang_policy: Literal["", "affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity"] = ""
    """Of a server group that is made for each job of many nodes; empty: none is made."""

    gpus: dict[Name, str] = Field(default_factory=dict)
    """PCI alias, resource class or trait of a flavor -> type of the GPU in slurm.conf; ``""``: no GRES."""
    prices: dict[Name, Price] = Field(default_factory=dict)
    """Pattern of flavors -> price of an hour; the longest that fits wins. What has none is not offered."""
    egress_gb: Price = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves the cloud for the site."""
    currency: str = "EUR"
    usable_memory: Annotated[float, Field(gt=0, le=1)] = 0.95
    """What of a flavor's memory the operating system sees."""
    metadata: dict[Name, str] = Field(default_factory=dict)
    """More metadata for the servers."""

    page: Annotated[int, Field(ge=1, le=1000)] = 1000
    """Things to one page of a list; a cloud may give fewer. Below 1000 Nova says nothing of a cell that is down."""
    side_by_side: Annotated[int, Field(ge=1, le=32)] = 8
    """Calls under way at a time for one launch or one end."""
    settle_s: Annotated[float, Field(ge=0)] = 120.0
    """How long a new server may be missing in lists."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the answer to one call."""
    volume_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Until a root volume is filled. Launches wait for it, and so may the ends of other machines."""
    unused_s: Annotated[float, Field(ge=0)] = 600.0
    """How long a server group that burstd made is kept empty."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.port_security and self.security_groups:
            raise ValueError("security_groups need port_security")
        if self.address_hour and not self.floating_network:
            raise ValueError("address_hour needs floating_network: machines have no floating IP without it")
        if self.server_group and self.gang_policy:
            raise ValueError("give either server_group or gang_policy: a server is in one group only")
        return self
