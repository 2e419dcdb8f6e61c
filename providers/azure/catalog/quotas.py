"""How much of the subscription's limits is left: vCPUs of the location as a whole, of spot, and of each family.

https://learn.microsoft.com/azure/virtual-machines/quotas
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burstd.domain.plugins.provider import Quota
from providers.azure.calls import AzureCalls
from providers.azure.catalog.catalog import AzureCatalog
from providers.azure.catalog.sizes import AzureSize
from providers.azure.settings import AzureSettings

_ALL, _SPOT, _MACHINES = "cores", "lowPriorityCores", "virtualMachines"


class AzureQuotas:
    """Those that bear on the sizes that the settings allow."""

    def __init__(self, settings: AzureSettings, calls: AzureCalls, catalog: AzureCatalog) -> None:
        self._settings = settings
        self._calls = calls
        self._catalog = catalog

    def read_quotas(self) -> Sequence[Quota]:
        """One list; names as Azure's portal has them."""
        return [quota for quota, _ in self.with_needs()]

    def with_needs(self) -> Sequence[tuple[Quota, Mapping[str, int]]]:
        """Each with what one machine of each size that it counts takes of it."""
        sizes = [size for size in self._catalog.sizes().values() if not size.withheld]
        path = self._calls.in_subscription(f"Microsoft.Compute/locations/{self._settings.location}/usages")
        found = []
        for said in self._calls.pages(path, "read quotas"):
            if needs := _needs(said["name"]["value"], sizes):
                unit = "instances" if said["name"]["value"] == _MACHINES else "vCPUs"
                found.append((_quota(said, unit), needs))
        return sorted(found, key=lambda one: one[0].name)


def _needs(name: str, sizes: Sequence[AzureSize]) -> dict[str, int]:
    if name == _MACHINES:
        return {size.name: 1 for size in sizes}
    return {
        size.name: size.vcpus
        for size in sizes
        if name == _ALL or (name == _SPOT and size.spot) or name.lower() == size.family.lower()
    }


def _quota(said: Mapping[str, Any], unit: str) -> Quota:
    name = said["name"].get("localizedValue") or said["name"]["value"]
    return Quota(name, int(said["limit"]), int(said["currentValue"]), unit)
