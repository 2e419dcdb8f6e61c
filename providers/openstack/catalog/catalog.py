"""What can be started: the flavors that the site allows, in the zones that there are, for the settings' prices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase

from burstd.domain.cloud.offer import Hardware, Offer
from burstd.domain.errors import BadRequest, NotAllowed
from providers.cache import CachedValue
from providers.openstack.catalog.flavors import Flavor, parse_flavor
from providers.openstack.client.calls import OpenStackCalls
from providers.openstack.settings import OpenStackSettings

_CACHE_S = 300.0
_VERSION = "2.61"
"""The first microversion that gives flavors with their extra specs."""


@dataclass(frozen=True, slots=True)
class _Flavors:
    all: Mapping[str, Flavor]
    """Those that the settings allow, by name."""
    names: tuple[str, ...]
    """Of all that the project sees."""
    hidden: bool
    """Whether the cloud shows this project no extra specs."""


class OpenStackCatalog:
    """Of one region, for one provider's settings. Used from many threads; makes no call before it is asked."""

    def __init__(
        self,
        name: str,
        settings: OpenStackSettings,
        calls: OpenStackCalls,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._settings = settings
        self._calls = calls
        self._flavors = CachedValue(self._read_flavors, _CACHE_S, clock)
        self._zones = CachedValue(self._read_zones, _CACHE_S, clock)

    def offers(self) -> Sequence[Offer]:
        """One for each flavor and zone. Raises BadRequest where there is none at all."""
        zones, region = self.zones(), self._calls.region()
        offers = [
            self._offer(flavor, price, zone, region)
            for flavor in self.flavors().values()
            if (price := self.price(flavor.name)) is not None and not flavor.unmapped_devices(self._settings.gpus)
            for zone in zones
        ]
        if not offers:
            raise BadRequest(self._no_offers_reason(zones))
        return offers

    def flavors(self) -> Mapping[str, Flavor]:
        """Those that the settings allow, by name, whether or not they are offered."""
        return self._flavors.get().all

    def flavor(self, name: str) -> Flavor | None:
        """None where this project sees none of that name, or the settings do not allow it."""
        return self.flavors().get(name)

    def visible_flavors(self) -> Sequence[str]:
        """Names of all flavors of the cloud that this project sees."""
        return self._flavors.get().names

    def hides_devices(self) -> bool:
        """Whether the cloud shows this project nobody's extra specs: then every flavor looks as if it had no GPU."""
        return self._flavors.get().hidden

    def price(self, name: str) -> Decimal | None:
        """Of an hour of a flavor; None: the settings have none."""
        fitting = [pattern for pattern in self._settings.prices if fnmatchcase(name, pattern)]
        return self._settings.prices[max(fitting, key=lambda pattern: (len(pattern), pattern))] if fitting else None

    def unpriced(self) -> Sequence[str]:
        """Flavors that are not offered for want of a price."""
        return [name for name in self.flavors() if self.price(name) is None]

    def unmapped_devices(self) -> Mapping[str, Sequence[str]]:
        """Flavors that are not offered for want of a word in the settings' ``gpus`` on their devices: those devices."""
        every = {name: flavor.unmapped_devices(self._settings.gpus) for name, flavor in self.flavors().items()}
        return {name: devices for name, devices in every.items() if devices}

    def zones(self) -> Sequence[str]:
        """Those that are available and allowed."""
        allowed = self._settings.zones
        return [
            name
            for name, available in self._zones.get().items()
            if available and (not allowed or any(fnmatchcase(name, pattern) for pattern in allowed))
        ]

    def knows_zone(self, zone: str) -> bool:
        """Whether the cloud has a zone of that name, be it available or not."""
        return zone in self.all_zones()

    def all_zones(self) -> Mapping[str, bool]:
        """Every zone of the cloud, and whether it is available."""
        return self._zones.get()

    def _offer(self, flavor: Flavor, price: Decimal, zone: str, region: str) -> Offer:
        settings = self._settings
        return Offer(
            provider=self._name, region=region, zone=zone, instance_type=flavor.name, spot=False,
            shape=flavor.shape(settings.gpus, settings.usable_memory),
            price=price + settings.address_hour, currency=settings.currency, price_source="settings",
            address_price=settings.address_hour, egress_price=settings.egress_gb,
            hardware=Hardware(
                flavor.architecture, local_disk_gib=flavor.ephemeral_gib,
                placement="server-group" if settings.gang_policy in ("affinity", "soft-affinity") else "",
            ),
        )  # fmt: skip

    def _no_offers_reason(self, zones: Sequence[str]) -> str:
        words, flavors = ", ".join(self._settings.flavors), self.flavors()
        if not flavors:
            return f"this project sees no flavor like {words}: look at flavors, and 'openstack flavor list'"
        if not zones:
            there = ", ".join(self.all_zones()) or "none at all"
            return f"no availability zone of the settings is available; the cloud has {there}: look at zones"
        unnamed = self.unmapped_devices()
        if len(self.unpriced()) == len(flavors):
            return f'no price is known of any of {words}: set prices = {{ "{next(iter(flavors))}" = "..." }}'
        return (
            f"every flavor of {words} lacks a price in prices, or has a device that gpus does not name: "
            f"{', '.join(sorted({device for devices in unnamed.values() for device in devices}))}"
        )

    def _read_flavors(self) -> _Flavors:
        """One list, page by page. Nova before 2.61, and one that hides them, is asked for each flavor's extra specs."""
        listed = [
            one
            for one in self._calls.pages(
                "compute", "/flavors/detail", "flavors", "list flavors", version=_VERSION, limit=self._settings.page
            )
            if not one.get("OS-FLV-DISABLED:disabled")
        ]
        allowed = [one for one in listed if any(fnmatchcase(one["name"], word) for word in self._settings.flavors)]
        hidden = False
        found: dict[str, Flavor] = {}
        for one in sorted(allowed, key=lambda flavor: str(flavor["name"])):
            specs = one.get("extra_specs")
            if specs is None and not hidden:
                specs = self._specs(one["id"])
                hidden = specs is None
            found[one["name"]] = parse_flavor(one, specs or {})
        return _Flavors(found, tuple(sorted(one["name"] for one in listed)), hidden)

    def _specs(self, flavor_id: str) -> Mapping[str, str] | None:
        """None where the project may not see them."""
        path = f"/flavors/{flavor_id}/os-extra_specs"
        try:
            specs: Mapping[str, str] = self._calls.query("compute", path, "read a flavor's extra specs")["extra_specs"]
        except NotAllowed:
            return None
        return specs

    def _read_zones(self) -> Mapping[str, bool]:
        said = self._calls.query("compute", "/os-availability-zone", "list availability zones")["availabilityZoneInfo"]
        return {one["zoneName"]: bool(one["zoneState"]["available"]) for one in said}
