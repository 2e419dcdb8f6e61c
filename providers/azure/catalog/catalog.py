"""What can be started: the sizes that the site allows, where this subscription may have them, and for how much."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.errors import BadRequest
from burstd.domain.slurm.shape import Gres, Shape
from providers.azure.calls import AzureCalls
from providers.azure.catalog.prices import HourlyPrice, RetailPrices
from providers.azure.catalog.sizes import AzureSize, gres_type, parse_size
from providers.azure.resources import zone_name
from providers.azure.settings import AzureSettings
from providers.cache import CachedValue

_CACHE_S = 6 * 3600.0


class AzureCatalog:
    """Of one location, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self, name: str, settings: AzureSettings, calls: AzureCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self.prices = RetailPrices(settings, calls, clock)
        self._sizes = CachedValue(self._read_sizes, _CACHE_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each zone, size and market that has a price. Raises BadRequest where there is none at all."""
        sold, known = self._sold(), self.prices.prices(list(self.sizes()))
        offers = [
            self._offer(size, zone, known[size.name, spot], spot=spot)
            for size, zone, spot in sold
            if (size.name, spot) in known
        ]
        if not offers:
            raise BadRequest(self._no_offers_reason(sold=bool(sold)))
        return offers

    def unpriced(self) -> Sequence[str]:
        """Sizes that are sold, and not offered in some market for want of a price."""
        known = self.prices.prices(list(self.sizes()))
        return sorted({size.name for size, _, spot in self._sold() if (size.name, spot) not in known})

    def sizes(self) -> Mapping[str, AzureSize]:
        """Those that the settings allow and that Linux runs on, whether or not this subscription may have them."""
        return self._sizes.get()

    def type(self, name: str) -> AzureSize | None:
        """None where the location has none of that name, or the settings do not allow it."""
        return self._sizes.get().get(name)

    def _sold(self) -> Sequence[tuple[AzureSize, str, bool]]:
        """Sizes, zones as offers have them, and whether spot."""
        return [
            (size, zone, spot)
            for size in self.sizes().values()
            for zone in self._places(size)
            for spot in (False, True)[: 1 + size.spot]
        ]

    def _places(self, size: AzureSize) -> Iterator[str]:
        """Where this subscription may have it."""
        if size.withheld:
            return
        if size.regional and not self._settings.zones:
            yield self._settings.location
        for zone in size.zones:
            if not self._settings.zones or zone in self._settings.zones:
                yield zone_name(self._settings.location, zone)

    def _offer(self, size: AzureSize, zone: str, price: HourlyPrice, *, spot: bool) -> Offer:
        kind = gres_type(size, self._settings.gpus) if size.gpus else None
        address = self._settings.address_price
        return Offer(
            provider=self._name, region=self._settings.location, zone=zone, instance_type=size.name, spot=spot,
            shape=Shape(
                size.vcpus, int(size.memory_mib * self._settings.usable_memory),
                (Gres("gpu", kind, size.gpus),) if kind else (),
            ),
            price=price.amount + address, currency=self._settings.currency, price_source=price.source,
            price_at=price.at, address_price=address, egress_price=self._settings.egress_gb,
            # Machines by themselves share no InfiniBand, whatever their size could in a scale set.
            hardware=Hardware(size.architecture, size.gpu_memory_mib, size.local_disk_gib, "none"),
        )  # fmt: skip

    def _no_offers_reason(self, *, sold: bool) -> str:
        place, words = self._settings.location, ", ".join(self._settings.instance_types)
        if not self.sizes():
            return f"{place} has no size of machine like {words}: look at instance_types"
        if not sold:
            why = sorted({size.withheld for size in self.sizes().values() if size.withheld})
            withheld = f" ({', '.join(why)}: ask Azure's support for access)" if why else ""
            return f"this subscription may have none of {words} in {place}{withheld}: look at instance_types and zones"
        failure = f"; {self.prices.failure}" if self.prices.failure else ""
        return f"no price is known of any of {words}: set prices or price_list{failure}"

    def _read_sizes(self) -> Mapping[str, AzureSize]:
        found: dict[str, AzureSize] = {}
        for said in self._calls.pages(
            self._calls.in_subscription("Microsoft.Compute/skus"), "list sizes of machines",
            **{"$filter": f"location eq '{self._settings.location}'"},
        ):  # fmt: skip
            name = said.get("name", "")
            if said.get("resourceType") == "virtualMachines" and any(
                fnmatchcase(name, pattern) for pattern in self._settings.instance_types
            ):
                size = parse_size(said, self._settings.location)
                if size.architecture:
                    found[name] = size
        return dict(sorted(found.items()))
