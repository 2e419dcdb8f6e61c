"""What can be started: the machine types that the site allows, in which zones, and for how much."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.errors import BadRequest
from burstd.domain.slurm.shape import Gres, Shape
from providers.cache import CachedValue
from providers.google.calls import GoogleCalls
from providers.google.catalog.prices import GooglePrices, HourlyPrice, gpu_words
from providers.google.labels import last_part
from providers.google.settings import GoogleSettings

_CACHE_S = 6 * 3600.0
_ARCHITECTURES = {"X86_64": "x86_64", "ARM64": "aarch64"}
_LOCAL_SSD_GIB = 375
_GPU_GIB = {"a100": 40, "l4": 24, "p4": 8, "p100": 16, "t4": 16, "v100": 16}
"""Of those whose name does not say. Source: https://cloud.google.com/compute/docs/gpus"""
_GONE = ("OBSOLETE", "DELETED")


@dataclass(frozen=True, slots=True)
class MachineType:
    """One of Google's, with the GPUs that are in it or that the settings attach to it."""

    name: str
    """As the settings have it: ``n1-standard-8+nvidia-tesla-t4:1``."""
    cpus: int
    memory_mib: int
    gpu: str = ""
    """Google's accelerator type."""
    gpus: int = 0
    architecture: str = "x86_64"
    """As ``uname -m`` has it."""
    local_disk_gib: int = 0

    @property
    def family(self) -> str:
        """``n2d`` of ``n2d-standard-4``."""
        return self.name.partition("-")[0]


class GoogleCatalog:
    """Of one region, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self, name: str, settings: GoogleSettings, calls: GoogleCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self.prices = GooglePrices(settings, calls, clock)
        self._zones = CachedValue(self._read_zones, _CACHE_S, clock)
        self._types = CachedValue(self._read_types, _CACHE_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each zone, type and market that has a price. Raises BadRequest where there is none at all."""
        offers = [
            self._offer(kind, zone, spot=spot, price=price)
            for zone, kind, spot in self._wares()
            if (price := self.prices.hour(kind, spot=spot)) is not None
        ]
        if not offers:
            words, region = ", ".join(self._settings.machine_types), self._settings.region
            if not any(self._types.get().values()):
                raise BadRequest(f"{', '.join(self.zones())} have no machine type like {words}: look at machine_types")
            why = f"; price list: {self.prices.failure}" if self.prices.failure else ""
            raise BadRequest(f"no price is known of any of {words} in {region}: set prices or price_list{why}")
        return offers

    def unpriced(self) -> Sequence[str]:
        """Types that are in one of our zones, and are not offered in a market for want of a price there."""
        return sorted({kind.name for _, kind, spot in self._wares() if self.prices.hour(kind, spot=spot) is None})

    def zones(self) -> list[str]:
        """Of the settings, or all that the region has."""
        return list(self._settings.zones) or self.zones_of_region()

    def zones_of_region(self) -> list[str]:
        """All, also those that the settings leave out: there may be machines from before."""
        return self._zones.get()

    def types(self) -> Sequence[MachineType]:
        """Those that the settings allow, of all zones, each once."""
        return list({kind.name: kind for kinds in self._types.get().values() for kind in kinds}.values())

    def _wares(self) -> Iterator[tuple[str, MachineType, bool]]:
        return ((zone, kind, spot) for zone, kinds in self._types.get().items() for kind in kinds
                for spot in (False, True))  # fmt: skip

    def _offer(self, kind: MachineType, zone: str, *, spot: bool, price: HourlyPrice) -> Offer:
        settings = self._settings
        gres = (Gres("gpu", self._gres_type(kind.gpu), kind.gpus),) if kind.gpus else ()
        return Offer(
            provider=self._name, region=settings.region, zone=zone, instance_type=kind.name, spot=spot,
            shape=Shape(kind.cpus, int(kind.memory_mib * settings.usable_memory), gres),
            price=price.amount + settings.address_price, currency=settings.currency, price_source=price.source,
            price_at=price.at, address_price=settings.address_price, egress_price=settings.egress_gb,
            hardware=Hardware(kind.architecture, gpu_memory_mib(kind.gpu), kind.local_disk_gib),
        )  # fmt: skip

    def _gres_type(self, gpu: str) -> str:
        own = gpu.removeprefix("nvidia-").removeprefix("tesla-")
        return self._settings.gpu_names.get(gpu) or re.sub(r"[^a-z0-9_.-]", "_", own)

    def _read_zones(self) -> list[str]:
        said = self._calls.query(
            "compute.regions.get", f"read region {self._settings.region}", project=self._settings.project,
            region=self._settings.region, fields="zones",
        )  # fmt: skip
        return sorted(last_part(one) for one in said["zones"])

    def _read_types(self) -> Mapping[str, Sequence[MachineType]]:
        """By zone. One list for each, and one more where GPUs are attached."""
        words = dict.fromkeys(self._settings.machine_types)
        attached = [tuple(word.partition("+")[::2]) for word in words if "+" in word]
        plain = [word for word in words if "+" not in word]
        found: dict[str, Sequence[MachineType]] = {}
        for zone in self.zones():
            place: dict[str, Any] = {
                "project": self._settings.project, "zone": zone, "maxResults": self._settings.page,
            }  # fmt: skip
            known = {
                one["name"]: one
                for one in self._calls.items("compute.machineTypes.list", f"list machine types of {zone}", **place)
                if (one.get("deprecated") or {}).get("state") not in _GONE
            }
            kinds = {
                name: parse_machine_type(one)
                for name, one in known.items()
                if any(fnmatchcase(name, pattern) for pattern in plain)
            }
            gpus = set()
            if attached:
                list_gpus = self._calls.items(
                    "compute.acceleratorTypes.list", f"list accelerator types of {zone}", **place
                )
                gpus = {one["name"] for one in list_gpus}
            for pattern, accelerator in attached:
                gpu, _, count = accelerator.partition(":")
                for name, one in known.items() if gpu in gpus else ():
                    if fnmatchcase(name, pattern):
                        kind = parse_machine_type(one, gpu, int(count))
                        kinds[kind.name] = kind
            found[zone] = [kinds[name] for name in sorted(kinds)]
        return found


def gpu_memory_mib(gpu: str) -> int:
    """Of an accelerator type; 0: unknown."""
    name = gpu_words(gpu)
    said = re.search(r"\b(\d{1,4})gb\b", name)
    return 1024 * (int(said[1]) if said else _GPU_GIB.get(name, 0))


def parse_machine_type(said: Mapping[str, Any], gpu: str = "", gpus: int = 0) -> MachineType:
    """An entry of ``machineTypes.list``. ``gpu``: what the settings attach to it."""
    name = str(said["name"])
    if gpu:
        name = f"{name}+{gpu}:{gpus}"
    for one in said.get("accelerators") or ():
        gpu, gpus = one["guestAcceleratorType"], one["guestAcceleratorCount"]
    return MachineType(
        name=name, cpus=said["guestCpus"], memory_mib=said["memoryMb"], gpu=gpu, gpus=gpus,
        architecture=_ARCHITECTURES.get(said.get("architecture", ""), ""),
        local_disk_gib=(said.get("bundledLocalSsds") or {}).get("partitionCount", 0) * _LOCAL_SSD_GIB,
    )  # fmt: skip
