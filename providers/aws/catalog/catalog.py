"""What can be started: the types that the site allows, where they are sold, and for how much."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.errors import BadRequest, NotFound
from burstd.domain.slurm.shape import Gres, Shape
from providers.aws.calls import AwsCalls
from providers.aws.catalog.prices import AwsPrices, HourlyPrice
from providers.aws.settings import AwsSettings
from providers.cache import CachedValue

_CACHE_S = 6 * 3600.0
_RESERVATIONS_CACHE_S = 300.0
_TYPES_PAGE = 100
"""Most that DescribeInstanceTypes gives at a time."""
_ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}
_GPU_MAKERS = ("nvidia", "amd")
_GIB_OF_GB = Decimal(10**9) / 2**30


@dataclass(frozen=True, slots=True)
class NetworkAdapter:
    """The first network interface of one network card: ``interface``, ``efa`` (IP and EFA) or ``efa-only``."""

    card: int
    kind: str


@dataclass(frozen=True, slots=True)
class Ec2InstanceType:
    """One of Amazon's. ``gpus`` are those of ``gpu_name``, each of ``gpu_memory_mib``."""

    name: str
    vcpus: int
    memory_mib: int
    gpus: int
    gpu_name: str
    """Amazon's; a part of a GPU is named so: ``L4 1/8``."""
    gpu_memory_mib: int
    architecture: str
    """As ``uname -m`` has it."""
    efa: tuple[NetworkAdapter, ...]
    """The adapters of a machine that makes the most of EFA, that of card 0 first; empty: the type has no EFA."""
    local_disk_gib: int
    """NVMe."""
    spot: bool
    on_demand: bool = True
    cluster_groups: bool = True
    """It can be in a cluster placement group."""


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """A capacity reservation or capacity block of the settings. ``free``: machines that may yet be launched in it."""

    id: str
    instance_type: str
    zone: str
    block: bool
    free: int
    open: bool = True
    """False: it has ended, or has not begun."""


@dataclass(frozen=True, slots=True)
class _TypeInZone:
    kind: Ec2InstanceType
    zone: str
    spot: bool


class AwsCatalog:
    """Of one region, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self, name: str, settings: AwsSettings, calls: AwsCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self.prices = AwsPrices(settings, calls, clock)
        self._types = CachedValue(self._read_types, _CACHE_S, clock)
        self._sold = CachedValue(self._read_sold, _CACHE_S, clock)
        self._subnets = CachedValue(self._read_subnets, _CACHE_S, clock)
        self._reserved: Mapping[str, CapacityReservation] = {}
        self._reservations = CachedValue(self._read_reservations, _RESERVATIONS_CACHE_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each zone, type and market that has a price. Raises BadRequest where there is none at all."""
        wares = self._types_in_zones()
        offers = [self._offer(ware, price) for ware, price in wares if price is not None]
        if not offers:
            raise BadRequest(self._no_offers_reason(sold=bool(wares)))
        return offers

    def unpriced(self) -> Sequence[str]:
        """Types that are sold in one of our zones and markets, and are not offered for want of a price there."""
        return sorted({ware.kind.name for ware, price in self._types_in_zones() if price is None})

    def types(self) -> Mapping[str, Ec2InstanceType]:
        """Those that the settings allow and that Linux runs on, whether or not they are sold in our zones."""
        return self._types.get()

    def type(self, name: str) -> Ec2InstanceType | None:
        """None where the region has none of that name, or the settings do not allow it."""
        return self._types.get().get(name)

    def subnet(self, zone: str) -> str | None:
        """The first of the settings in this zone."""
        return self._subnets.get().get(zone)

    def reservation(self, instance_type: str, zone: str) -> CapacityReservation | None:
        """That in which this type must be launched in this zone, on demand: an open one with most room comes first."""
        fitting = [
            one for one in self._reservations.get().values() if (one.instance_type, one.zone) == (instance_type, zone)
        ]
        return max(fitting, key=lambda one: (one.open, one.free), default=None)

    def _types_in_zones(self) -> Sequence[tuple[_TypeInZone, HourlyPrice | None]]:
        """All that is sold in our zones, each with its price where one is known."""
        zones, sold = self._subnets.get(), self._sold.get()
        reserved = {one.instance_type for one in self._reservations.get().values()}
        sold_types = []
        for kind in self._types.get().values():
            for zone in zones:
                if kind.name in reserved:
                    one = self.reservation(kind.name, zone)
                    if one is not None and one.open:
                        sold_types.append(_TypeInZone(kind, zone, spot=False))
                elif (kind.name, zone) in sold:
                    sold_types += [_TypeInZone(kind, zone, spot=False)] * kind.on_demand + [
                        _TypeInZone(kind, zone, spot=True)
                    ] * kind.spot
        on_demand = self.prices.on_demand(list({ware.kind.name: None for ware in sold_types if not ware.spot}))
        spot = self.prices.spot(list({ware.kind.name: None for ware in sold_types if ware.spot}), list(zones))
        return [
            (ware, spot.get((ware.kind.name, ware.zone)) if ware.spot else on_demand.get(ware.kind.name))
            for ware in sold_types
        ]

    def _offer(self, ware: _TypeInZone, price: HourlyPrice) -> Offer:
        kind = ware.kind
        gres = (Gres("gpu", self._gres_type(kind.gpu_name), kind.gpus),) if kind.gpus else ()
        fabric = "efa" if kind.efa and self._settings.efa else "none"
        # A reservation has its own place.
        grouped = self._settings.placement_groups and kind.cluster_groups
        reserved = not ware.spot and self.reservation(kind.name, ware.zone) is not None
        placement = "placement-group" if grouped and not reserved else ""
        address = self._settings.address_price
        return Offer(
            provider=self._name, region=self._settings.region, zone=ware.zone, instance_type=kind.name, spot=ware.spot,
            shape=Shape(kind.vcpus, int(kind.memory_mib * self._settings.usable_memory), gres),
            price=price.amount + address, currency=self._settings.currency, price_source=price.source,
            price_at=price.at, address_price=address, egress_price=self._settings.egress_gb,
            hardware=Hardware(kind.architecture, kind.gpu_memory_mib, kind.local_disk_gib, fabric, placement),
        )  # fmt: skip

    def _gres_type(self, gpu: str) -> str:
        return self._settings.gpu_names.get(gpu) or re.sub(r"[^a-z0-9_.-]", "_", gpu.lower())

    def _no_offers_reason(self, *, sold: bool) -> str:
        region, words = self._settings.region, ", ".join(self._settings.instance_types)
        if not self._types.get():
            return f"{region} has no instance type like {words}: look at instance_types"
        if not sold:
            zones = ", ".join(self._subnets.get())
            return f"none of {words} is to be had in {zones}: look at instance_types, subnets and reservations"
        why = "".join(f"; {source}: {text}" for source, text in self.prices.failures.items())
        return f"no price is known of any of {words}: set prices or price_list{why}"

    def _read_types(self) -> Mapping[str, Ec2InstanceType]:
        found = self._calls.pages(
            "ec2", "describe_instance_types", "InstanceTypes",
            limit=min(self._settings.page, _TYPES_PAGE), Filters=self._filters(),
        )  # fmt: skip
        kinds = [parse_instance_type(one) for one in found if self._allows(one["InstanceType"])]
        return {kind.name: kind for kind in sorted(kinds, key=lambda kind: kind.name) if kind.architecture}

    def _read_sold(self) -> frozenset[tuple[str, str]]:
        zones = {"Name": "location", "Values": list(self._subnets.get())}
        found = self._calls.pages(
            "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", limit=self._settings.page,
            LocationType="availability-zone", Filters=[*self._filters(), zones],
        )  # fmt: skip
        return frozenset((one["InstanceType"], one["Location"]) for one in found)

    def _filters(self) -> list[dict[str, Any]]:
        """Amazon's filters know ``*`` and ``?``; what they let through too much is left out here."""
        return [{"Name": "instance-type", "Values": [_as_filter(word) for word in self._settings.instance_types]}]

    def _allows(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._settings.instance_types)

    def _read_subnets(self) -> Mapping[str, str]:
        """Those that are there: a filter, unlike a list of ids, is no error where one is gone. Check tells of it."""
        wanted = self._settings.subnets
        named = [{"Name": "subnet-id", "Values": list(wanted)}]
        found = self._calls.query("ec2", "describe_subnets", Filters=named)["Subnets"]
        zones = {one["SubnetId"]: one["AvailabilityZone"] for one in found}
        first: dict[str, str] = {}
        for name in wanted:
            if name in zones:
                first.setdefault(zones[name], name)
        if not first:
            raise BadRequest(f"{self._settings.region} has none of {', '.join(wanted)}: look at subnets")
        return first

    def _read_reservations(self) -> Mapping[str, CapacityReservation]:
        """One question each: if one is gone, Amazon says nothing of the others."""
        found = {name: self._read_reservation(name) for name in self._settings.reservations}
        self._reserved = {name: one for name, one in found.items() if one is not None}
        return self._reserved

    def _read_reservation(self, name: str) -> CapacityReservation | None:
        """None where Amazon has forgotten it, or never knew it: nothing else says of which type it was. Check tells."""
        try:
            said = self._calls.query("ec2", "describe_capacity_reservations", CapacityReservationIds=[name])
        except (BadRequest, NotFound):
            said = {"CapacityReservations": ()}
        for one in said["CapacityReservations"]:
            return CapacityReservation(
                id=name, instance_type=one["InstanceType"], zone=one["AvailabilityZone"],
                block=one.get("ReservationType") == "capacity-block", free=one["AvailableInstanceCount"],
                open=one["State"] == "active",
            )  # fmt: skip
        # While this process knows its type, that is still not to be launched outside of it.
        known = self._reserved.get(name)
        return known and replace(known, free=0, open=False)


def parse_instance_type(said: Mapping[str, Any]) -> Ec2InstanceType:
    """An entry of DescribeInstanceTypes; without ``architecture`` where it is none that Linux runs on."""
    there = said["ProcessorInfo"]["SupportedArchitectures"]
    network = said["NetworkInfo"]
    gpus, gpu_name, gpu_memory_mib = _gpus(said.get("GpuInfo", {}).get("Gpus", ()))
    disks = said.get("InstanceStorageInfo", {})
    nvme = disks.get("NvmeSupport", "unsupported") != "unsupported"
    return Ec2InstanceType(
        name=said["InstanceType"],
        vcpus=said["VCpuInfo"]["DefaultVCpus"],
        memory_mib=said["MemoryInfo"]["SizeInMiB"],
        gpus=gpus,
        gpu_name=gpu_name,
        gpu_memory_mib=gpu_memory_mib,
        architecture=next((name for amazon_name, name in _ARCHITECTURES.items() if amazon_name in there), ""),
        efa=_adapters(network) if network.get("EfaSupported") else (),
        local_disk_gib=int(disks["TotalSizeInGB"] * _GIB_OF_GB) if nvme else 0,
        spot="spot" in said["SupportedUsageClasses"],
        on_demand="on-demand" in said["SupportedUsageClasses"],
        cluster_groups="cluster" in said.get("PlacementGroupInfo", {}).get("SupportedStrategies", ("cluster",)),
    )


def _adapters(network: Mapping[str, Any]) -> tuple[NetworkAdapter, ...]:
    """One for each card that can, and card 0 in any case, whose adapter carries IP. Source:
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html

    An old boto3 does not say what a card can: then all can where there is EFA for each, and card 0 where it is for one.
    """
    cards = {one.get("NetworkCardIndex", 0): one for one in network.get("NetworkCards", ())} or {0: {}}
    most = network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1)
    able = {card: one["InterfaceTypes"] for card, one in cards.items() if "InterfaceTypes" in one}
    if not able:
        able = dict.fromkeys([0] if most == 1 else cards if most == len(cards) else (), ("efa", "efa-only"))
    first = "efa" if "efa" in able.get(0, ()) else "interface"
    further = [
        NetworkAdapter(card, "efa-only" if "efa-only" in able[card] else "efa")
        for card in sorted(able.keys() - {0})
        if {"efa", "efa-only"} & set(able[card])
    ][: most - (first == "efa")]
    return (NetworkAdapter(0, first), *further) if first == "efa" or further else ()


def _gpus(said: Sequence[Mapping[str, Any]]) -> tuple[int, str, int]:
    """Number, name, MiB of each; of the name that there are most of. Accelerators of other makers are no GPUs."""
    counts: Counter[str] = Counter()
    memory: dict[str, int] = {}
    for one in said:
        if one["Manufacturer"].lower() in _GPU_MAKERS:
            name = one["Name"] + _fraction(one.get("GpuPartitionSize", 1.0))
            counts[name] += one.get("LogicalGpuCount") or one["Count"]
            memory[name] = one.get("MemoryInfo", {}).get("SizeInMiB", 0)
    for name, count in counts.most_common(1):
        return count, name, memory[name]
    return 0, "", 0


def _fraction(size: float) -> str:
    return f" 1/{round(1 / size)}" if 0 < size < 1 else ""


def _as_filter(pattern: str) -> str:
    return re.sub(r"\[!?\]?[^\]]*\]", "?", pattern)
