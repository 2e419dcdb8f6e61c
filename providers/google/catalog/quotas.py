"""Limits of the project in its region, and what of them is used.

https://cloud.google.com/compute/resource-usage. Google keeps newer limits, of newer machines, in its Cloud Quotas API,
which says nothing of their use: those show when they are reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from burstd.domain.plugins.provider import Quota
from providers.google.calls import GoogleCalls
from providers.google.catalog.catalog import GoogleCatalog, MachineType
from providers.google.catalog.prices import gpu_words
from providers.google.settings import GoogleSettings

_SHARED = ("e2", "n1", "f1", "g1")
"""Families whose processors count as ``CPUS``."""
_UNITS = (("_GB", "GB"), ("GPUS", "GPUs"), ("CPUS", "vCPUs"), ("INSTANCES", "instances"), ("ADDRESSES", "addresses"))


class GoogleQuotas:
    """Those that bear on what the settings have burstd make."""

    def __init__(self, settings: GoogleSettings, calls: GoogleCalls, catalog: GoogleCatalog) -> None:
        self._settings = settings
        self._calls = calls
        self._catalog = catalog

    def read_quotas(self) -> Sequence[Quota]:
        """Two calls: the project's, and the region's."""
        wanted = set(self._wanted())
        project = {"project": self._settings.project}
        said = [
            self._calls.query("compute.projects.get", "read the project's quotas", fields="quotas", **project),
            self._calls.query(
                "compute.regions.get", "read the region's quotas", region=self._settings.region, fields="quotas",
                **project,
            ),
        ]  # fmt: skip
        found = {one["metric"]: one for answer in said for one in answer.get("quotas", ()) if one["metric"] in wanted}
        return [
            Quota(name, int(one["limit"]), int(one.get("usage", 0)), _unit(name)) for name, one in sorted(found.items())
        ]

    def _wanted(self) -> Iterator[str]:
        yield "SSD_TOTAL_GB" if self._settings.disk.type in ("pd-ssd", "pd-balanced") else "DISKS_TOTAL_GB"
        if self._settings.public_address:
            yield "IN_USE_ADDRESSES"
        for kind in self._catalog.types():
            yield from metrics(kind)


def metrics(kind: MachineType) -> dict[str, int]:
    """How much of which quotas a machine takes, on demand and as a Spot VM."""
    cpus = "CPUS" if kind.family in _SHARED else f"{kind.family.upper()}_CPUS"
    found = {"INSTANCES": 1} | dict.fromkeys((cpus, "PREEMPTIBLE_CPUS", "CPUS_ALL_REGIONS"), kind.cpus)
    if kind.gpus:
        gpu = gpu_words(kind.gpu).upper().replace(" ", "_")
        names = {gpu, gpu.removesuffix("_80GB") if gpu.startswith("H100") else gpu}
        found["GPUS_ALL_REGIONS"] = kind.gpus
        found |= {f"{market}NVIDIA_{name}_GPUS": kind.gpus for name in names for market in ("", "PREEMPTIBLE_")}
    return found


def _unit(name: str) -> str:
    return next((unit for word, unit in _UNITS if word in name), "")
