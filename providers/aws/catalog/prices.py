"""What an hour costs: from the settings, Amazon's price list, the history of spot prices."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

from burstd.domain.errors import ProviderError
from providers.aws.calls import AwsCalls
from providers.aws.settings import AwsSettings

SETTINGS, LIST, HISTORY = "settings", "price list", "spot history"
_LIST_S = 24 * 3600.0
_HISTORY_S = 300.0
_RETRY_S = 300.0
_ONE_BY_ONE = 20
"""Types up to which each is asked for alone; the list of a whole region comes in a dozen pages."""
_LIST_PAGE = 100
_NAMES = 100
"""Types in one question for spot prices."""
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """Of an hour, in the settings' currency. ``at`` in seconds since 1970; 0: not known."""

    amount: Decimal
    source: str
    at: float = 0.0


class AwsPrices:
    """Of one region. A source that fails is asked again after five minutes; what it said before is kept, with its age.

    List: https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
    """

    def __init__(
        self,
        settings: AwsSettings,
        calls: AwsCalls,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._date = date
        self._lock = threading.Lock()
        self._failures: dict[str, str] = {}
        self._listed: dict[str, HourlyPrice] = {}
        self._list_until: dict[str, float] = {}
        self._seen: dict[tuple[str, str], HourlyPrice] = {}
        self._seen_until: dict[tuple[str, str], float] = {}

    @property
    def failures(self) -> Mapping[str, str]:
        """Source -> why it could not be had when it was asked last."""
        with self._lock:
            return dict(self._failures)

    def on_demand(self, types: Collection[str]) -> Mapping[str, HourlyPrice]:
        """Those that are known; raises nothing."""
        own = self._settings.prices
        with self._lock:
            if self._settings.price_list:
                self._refresh(LIST, self._list_until, [name for name in types if name not in own], self._read_list)
            known = {name: price for name in types if (price := self._listed.get(name))}
        return known | {name: HourlyPrice(own[name], SETTINGS) for name in types if name in own}

    def spot(self, types: Collection[str], zones: Collection[str]) -> Mapping[tuple[str, str], HourlyPrice]:
        """By type and zone, those that are known; raises nothing."""
        own = self._settings.spot_prices
        places = [(name, zone) for name in types for zone in zones]
        with self._lock:
            asked = [place for place in places if place[0] not in own]
            self._refresh(HISTORY, self._seen_until, asked, self._read_history)
            known = {place: price for place in places if (price := self._seen.get(place))}
        return known | {place: HourlyPrice(own[place[0]], SETTINGS) for place in places if place[0] in own}

    def _refresh(
        self, source: str, until: dict[_Key, float], asked: Collection[_Key], read: Callable[[Collection[_Key]], None]
    ) -> None:
        now = self._clock()
        due = [one for one in asked if now >= until.get(one, 0.0)]
        if not due:
            return
        cache_s = _HISTORY_S if source == HISTORY else _LIST_S
        try:
            self._same_currency()
            read(due)
        except ProviderError as error:
            self._failures[source] = str(error)
            cache_s = _RETRY_S
        else:
            self._failures.pop(source, None)
        until.update(dict.fromkeys(due, now + cache_s))

    def _same_currency(self) -> None:
        amazons = "CNY" if self._settings.region.startswith("cn-") else "USD"
        if self._settings.currency != amazons:
            raise ProviderError(f"it is in {amazons}, the settings' currency is {self._settings.currency}")

    def _read_list(self, types: Collection[str]) -> None:
        now = self._date()
        for name in types if len(types) <= _ONE_BY_ONE else ("",):
            found: dict[str, Decimal] = {}
            for product in self._products(name):
                kind, amount = _parse_product(product, self._settings.currency)
                # Where there are several the dearest: a bill may be smaller than foreseen, not larger.
                if amount > found.get(kind, 0):
                    found[kind] = amount
            self._listed.update({kind: HourlyPrice(amount, LIST, now) for kind, amount in found.items()})

    def _products(self, name: str) -> Iterator[Any]:
        wanted = {
            "regionCode": self._settings.region, "operatingSystem": "Linux", "tenancy": "Shared",
            "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand",
        }  # fmt: skip
        if name:
            wanted["instanceType"] = name
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
        more: dict[str, str] = {}
        while True:
            answer = self._calls.query(
                "pricing", "get_products", ServiceCode="AmazonEC2", Filters=filters, MaxResults=_LIST_PAGE, **more
            )
            yield from map(json.loads, answer["PriceList"])
            if not answer.get("NextToken"):
                return
            more["NextToken"] = answer["NextToken"]

    def _read_history(self, places: Collection[tuple[str, str]]) -> None:
        types, zones = sorted({name for name, _ in places}), sorted({zone for _, zone in places})
        now = datetime.fromtimestamp(self._date(), UTC)
        for start in range(0, len(types), _NAMES):
            for one in self._calls.pages(
                "ec2", "describe_spot_price_history", "SpotPriceHistory", limit=self._settings.page,
                InstanceTypes=types[start : start + _NAMES], ProductDescriptions=["Linux/UNIX"], StartTime=now,
                Filters=[{"Name": "availability-zone", "Values": zones}],
            ):  # fmt: skip
                place = one["InstanceType"], one["AvailabilityZone"]
                at = one["Timestamp"].timestamp()
                if place not in self._seen or at >= self._seen[place].at:
                    self._seen[place] = HourlyPrice(Decimal(one["SpotPrice"]), HISTORY, at)


def _parse_product(product: Mapping[str, Any], currency: str) -> tuple[str, Decimal]:
    """Type and price of one entry of the list; 0 where it has none for an hour in this currency."""
    amounts = [
        Decimal(dimension["pricePerUnit"].get(currency, "0"))
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if dimension["unit"] == "Hrs"
    ]
    return product["product"]["attributes"]["instanceType"], max(amounts, default=Decimal(0))
