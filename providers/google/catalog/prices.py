"""What an hour costs: from the settings, or added up from Google's price list, whose SKUs are of single processors, GiB
of memory and GPUs.

A SKU does not name the machine types that it is for: its description does, as far as it is understood here. What is not
understood has no price, and is not offered. https://cloud.google.com/billing/v1/how-tos/catalog-api
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from burstd.domain.errors import ProviderError
from providers.cache import CachedValue
from providers.google.calls import GoogleCalls
from providers.google.settings import GoogleSettings

if TYPE_CHECKING:
    from providers.google.catalog.catalog import MachineType

_CACHE_S = 24 * 3600.0
_RETRY_S = 600.0
_COMPUTE_ENGINE = "services/6F81-5844-456A"
_PAGE = 2000
_FIELDS = (
    "nextPageToken,skus(description,category/usageType,serviceRegions,"
    "pricingInfo/pricingExpression(usageUnit,tieredRates))"
)
_MARKETS = {"OnDemand": False, "Preemptible": True}
_PART = re.compile(
    r"(?:Spot Preemptible )?(?P<family>[A-Z][A-Z0-9]{1,3}|Compute optimized)(?: Predefined| AMD| Arm)?"
    r"(?: Instance)? (?P<part>Core|Ram) running in .+"
)
_GPU = re.compile(r"(?P<name>Nvidia .+?) GPU(?: attached to (?:Spot )?Preemptible VMs)? running in .+", re.IGNORECASE)
_FAMILIES = {"compute optimized": "c2"}
_UNITS = {"h", "GiBy.h"}
_SHARED_CORES = frozenset({"f1-micro", "g1-small", "e2-micro", "e2-small", "e2-medium"})
"""Of these a part of a processor is charged."""
Part = tuple[str, str, bool]
"""``core``, ``ram`` or ``gpu``; family or GPU; whether of Spot VMs."""


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """In the settings' currency, without the address and the disk."""

    amount: Decimal
    source: str
    at: float = 0.0
    """When it was learned, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class _PriceList:
    parts: Mapping[Part, Decimal]
    at: float


class GooglePrices:
    """Of one region. ``failure``: why the price list could not be read; empty: it could, or was not asked for."""

    def __init__(self, settings: GoogleSettings, calls: GoogleCalls, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._list = CachedValue(self._read, _CACHE_S, clock)
        self._retry_at = float("-inf")
        self.failure = ""

    def hour(self, kind: MachineType, *, spot: bool) -> HourlyPrice | None:
        """None: no source knows it."""
        own = (self._settings.spot_prices if spot else self._settings.prices).get(kind.name)
        if own is not None:
            return HourlyPrice(own, "settings")
        # Local SSDs are charged beside the processor, under names that do not say of which type they are a part.
        if not self._settings.price_list or kind.name in _SHARED_CORES or kind.local_disk_gib:
            return None
        known = self._known()
        if known is None:
            return None
        amounts = [
            (known.parts.get(("core", kind.family, spot)), Decimal(kind.cpus)),
            (known.parts.get(("ram", kind.family, spot)), Decimal(kind.memory_mib) / 1024),
        ]
        if kind.gpus:
            amounts.append((known.parts.get(("gpu", gpu_words(kind.gpu), spot)), Decimal(kind.gpus)))
        total = Decimal(0)
        for amount, count in amounts:
            if amount is None:
                return None
            total += amount * count
        return HourlyPrice(total.quantize(Decimal("0.000001")), "price list", known.at)

    def _known(self) -> _PriceList | None:
        """A failure is not tried again for each type."""
        if self.failure and self._clock() < self._retry_at:
            return None
        try:
            found = self._list.get()
        except ProviderError as error:
            self.failure, self._retry_at = str(error), self._clock() + _RETRY_S
            return None
        self.failure = ""
        return found

    def _read(self) -> _PriceList:
        """Some 20 pages: Google has no filter but the service."""
        parts: dict[Part, Decimal] = {}
        skus = self._calls.items(
            "cloudbilling.services.skus.list", "read Google's price list", list_key="skus", keeps_items=False,
            parent=_COMPUTE_ENGINE, pageSize=_PAGE, currencyCode=self._settings.currency, fields=_FIELDS,
        )  # fmt: skip
        for sku in skus:
            if self._settings.region in sku.get("serviceRegions", ()) and (found := parse_sku(sku)) is not None:
                parts[found[0]] = found[1]
        return _PriceList(parts, time.time())


def parse_sku(said: Mapping[str, Any]) -> tuple[Part, Decimal] | None:
    """What a SKU is the price of, and the price of an hour; None: of nothing that machines are made of."""
    spot = _MARKETS.get((said.get("category") or {}).get("usageType", ""))
    price = _hourly(said)
    text = str(said.get("description", ""))
    if spot is None or price is None:
        return None
    if found := _PART.fullmatch(text):
        family = found["family"].lower()
        return (found["part"].lower(), _FAMILIES.get(family, family), spot), price
    if found := _GPU.fullmatch(text):
        return ("gpu", gpu_words(found["name"]), spot), price
    return None


def gpu_words(name: str) -> str:
    """One form of ``nvidia-tesla-t4`` and ``Nvidia Tesla T4``."""
    return " ".join(word for word in re.split(r"[\s-]+", name.lower()) if word not in ("nvidia", "tesla"))


def _hourly(said: Mapping[str, Any]) -> Decimal | None:
    """The price of the last tier of the pricing that is in force; Google lists free tiers before it."""
    info = said.get("pricingInfo") or ()
    expression = info[-1].get("pricingExpression") or {} if info else {}
    rates = expression.get("tieredRates") or ()
    if expression.get("usageUnit") not in _UNITS or not rates:
        return None
    money = rates[-1].get("unitPrice") or {}
    return Decimal(money.get("units") or 0) + Decimal(money.get("nanos") or 0) / 10**9
