"""What a provider can start, and the pools of slots that it may fill."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from burstd.domain.cloud.bounds import (
    MAX_CAPACITY_WAIT_S,
    MAX_CPUS,
    MAX_GRES,
    MAX_MEMORY_MIB,
    MAX_PRICE,
    clamped,
    valid_name,
    valid_time,
)
from burstd.domain.framework import Framework
from burstd.domain.slurm.shape import PARTS_OF_GPUS, Gres, Shape


@dataclass(frozen=True, slots=True)
class Hardware:
    """What an offer's machine is beyond its shape, as far as the provider says."""

    architecture: str = ""
    """As ``uname -m`` has it: ``x86_64``, ``aarch64``."""
    gpu_memory_mib: int = 0
    """Of each GPU."""
    local_disk_gib: int = 0
    """Disks of the machine's own, which end with it."""
    fabric: str = ""
    """The network for jobs of many nodes, as jobs ask for it (``-C efa``): ``efa``, ``ib``; ``none``: the common one
    only; empty: the provider cannot tell."""
    placement: str = ""
    """What its provider keeps the nodes of one job near each other by: ``placement-group``, ``server-group``,
    ``topology-key``; empty: nothing."""

    @property
    def binding(self) -> str:
        """Both in one word: ``placement-group+efa``; empty: nothing is known."""
        return "+".join(filter(None, (self.placement, self.fabric)))


def place_name(provider: str, region: str, zone: str, instance_type: str) -> str:
    """``provider/region/zone/type``. A slash in a name must not shift the fields."""
    return "/".join(field.replace("/", "%2F") for field in (provider, region, zone, instance_type))


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to get a machine: a provider, a place, a type, a price.

    ``price`` is in ``currency`` for an hour. ``shape`` is what a job finds on it: GRES included.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    spot: bool
    shape: Shape
    price: Decimal
    currency: str = "EUR"
    hardware: Hardware = Hardware()
    capacity_wait_s: float = field(default=0.0, compare=False)
    """How long its cloud may look for a place before the machine begins to boot; then it says so itself. In seconds."""
    price_source: str = field(default="", compare=False)
    """Where the price comes from: ``settings``, ``price list``, ``spot history`` ..."""
    price_at: float = field(default=0.0, compare=False)
    """When the price was learned, in seconds since 1970; 0: not known."""
    address_price: Decimal = field(default=Decimal(0), compare=False)
    """Of ``price``, what is for the machine's public address."""
    egress_price: Decimal = field(default=Decimal(0), compare=False)
    """Of a GB (10^9 bytes) that leaves the provider, in ``currency``."""

    def __post_init__(self) -> None:
        """Raises ValueError for a name, price or size that cannot be; times are brought within their bounds."""
        for what in ("region", "zone", "instance_type", "currency"):
            valid_name(getattr(self, what), f"the {what} of an offer")
        for price, unit in ((self.price, "an hour"), (self.egress_price, "a GB")):
            if not (price.is_finite() and 0 <= price <= MAX_PRICE):
                raise ValueError(f"{self.id}: a price of {str(price)[:40]} for {unit} cannot be")
        if not (self.address_price.is_finite() and 0 <= self.address_price <= self.price):
            part = str(self.address_price)[:40]
            raise ValueError(f"{self.id}: of a price of {self.price} for an hour an address cannot be {part}")
        sizes = [(self.shape.cpus, MAX_CPUS), (self.shape.memory_mib, MAX_MEMORY_MIB)]
        sizes += [(gres.count, MAX_GRES) for gres in self.shape.gres]
        if any(not 0 <= size <= most for size, most in sizes):
            raise ValueError(f"{self.id}: a machine of {str(self.shape)[:200]} cannot be")
        object.__setattr__(self, "capacity_wait_s", clamped(self.capacity_wait_s, MAX_CAPACITY_WAIT_S))
        object.__setattr__(self, "price_at", valid_time(self.price_at))

    @property
    def market(self) -> str:
        """``spot`` or ``on-demand``."""
        return "spot" if self.spot else "on-demand"

    @property
    def id(self) -> str:
        """Stable name of the offer: ``provider/region/zone/type/market``."""
        return f"{self.provider}/{self.region}/{self.zone}/{self.instance_type}/{self.market}"

    @property
    def place(self) -> str:
        """Where its machines are, as ``place_name`` has it."""
        return place_name(self.provider, self.region, self.zone, self.instance_type)


@dataclass(frozen=True, slots=True)
class OfferRule:
    """Which offers of one provider may fill a pool; patterns as in the shell, none means all."""

    provider: str
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    markets: tuple[str, ...] = ("on-demand",)
    """``on-demand``, ``spot`` or both."""
    image: str = ""

    def allows(self, offer: Offer) -> bool:
        """True where this rule names the offer."""
        return (
            offer.provider == self.provider
            and offer.market in self.markets
            and _any(self.instance_types, offer.instance_type)
            and _any(self.zones, offer.zone)
        )


def _any(patterns: tuple[str, ...], text: str) -> bool:
    return not patterns or any(fnmatchcase(text, p) for p in patterns)


GpuMemoryLimit = Literal["none", "mps", "dmem"]
"""``mps``: variables that NVIDIA's MPS reads, in jobs' environment. ``dmem``: the kernel's, on a job's cgroup."""


class GpuTest(StrEnum):
    """How the GPUs of a new machine are tested before jobs use it; each includes the ones before."""

    NONE = "none"
    BASIC = "basic"
    """What nvidia-smi says of their health."""
    SHORT = "short"
    """Each computes something whose result is known."""
    LONG = "long"
    """``dcgmi diag -r 2``, which takes some two minutes."""


@dataclass(frozen=True, slots=True)
class FabricTest:
    """How the network between nodes of one job is tested before they open."""

    command: str
    """Run on both ends; ``ib_write_bw`` and its like get their port and address as arguments."""
    limit_s: float = 60.0
    min_gb_s: float = 0.0
    """Fewest GB/s; 0: whatever is measured will do."""


def fabric_features(fabric: str) -> tuple[str, ...]:
    """The features of Slurm by which jobs ask for a pool's fabric: its name, and ``fabric`` for any."""
    return (fabric, "fabric") if fabric else ()


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots (Slurm node names) of one shape, and the offers that may fill them."""

    name: str
    slots: tuple[str, ...]
    partitions: tuple[str, ...]
    shape: Shape
    rules: tuple[OfferRule, ...] = ()
    exclusive_user: bool = False
    """A slot runs jobs of one user at a time: ExclusiveUser=YES of its partitions."""
    mig: tuple[Gres, ...] = ()
    """What each GPU is cut into before slurmd starts (MIG): profiles as types of ``gpu``; empty: it stays whole."""
    gpu_memory_limit: GpuMemoryLimit = "none"
    """What keeps jobs to their shards' part of a GPU's memory."""
    gpu_test: GpuTest | None = None
    """None: BASIC where the image has nvidia-smi."""
    gpu_test_limit_s: float = 0.0
    """How long SHORT and LONG may take together; 0: the test is none of these."""
    gpu_min_gb_s: float = 0.0
    """With LONG: fewest GB/s from the host to each GPU, by nvbandwidth; 0: that is not measured."""
    frameworks: tuple[Framework, ...] = ()
    """Those of the shape's features that are software, which a machine is tested for."""
    fabric: str = ""
    """``Hardware.fabric`` that all of its nodes have, in one place; empty: none is promised."""
    fabric_test: FabricTest | None = None

    cpu_jobs: bool = False
    """Jobs that ask for no GPU may start machines of it, although they have GPUs."""
    scratch: int = 0
    """Bytes that a machine of it has for jobs' scratch; 0: nobody knows."""
    reuse_from: tuple[str, ...] = ()
    """Pools whose idle machines become nodes of this one, where a machine would be launched otherwise."""

    @property
    def gpu_jobs_only(self) -> bool:
        """No machine of it starts for a job that asks for no GPU. One that is there runs such jobs as well."""
        return bool(self.shape.gpus()) and not self.cpu_jobs

    def machine_shape(self) -> Shape:
        """What a machine must bring: its GPUs whole, and without what Slurm makes of them."""
        gres = [g for g in self.shape.gres if g.name not in PARTS_OF_GPUS]
        for cut in self.mig[:1]:
            gpus = sum(g.count for g in gres if (g.name, g.type) == ("gpu", cut.type)) // cut.count
            gres = [g for g in gres if g.name != "gpu"] + [Gres("gpu", "", gpus)]
        return replace(self.shape, gres=tuple(gres))
