"""What ``[providers.NAME]`` of kind ``azure`` may hold. Secrets are in files: none stands here."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

Name = Annotated[str, StringConstraints(min_length=1)]
Names = tuple[Name, ...]
Price = Annotated[Decimal, Field(ge=0)]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+$")]
_GUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_GROUP = rf"/subscriptions/{_GUID}/resourceGroups/[^/\s]+/providers"
_TAGS, _TAG_NAME, _TAG_VALUE = 46, re.compile(r"[^<>%&\\?/]{1,512}"), 256
"""What Azure takes of tags, less burstd's own.
https://learn.microsoft.com/azure/azure-resource-manager/management/tag-resources"""
_ADDRESS_HOUR = Decimal("0.005")
"""Of a static public IPv4 address of the SKU Standard, in USD. https://azure.microsoft.com/pricing/details/ip-addresses/"""


class AzureDisk(BaseModel):
    """The managed disk that a machine boots from, gone with the machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gib: Annotated[int, Field(ge=1, le=4095)] | None = None
    """No less than the image's; left out: as large as that."""
    type: Literal["StandardSSD_LRS", "Premium_LRS", "Standard_LRS", "StandardSSD_ZRS", "Premium_ZRS"] = (
        "StandardSSD_LRS"
    )
    encryption_set: str = Field(default="", pattern=rf"^({_GROUP}/Microsoft\.Compute/diskEncryptionSets/[^/\s]+)?$")
    """Id of a disk encryption set; empty: Azure's own key."""


class AzureSettings(BaseModel):
    """Times in seconds. Patterns of instance types are as in the shell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscription: Annotated[str, Field(pattern=rf"^{_GUID}$")]
    resource_group: Annotated[str, Field(pattern=r"^[-\w.()]{1,90}$")]
    """Where all is made, best of this cluster alone."""
    location: Annotated[str, Field(pattern=r"^[a-z0-9]+$")]
    """As ``az account list-locations`` has it: ``westeurope``."""

    tenant: str = Field(default="", pattern=rf"^({_GUID})?$")
    """Of the service principal; empty: the managed identity of the machine that burstd runs on."""
    client_id: str = Field(default="", pattern=rf"^({_GUID})?$")
    """Of the service principal, or of a user-assigned managed identity; empty: the system-assigned one."""
    secret_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """The service principal's client secret, and nothing else."""
    certificate_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """Instead of a secret: a certificate with its private key of RSA, as PEM."""
    endpoint: Url = "https://management.azure.com"
    """Of Azure Resource Manager: another in a sovereign cloud, or behind a private link."""
    authority: Url = "https://login.microsoftonline.com"
    """Of Microsoft Entra ID, which gives tokens."""
    ca_file: Path | None = None
    """Certificates to trust, as PEM, instead of the usual ones: of a proxy that looks into TLS."""

    subnet: Annotated[str, Field(pattern=rf"^{_GROUP}/Microsoft\.Network/virtualNetworks/[^/\s]+/subnets/[^/\s]+$")]
    """Its id. Subnets of Azure span all zones."""
    security_group: str = Field(default="", pattern=rf"^({_GROUP}/Microsoft\.Network/networkSecurityGroups/[^/\s]+)?$")
    """Id of the network security group of each machine; empty: the subnet's does."""
    machine_identity: str = Field(
        default="", pattern=rf"^({_GROUP}/Microsoft\.ManagedIdentity/userAssignedIdentities/[^/\s]+)?$"
    )
    """Id of a user-assigned managed identity for the machines; empty: none."""
    public_address: bool = False
    address_hour: Price | None = None
    """What an hour of a public address costs; left out: Azure's price in USD."""
    egress_gb: Price = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves Azure for the site."""

    instance_types: Annotated[Names, Field(min_length=1)]
    """The sizes that the site allows (``Standard_NC4as_T4_v3``): nothing else is ever offered."""
    zones: tuple[Literal["1", "2", "3"], ...] = ()
    """Availability zones; empty: all that sell the size, or the location as a whole where none does."""
    image: str = ""
    """Of pools whose rules name none: id of a gallery's image definition (its newest version), of one version, of a
    managed image, or ``PUBLISHER:OFFER:SKU:VERSION`` of the marketplace."""
    disk: AzureDisk = AzureDisk()
    security_type: Literal["", "Standard", "TrustedLaunch"] = ""
    """Empty: Azure's default for the image."""
    secure_boot: bool | None = None
    """With TrustedLaunch: whether only signed drivers are loaded; left out: Azure's default."""
    admin_key: str = Field(default="", pattern=r"^(ssh-(rsa|ed25519) \S.*)?$")
    """Public ssh key of the machines' first user ``azureuser``, for people; empty: one whose other half nobody has."""
    gpus: dict[Name, str] = Field(default_factory=dict)
    """Pattern of sizes -> type of their GPUs in slurm.conf, before what burstd knows; ``""``: no GRES."""
    usable_memory: Annotated[float, Field(gt=0, le=1)] = 0.95
    """What of the memory in Azure's list the operating system sees."""

    prices: dict[str, Price] = Field(default_factory=dict)
    """Size -> price of an hour on demand; before every other source."""
    spot_prices: dict[str, Price] = Field(default_factory=dict)
    price_list: bool = True
    """Whether to ask Azure's price list for what these lack."""
    price_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://prices.azure.com/api/retail/prices"
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")] = "USD"
    """The price list has most."""
    tags: dict[Name, str] = Field(default_factory=dict)
    """More tags for all that is made."""

    side_by_side: Annotated[int, Field(ge=1, le=32)] = 8
    """Calls under way at a time for one launch or one end."""
    settle_s: Annotated[float, Field(ge=0)] = 120.0
    """How long a new machine may be missing in lists."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """For the answer to one call."""

    @field_validator("tags")
    @classmethod
    def _azure_takes(cls, tags: dict[str, str]) -> dict[str, str]:
        if len({name.lower() for name in tags}) > _TAGS or len({name.lower() for name in tags}) < len(tags):
            raise ValueError(
                f"Azure takes {_TAGS} tags beside burstd's own, and their names in one case of letters only"
            )
        for name, value in tags.items():
            if not _TAG_NAME.fullmatch(name) or len(value) > _TAG_VALUE:
                raise ValueError(f"'{name}': names have 512 characters and none of <>%&\\?/, values {_TAG_VALUE}")
            if name.lower().startswith("burstd-"):
                raise ValueError(f"'{name}': tags that begin with burstd- are burstd's own")
        return tags

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [one for one in (self.secret_file, self.certificate_file) if one is not None]
        if self.tenant and not (self.client_id and len(given) == 1):
            raise ValueError("a service principal needs tenant, client_id, and either secret_file or certificate_file")
        if given and not self.tenant:
            raise ValueError(
                "secret_file and certificate_file are of a service principal: set its tenant and client_id"
            )
        if self.secure_boot is not None and self.security_type != "TrustedLaunch":
            raise ValueError('secure_boot needs security_type = "TrustedLaunch"')
        if self.public_address and self.address_hour is None and self.currency != "USD":
            raise ValueError(f"public_address needs address_hour: what an hour of an address costs in {self.currency}")
        return self

    @property
    def address_price(self) -> Decimal:
        """What an hour of a machine's public address costs; 0: it has none."""
        own = _ADDRESS_HOUR if self.address_hour is None else self.address_hour
        return own if self.public_address else Decimal(0)
