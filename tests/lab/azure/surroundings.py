"""What is there without burstd's doing: images, the network, sizes of machines, quotas, prices."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from azure.mgmt.compute import models as compute
from azure.mgmt.network import models as network

from tests.lab.azure import schema
from tests.lab.azure.answers import OPTIONS, Answer, Json, Pages, Refused
from tests.lab.azure.names import DEFINITION, MANAGED, SECURITY_GROUP, SUBNET
from tests.lab.azure.specs import LOCATION, SIZES


class Surroundings(Pages):
    """Reads only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.versions: dict[str, Json] = {}
        """Of the gallery's image, by id."""
        self.features = {"DiskControllerTypes": "SCSI, NVMe"}
        self.generation = "V2"
        """Of the gallery's image, as are its features."""
        self.usages: dict[str, tuple[int, int]] = {}
        """In use and limit, by the name of the quota."""
        self.prices_down = False

    def publish(self, version: str, published: str = "", **more: Any) -> str:
        """A version of the gallery's image; its id."""
        found = f"{DEFINITION}/versions/{version}"
        profile = {
            "targetRegions": [{"name": "West Europe", "regionalReplicaCount": 1}], "excludeFromLatest": False,
            "publishedDate": published or datetime.fromtimestamp(self._clock() + len(self.versions), UTC).isoformat(),
            **more,
        }  # fmt: skip
        self.versions[found] = {
            "id": found, "name": version, "type": "Microsoft.Compute/galleries/images/versions", "location": LOCATION,
            "properties": {
                "publishingProfile": profile, "provisioningState": "Succeeded",
                "storageProfile": {"osDiskImage": {"sizeInGB": 30, "hostCaching": "ReadWrite"}},
            },
        }  # fmt: skip
        return found

    def _look_around(self, path: str, query: dict[str, str]) -> Answer:
        if path.endswith("/providers/Microsoft.Compute/skus"):
            assert query.keys() <= OPTIONS | {"$filter"}
            assert "$skiptoken" in query or query.get("$filter") == f"location eq '{LOCATION}'"
            return self._list(path, query, compute.ResourceSku, [one.sku() for one in SIZES.values()])
        if path.endswith(f"/providers/Microsoft.Compute/locations/{LOCATION}/usages"):
            return self._list(path, query, compute.Usage, self._usages())
        if path == f"{DEFINITION}/versions":
            return self._list(path, query, compute.GalleryImageVersion, list(self.versions.values()))
        about: tuple[Any, Json] | None = None
        if path == DEFINITION:
            identifier = {"publisher": "site", "offer": "slurm", "sku": "node"}
            about = compute.GalleryImage, {
                "osType": "Linux", "osState": "Generalized", "identifier": identifier, "architecture": "x64",
                "hyperVGeneration": self.generation,
                "features": [{"name": name, "value": value} for name, value in self.features.items()],
            }  # fmt: skip
        elif path == MANAGED:
            about = compute.Image, {
                "provisioningState": "Succeeded", "hyperVGeneration": "V2",
                "storageProfile": {"osDisk": {"osType": "Linux", "osState": "Generalized"}},
            }  # fmt: skip
        elif path == SUBNET:
            about = network.Subnet, {"addressPrefix": "10.77.0.0/16", "provisioningState": "Succeeded"}
        elif path == SECURITY_GROUP:
            about = network.NetworkSecurityGroup, {"securityRules": [], "provisioningState": "Succeeded"}
        elif path.endswith(
            "/publishers/Debian/artifacttypes/vmimage/offers/debian-12/skus/12-gen2/versions/0.20260101.1"
        ):
            about = compute.VirtualMachineImage, {"architecture": "x64", "hyperVGeneration": "V2"}
        if about is None:
            raise Refused(404, "ResourceNotFound", f"The Resource '{path}' was not found.")
        model, properties = about
        found: Json = {"id": path, "name": path.rpartition("/")[2], "properties": properties}
        if model is not network.Subnet:
            found["location"] = LOCATION
        schema.hold(model, found)
        return Answer(200, found)

    def _usages(self) -> list[Json]:
        names = [
            "cores",
            "lowPriorityCores",
            "virtualMachines",
            *sorted({one.family for one in SIZES.values()}),
            "disks",
        ]
        return [
            {
                "unit": "Count",
                "currentValue": used,
                "limit": limit,
                "name": {"value": name, "localizedValue": f"{name} here"},
            }
            for name in names
            for used, limit in [self.usages.get(name, (4, 1000))]
        ]

    def _prices(self, query: dict[str, str]) -> Answer:
        if self.prices_down:
            return Answer(503, "<html>The service is unavailable</html>")
        assert query.keys() <= {"currencyCode", "$filter", "$skip"}, query
        wanted, currency = query["$filter"], query["currencyCode"]
        assert f"armRegionName eq '{LOCATION}'" in wanted
        assert "serviceName eq 'Virtual Machines'" in wanted
        named = set(re.findall(r"armSkuName eq '([^']*)'", wanted))
        rows = [row for one in SIZES.values() if one.name in named for row in one.prices(currency.strip("'"))]
        start = int(query.get("$skip", 0))
        end = start + 5
        more = f"currencyCode={quote(currency)}&%24filter={quote(wanted)}&%24skip={end}"
        found = {
            "BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail",
            "Items": rows[start:end], "Count": len(rows[start:end]),
            "NextPageLink": f"{self.url}/api/retail/prices?{more}" if end < len(rows) else None,
        }  # fmt: skip
        return Answer(200, found)
