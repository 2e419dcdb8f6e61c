"""A whole site whose cloud plays Azure, with boxes behind its machines: ``with AzureSite() as site: ...``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from tests.lab.azure.boxes import Boxes
from tests.lab.azure.cloud import AzureCloud
from tests.lab.azure.names import GROUP, SECURITY_GROUP, SUBNET, SUBSCRIPTION
from tests.lab.azure.server import TENANT, AzureServer
from tests.lab.azure.specs import LOCATION
from tests.lab.azure.world import ROLES
from tests.lab.base_site import BaseSite
from tests.node.conftest import on_network

_PORT = 8490
_CLIENT = "c11e4700-0000-4000-8000-0123456789ab"
_SECRET, _CA = "/etc/burstd/azure.secret", "/etc/burstd/azure-ca.crt"
CPU = Pool(
    "cpu", ("cpu1", "cpu2"), ("burst",), Shape(2, 1000, (), frozenset({"cloud"})),
    (OfferRule("azure", ("Standard_D2s_v5",), markets=("on-demand",)),),
)  # fmt: skip
GPU = Pool(
    "gpu", ("gpu1", "gpu2"), ("burst",), Shape(2, 1000, (Gres("gpu", "t4", 1),), frozenset({"cloud", "t4"})),
    (OfferRule("azure", ("Standard_NC4as_T4_v3",), markets=("spot",)),),
)  # fmt: skip


class AzureSite(BaseSite):
    """One site. burstd on the head has the rights of burstd's roles and no others, by a secret in a file."""

    def __init__(self, release: str = "bookworm", *, pools: Sequence[Pool] = (CPU, GPU), **more: Any) -> None:
        super().__init__(release, pools=pools, **more)
        self.cloud: AzureCloud
        self._boxes: Boxes | None = None
        self._server: AzureServer | None = None

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts the cloud at the hub's address, within this process, with boxes behind it."""
        with self.reach():
            self._boxes = Boxes(self.cluster.lab, layers)
            self.cloud = AzureCloud(time.time, self._boxes)
            self._boxes.halted = lambda name: self.cloud.switch_off(name, "stopped")
            self._server = AzureServer(
                self.cloud, self.cluster.state / "azure", self.cluster.lab.network.gateway, _PORT
            )
        self.cloud.boot_s = self.cloud.stop_s = 0.5
        self.cloud.publish("1.0.0")
        self.cloud.clients[_CLIENT] = ROLES
        self._server.login.secrets[_CLIENT] = "the-labs-own"
        self._server.__enter__()
        self.write(_SECRET, "the-labs-own\n", 0o600)
        self.write(_CA, self._server.ca_file.read_text(encoding="ascii"))

    def stop_cloud(self) -> None:
        """Ends the cloud, and its boxes with it."""
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None
        if self._boxes is not None:
            self._boxes.close()
            self._boxes = None

    def provider_toml(self) -> str:
        """The section of burstd.toml."""
        assert self._server is not None
        (image,) = self.cloud.versions
        settings = {
            "kind": "azure", "subscription": SUBSCRIPTION, "resource_group": GROUP, "location": LOCATION,
            "tenant": TENANT, "client_id": _CLIENT, "secret_file": _SECRET, "endpoint": self._server.url,
            "authority": self._server.url, "ca_file": _CA, "subnet": SUBNET, "security_group": SECURITY_GROUP,
            "instance_types": ["Standard_D2s_v5", "Standard_NC4as_T4_v3"], "image": image.rpartition("/versions/")[0],
            "price_url": f"{self._server.url}/api/retail/prices", "settle_s": 3.0,
        }  # fmt: skip
        return "[providers.azure]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """Every size."""
        del pool
        return (OfferRule("azure"),)

    def instances(self) -> list[str]:
        """Names of all machines that are there."""
        return [machine.said["name"] for machine in list(self.cloud.machines.values())]

    @contextmanager
    def reach(self) -> Iterator[None]:
        """What this thread opens meanwhile is in the lab's network."""
        with on_network(self.cluster.lab.network.hub or ""):
            yield
