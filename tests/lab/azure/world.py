"""The cloud as a world of the contract: one resource group, a service principal for each cluster, burstd's roles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import randbelow
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import Provider
from burstd.testing.cloud_world import CLUSTER, Breakage, FaultWorld
from providers.azure.calls import AzureCalls
from providers.azure.provider import AzureProvider
from providers.azure.settings import AzureSettings
from tests.lab.azure import rights
from tests.lab.azure.cloud import AzureCloud
from tests.lab.azure.names import DEFINITION, GROUP, SECURITY_GROUP, SUBNET, SUBSCRIPTION, THINGS
from tests.lab.azure.server import TENANT, AzureServer
from tests.lab.azure.specs import LOCATION

TYPES = ("Standard_D2s_v5", "Standard_NC4as_T4_v3")
_STEP_S, _PATIENCE_S = 1.0, 600.0
_MACHINES = "Microsoft.Compute/virtualMachines"
ROLES = {
    f"/subscriptions/{SUBSCRIPTION}": rights.role_actions("role-subscription"),
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}".lower(): rights.role_actions("role"),
}


def _address() -> str:
    return ".".join(["127", *(str(1 + randbelow(254)) for _ in range(3))])


class AzureWorld(FaultWorld):
    """All clusters share a resource group, which a site would not do."""

    page = 2

    def __init__(self, folder: Path) -> None:
        self.now = 1_800_000_000.0
        self.cloud = AzureCloud(lambda: self.now)
        self.cloud.page = self.page
        # At the port that addresses do not name, and links of next pages do; each world has an address of its own.
        self.server = AzureServer(self.cloud, folder / "tls", _address(), 443)
        self.server.__enter__()
        self.image = self.cloud.publish("1.0.0")
        self._folder = folder
        self._providers: list[Provider] = []
        self._images = 0

    def provider(self, cluster: str, **words: Any) -> AzureProvider:
        made = AzureProvider("azure", cluster, self.settings(cluster, **words), *self.parts(cluster, **words))
        self._providers.append(made)
        return made

    def parts(self, cluster: str, **words: Any) -> tuple[AzureCalls, Callable[[], float]]:
        """What a provider is made of beside its settings; its clock is the cloud's."""
        return AzureCalls(self.settings(cluster, **words)), lambda: self.now

    def settings(self, cluster: str = CLUSTER, **words: Any) -> AzureSettings:
        """Of a cluster's provider."""
        return AzureSettings.model_validate(self.words(cluster) | words)

    def words(self, cluster: str = CLUSTER) -> dict[str, Any]:
        """The same, as burstd.toml has it."""
        return {
            "subscription": SUBSCRIPTION, "resource_group": GROUP, "location": LOCATION, "tenant": TENANT,
            "client_id": self.client(cluster), "secret_file": str(self._folder / f"{cluster}.secret"),
            "endpoint": self.server.url, "authority": self.server.url, "ca_file": str(self.server.ca_file),
            "subnet": SUBNET, "security_group": SECURITY_GROUP, "instance_types": list(TYPES), "image": self.image,
            "price_url": f"{self.server.url}/api/retail/prices", "timeout_s": 20,
        }  # fmt: skip

    def client(self, cluster: str) -> str:
        """The cluster's service principal; made when it is first asked for, with burstd's roles and no others."""
        client = f"c11e4700-0000-4000-8000-{cluster.encode().hex():0>12}"
        if client not in self.cloud.clients:
            self.cloud.clients[client] = ROLES
            self.server.login.secrets[client] = f"secret-of-{cluster}"
            (self._folder / f"{cluster}.secret").write_text(f"secret-of-{cluster}\n", encoding="ascii")
        return client

    def certificate(self, cluster: str) -> Path:
        """The cluster's own, with its private key, which must be of RSA, in the same file."""
        key = rsa.generate_private_key(65537, 2048)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cluster)])
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        signed = made.not_valid_before(now).not_valid_after(now + timedelta(days=1)).sign(key, hashes.SHA256())
        pem = signed.public_bytes(Encoding.PEM)
        self.server.login.certificates[self.client(cluster)] = pem
        both = self._folder / f"{cluster}.pem"
        both.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return both

    def leave(self, name: str, tags: dict[str, str], kinds: Sequence[str] = THINGS) -> None:
        """Things that no machine uses."""
        for kind in kinds:
            self.cloud.keep(kind, name, tags)

    def publish_image(self) -> tuple[str, str]:
        if not self._images:
            self.withdraw_image(self.image)
        self._images += 1
        return DEFINITION, self.cloud.publish(f"2.0.{self._images}")

    def withdraw_image(self, version: str) -> None:
        del self.cloud.versions[version]

    def until(self, condition: Callable[[], bool]) -> None:
        end = self.now + _PATIENCE_S
        while not condition():
            assert self.now < end, f"the cloud never got there; {self.cloud.violations}"
            self.now += _STEP_S

    def calls(self) -> int:
        return self.cloud.calls.total()

    def user_data(self, instance_id: str) -> str:
        return self.cloud.machines[instance_id.lower()].user_data

    def offer(self, provider: Provider) -> Offer:
        return self.offers(provider)[0]

    def offers(self, provider: Provider, *, spot: bool = False) -> list[Offer]:
        """One market's, by type and zone."""
        found = [one for one in provider.offers() if one.spot is spot]
        return sorted(found, key=lambda one: (one.instance_type, one.zone))

    def inject_fault(self, how: Breakage) -> None:
        cloud = self.cloud
        if how is Breakage.CAPACITY:
            cloud.late.append(("AllocationFailed", "Allocation failed. We do not have sufficient capacity."))
        elif how is Breakage.QUOTA:
            text = "Operation could not be completed as it results in exceeding approved Total Regional Cores quota."
            cloud.refuse("PUT", _MACHINES, 409, "OperationNotAllowed", text)
        elif how is Breakage.IMAGE:
            cloud.refuse("PUT", _MACHINES, 404, "GalleryImageNotFound")
        elif how is Breakage.RATE:
            cloud.refuse("PUT", _MACHINES, 429, "TooManyRequests", retry_after=17)
        elif how is Breakage.AUTH:
            cloud.refuse("PUT", _MACHINES, 401, "InvalidAuthenticationToken", times=2)
        elif how is Breakage.DOWN:
            # Nothing is sent without a token: of a 503 of Azure's own nobody knows whether it was done.
            cloud.refuse("PUT", _MACHINES, 401, "ExpiredAuthenticationToken", then=self.server.login.go_down)
        elif how is Breakage.LOST:
            cloud.lost = 1
        elif how is Breakage.LIST_DOWN:
            cloud.refuse("GET", f"/resourceGroups/{GROUP}/providers/{_MACHINES}", 503, "ServerTimeout")
        elif how is Breakage.TERMINATE:
            cloud.refuse("DELETE", _MACHINES, 409, "AnotherOperationInProgress")
        elif how is Breakage.LEAK:
            cloud.leaks.append("Microsoft.Compute/disks")

    def close(self) -> None:
        """Gives all connections back. Nothing may have been said otherwise than Microsoft's models have it."""
        for one in self._providers:
            one.close()
        self.server.__exit__(None, None, None)
        assert self.cloud.violations == []
