"""The cloud server's configuration: one TOML file."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog, SandboxInstanceType

Seconds = Annotated[float, Field(ge=0)]
Price = Annotated[Decimal, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TypeSettings(_Strict):
    """``[[cloud.types]]``: memory in MiB, prices for an hour."""

    name: str
    cpus: Annotated[int, Field(gt=0)]
    memory_mib: Annotated[int, Field(gt=0)]
    price: Price
    spot_price: Price | None = None
    gpu_type: str = ""
    gpus: Annotated[int, Field(ge=0)] = 0
    fabric: str = ""


class CloudSettings(_Strict):
    """``[cloud]``: what ``Catalog`` says of each. ``capacity.ZONE.TYPE`` counts machines."""

    types: list[TypeSettings]
    capacity: dict[str, dict[str, int]]
    addresses: str = "10.77.64.0/18"
    region: str = "here"
    currency: str = "EUR"
    quota: int = 20
    boot_seconds: Seconds = 1.0
    stop_seconds: Seconds = 0.0
    list_lag_seconds: Seconds = 0.0
    ended_shown_seconds: Seconds = 60.0


class ImageSettings(_Strict):
    """``[images.NAME]``: layers, the topmost first, over the root file system of a suite (built when it is missing)."""

    suite: str | None = None
    layers: list[Path] = []


class LabSettings(_Strict):
    """``[lab]``: see ``Network``; an empty ``namespace`` puts the bridge on the machine itself."""

    name: str
    subnet: str = "10.77.0.0/16"
    namespace: str = "hub"

    def network(self) -> LabNetwork:
        """The lab's network."""
        return LabNetwork(self.name, self.subnet, self.namespace or None)


class ServerSettings(_Strict):
    """The whole file. ``state`` is the lab's directory; ``token_file`` holds the token that TCP clients must show."""

    state: Path
    lab: LabSettings
    cloud: CloudSettings
    images: dict[str, ImageSettings]
    token_file: Path
    port: Annotated[int, Field(gt=0, lt=65536)] = 8470
    cache: Path | None = None

    @classmethod
    def load(cls, file: Path) -> ServerSettings:
        """Reads the file. Raises SandboxError that says what is wrong with it."""
        try:
            return cls.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
            raise SandboxError(f"{file} cannot be used: {error}", "mend it and start again") from error

    def catalog(self) -> SandboxCatalog:
        """What the cloud is made with. Raises SandboxError."""
        cloud = self.cloud
        try:
            return SandboxCatalog(
                types=tuple(SandboxInstanceType(**t.model_dump()) for t in cloud.types),
                capacity=cloud.capacity,
                images=frozenset(self.images),
                addresses=cloud.addresses,
                region=cloud.region,
                currency=cloud.currency,
                quota=cloud.quota,
                boot_s=cloud.boot_seconds,
                stop_s=cloud.stop_seconds,
                list_lag_s=cloud.list_lag_seconds,
                ended_shown_s=cloud.ended_shown_seconds,
            )
        except ValueError as error:
            raise SandboxError(f"[cloud] cannot be used: {error}", "mend it and start again") from error

    @property
    def socket(self) -> Path:
        """The unix socket for the lab's own use."""
        return self.state / "cloud.sock"
