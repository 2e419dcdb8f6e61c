"""Sizes of machines as Azure's list of SKUs has them, with prices as its price list has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LOCATION = "westeurope"


@dataclass(frozen=True)
class Size:
    """``price``: of an hour on demand, in USD, made up; a quarter of it as spot. ``withheld``: everywhere, or zones."""

    name: str
    family: str
    vcpus: int
    memory_gb: str
    price: float
    gpus: int = 0
    arm: bool = False
    spot: bool = True
    zones: tuple[str, ...] = ("1", "2", "3")
    withheld: tuple[str, ...] = ()
    local_mib: int = 0
    more: Mapping[str, str] = field(default_factory=dict)

    def sku(self) -> dict[str, Any]:
        """Its entry of the list."""
        can = {
            "vCPUs": str(self.vcpus), "MemoryGB": self.memory_gb, "LowPriorityCapable": str(self.spot),
            "CpuArchitectureType": "Arm64" if self.arm else "x64", "HyperVGenerations": "V1,V2", "PremiumIO": "True",
            "AcceleratedNetworkingEnabled": "True", "MaxResourceVolumeMB": str(self.local_mib), **self.more,
        }  # fmt: skip
        if self.gpus:
            can["GPUs"] = str(self.gpus)
        restrictions = []
        if "everywhere" in self.withheld:
            info = {"locations": [LOCATION]}
            restrictions = [_restriction("Location", [LOCATION], info)]
        elif self.withheld:
            info = {"locations": [LOCATION], "zones": list(self.withheld)}
            restrictions = [_restriction("Zone", [LOCATION], info)]
        return {
            "resourceType": "virtualMachines", "name": self.name, "tier": "Standard", "family": self.family,
            "size": self.name.removeprefix("Standard_"), "locations": [LOCATION],
            "locationInfo": [{"location": LOCATION, "zones": list(self.zones), "zoneDetails": []}],
            "capabilities": [{"name": name, "value": value} for name, value in can.items()],
            "restrictions": restrictions,
        }  # fmt: skip

    def prices(self, currency: str) -> Iterator[dict[str, Any]]:
        """Its entries of the price list, with those that a reader must leave out."""
        plain = f"Virtual Machines {self.family} Series"
        short = self.name.removeprefix("Standard_").replace("_", " ")
        paid = "Consumption"
        for product, meter, amount, how in (
            (plain, short, self.price, paid), (f"{plain} Windows", short, 3 * self.price, paid),
            (plain, short, 9000 * self.price, "Reservation"), (plain, short, 2 * self.price, "DevTestConsumption"),
            *(
                ((plain, f"{short} Spot", self.price / 4, paid), (plain, f"{short} Low Priority", 7.0, paid))
                if self.spot else ()
            ),
        ):  # fmt: skip
            yield {
                "currencyCode": currency, "tierMinimumUnits": 0.0, "retailPrice": amount, "unitPrice": amount,
                "armRegionName": LOCATION, "location": "EU West", "effectiveStartDate": "2026-01-01T00:00:00Z",
                "meterId": "m", "meterName": meter, "productId": "p", "skuId": "s", "productName": product,
                "skuName": meter, "serviceName": "Virtual Machines", "serviceId": "DZH313Z7MMC8",
                "serviceFamily": "Compute", "unitOfMeasure": "1 Hour", "type": how,
                "isPrimaryMeterRegion": True, "armSkuName": self.name,
            }  # fmt: skip


def _restriction(kind: str, values: list[str], info: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "values": values, "restrictionInfo": info, "reasonCode": "NotAvailableForSubscription"}


SIZES = {
    size.name: size
    for size in (
        Size("Standard_D2s_v5", "standardDSv5Family", 2, "8", 0.11),
        Size(
            "Standard_D2s_v6",
            "StandardDsv6Family",
            2,
            "8",
            0.12,
            more={"DiskControllerTypes": "NVMe", "HyperVGenerations": "V2"},
        ),
        Size("Standard_D4ads_v5", "standardDADSv5Family", 4, "16", 0.24, local_mib=153600, zones=("1", "2")),
        Size("Standard_D2ps_v5", "standardDPSv5Family", 2, "8", 0.09, arm=True, zones=("1",)),
        Size("Standard_NC4as_T4_v3", "Standard NCASv3_T4 Family", 4, "28", 0.60, gpus=1, withheld=("3",)),
        Size("Standard_NC6s_v3", "standardNCSv3Family", 6, "112", 3.90, gpus=1, withheld=("1", "2", "3")),
        Size("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, "220", 4.60, gpus=1, zones=()),
        Size(
            "Standard_ND96isr_H100_v5", "standardNDSH100v5Family", 96, "1900", 120.0, gpus=8, withheld=("everywhere",)
        ),
        Size("Standard_NV6ads_A10_v5", "StandardNVADSA10v5Family", 6, "55", 0.55, gpus=1, spot=False, zones=()),
    )
}
