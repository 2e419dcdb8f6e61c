"""What an hour costs: from the settings, or Azure's public list of retail prices.

https://learn.microsoft.com/rest/api/cost-management/retail-prices/azure-retail-prices
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from burstd.domain.cloud.read_limits import BoundedList
from burstd.domain.errors import CloudUnavailable, ProviderError, RateLimited
from providers.azure.calls import AzureCalls
from providers.azure.errors import read_object
from providers.azure.settings import AzureSettings
from providers.http_errors import retry_after_s
from providers.parsing import translate_malformed

SETTINGS, LIST = "settings", "price list"
_LIST_S = 6 * 3600.0
_RETRY_S = 300.0
_NAMES = 15
"""Sizes in one question: its address must not become too long."""
_WHAT = "read Azure's price list"


class HourlyPrice(NamedTuple):
    """Of an hour, in the settings' currency. ``at`` in seconds since 1970; 0: not known."""

    amount: Decimal
    source: str
    at: float = 0.0


class RetailPrices:
    """Of one location. A list that fails is asked for again after five minutes; what it said before is kept."""

    def __init__(
        self,
        settings: AzureSettings,
        calls: AzureCalls,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._clock = clock
        self._date = date
        self._lock = threading.Lock()
        self._listed: dict[tuple[str, bool], HourlyPrice] = {}
        self._until: dict[str, float] = {}
        self.failure = ""
        """Why the list could not be had when it was asked for last; empty: it could."""

    def prices(self, sizes: Sequence[str]) -> Mapping[tuple[str, bool], HourlyPrice]:
        """By size and whether spot, those that are known; raises nothing."""
        own = {
            (name, spot): HourlyPrice(amount, SETTINGS)
            for spot, given in ((False, self._settings.prices), (True, self._settings.spot_prices))
            for name, amount in given.items()
        }
        with self._lock:
            if self._settings.price_list:
                self._refresh([name for name in sizes if not {(name, False), (name, True)} <= own.keys()])
            return {**self._listed, **own}

    def _refresh(self, sizes: Sequence[str]) -> None:
        now = self._clock()
        due = [name for name in sizes if now >= self._until.get(name, 0.0)]
        cache_s = _LIST_S
        try:
            for start in range(0, len(due), _NAMES):
                with translate_malformed():
                    self._read(due[start : start + _NAMES])
            if due:
                self.failure = ""
        except ProviderError as error:
            self.failure, cache_s = str(error), _RETRY_S
        self._until.update(dict.fromkeys(due, now + cache_s))

    def _read(self, sizes: Sequence[str]) -> None:
        """Of several prices of one size the dearest: a bill may be smaller than foreseen, not larger."""
        found: dict[tuple[str, bool], Decimal] = {}
        for said in self._items(sizes):
            if not _is_of_linux(said):
                continue
            key = said["armSkuName"], said["meterName"].endswith(" Spot")
            found[key] = max(Decimal(str(said["retailPrice"])), found.get(key, Decimal(0)))
        now = self._date()
        self._listed.update({key: HourlyPrice(amount, LIST, now) for key, amount in found.items() if amount})

    def _items(self, sizes: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        url, host = self._settings.price_url, urlsplit(self._settings.price_url).netloc
        named = " or ".join(f"armSkuName eq '{name}'" for name in sizes)
        query: dict[str, str] = {
            "currencyCode": f"'{self._settings.currency}'",
            "$filter": (
                f"serviceName eq 'Virtual Machines' and armRegionName eq '{self._settings.location}' "
                f"and priceType eq 'Consumption' and ({named})"
            ),
        }
        reading = BoundedList(_WHAT)
        while url:
            with reading.page():
                answer = self._calls.public(url, _WHAT, **query)
            if answer.status >= 300:
                kind = RateLimited if answer.status == 429 else CloudUnavailable
                pause = retry_after_s(answer.headers.get("retry-after"))
                raise kind(f"cannot {_WHAT}: {answer.text('', 200)}", retry_after_s=pause)
            said = read_object(answer.body) or {}
            yield from reading.items(said["Items"])
            url, query = str(said.get("NextPageLink") or ""), {}
            if url and urlsplit(url).netloc.partition(":")[0] != host.partition(":")[0]:
                raise CloudUnavailable(f"cannot {_WHAT}: its next page is at {urlsplit(url).hostname}")


def _is_of_linux(said: Mapping[str, Any]) -> bool:
    """Of a plain machine by the hour: not reserved, of Windows, of the older low priority, or of a cloud service."""
    names = f"{said['productName']} {said['skuName']} {said['meterName']}"
    return (said["type"], said["unitOfMeasure"]) == ("Consumption", "1 Hour") and not any(
        word in names for word in ("Windows", "Low Priority", "CloudServices", "Cloud Services")
    )
