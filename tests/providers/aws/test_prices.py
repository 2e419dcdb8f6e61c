from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from burstd.domain.errors import AuthFailed, CloudUnavailable
from providers.aws.catalog.prices import AwsPrices, HourlyPrice
from tests.providers.aws.ec2 import settings
from tests.providers.aws.shop import FakeCatalogApi

DAY = 24 * 3600.0


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def entry(name: str, *amounts: str, unit: str = "Hrs", currency: str = "USD") -> str:
    terms = {
        f"SKU.{place}": {"priceDimensions": {f"SKU.{place}.X": {"unit": unit, "pricePerUnit": {currency: amount}}}}
        for place, amount in enumerate(amounts)
    }
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": {"OnDemand": terms}})


def market(**more: Any) -> tuple[AwsPrices, FakeCatalogApi, Clock]:
    of, clock = settings(**more), Clock()
    shop = FakeCatalogApi(of)
    return AwsPrices(of, shop, clock, clock), shop, clock


def test_settings_come_before_the_list() -> None:
    prices, shop, clock = market(prices={"c5.large": "0.2"})
    shop.list = [entry("c5.large", "0.1"), entry("m5.large", "0.0960000000")]
    assert prices.on_demand(["c5.large", "m5.large", "x1.32xlarge"]) == {
        "c5.large": HourlyPrice(Decimal("0.2"), "settings"),
        "m5.large": HourlyPrice(Decimal("0.0960000000"), "price list", clock.now),
    }


@pytest.mark.parametrize(
    ("entries", "amount"),
    [
        ([entry("c5.large", "0.10", "0.12")], "0.12"),
        ([entry("c5.large", "0.12"), entry("c5.large", "0.10")], "0.12"),
        ([entry("c5.large", "0.00")], None),
        ([entry("c5.large", "10", unit="Quantity")], None),
        ([entry("c5.large", "10", currency="CNY")], None),
        ([json.dumps({"product": {"attributes": {"instanceType": "c5.large"}}, "terms": {}})], None),
    ],
)
def test_what_counts_of_a_list(entries: list[str], amount: str | None) -> None:
    prices, shop, _ = market()
    shop.list = entries
    found = prices.on_demand(["c5.large"]).get("c5.large")
    assert (found and found.amount) == (amount and Decimal(amount))


def test_few_types_are_asked_for_alone_and_many_at_once() -> None:
    prices, shop, _ = market()
    shop.list = [entry(f"c{number}.large", "1") for number in range(30)]
    assert len(prices.on_demand(["c1.large", "c2.large"])) == 2
    asked = [{one["Field"]: one["Value"] for one in words["Filters"]} for _, words in shop.said]
    assert asked[0] == {
        "regionCode": "eu-central-1", "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA",
        "capacitystatus": "Used", "marketoption": "OnDemand", "instanceType": "c1.large",
    }  # fmt: skip
    assert len(prices.on_demand([f"c{number}.large" for number in range(30)])) == 30
    assert "instanceType" not in {one["Field"] for one in shop.said[-1][1]["Filters"]}


def test_the_list_is_kept_for_a_day_and_longer_where_amazon_is_silent() -> None:
    prices, shop, clock = market()
    shop.list = [entry("c5.large", "0.1")]
    began = clock.now
    prices.on_demand(["c5.large"])
    clock.now = began + DAY - 1
    prices.on_demand(["c5.large"])
    assert shop.count("get_products") == 1
    clock.now = began + DAY
    shop.broken["get_products"] = CloudUnavailable("no way to Amazon")
    assert prices.on_demand(["c5.large"])["c5.large"].at == began
    assert prices.failures == {"price list": "no way to Amazon"}


def test_a_list_that_fails_leaves_types_without_a_price_and_is_asked_again() -> None:
    prices, shop, clock = market(prices={"m5.large": 1})
    shop.list = [entry("c5.large", "0.1")]
    shop.broken["get_products"] = AuthFailed("no right")
    assert prices.on_demand(["c5.large", "m5.large"]).keys() == {"m5.large"}
    clock.now += 299
    prices.on_demand(["c5.large"])
    assert shop.count("get_products") == 1
    clock.now += 1
    shop.broken.clear()
    assert prices.on_demand(["c5.large"]).keys() == {"c5.large"}
    assert prices.failures == {}


@pytest.mark.parametrize("more", [{"price_list": False}, {"currency": "EUR"}])
def test_no_list_where_it_is_not_wanted_or_of_another_currency(more: dict[str, Any]) -> None:
    prices, shop, _ = market(**more)
    shop.list = [entry("c5.large", "0.1", currency="EUR")]
    assert not prices.on_demand(["c5.large"])
    assert not shop.said
    assert ("EUR" in prices.failures.get("price list", "")) is ("currency" in more)


def test_spot_prices_are_the_newest_by_zone_with_their_own_time() -> None:
    prices, shop, clock = market(spot_prices={"m5.large": "0.03"})
    shop.history = [
        ("c5.large", "a", "0.04", 500.0), ("c5.large", "a", "0.05", 700.0), ("c5.large", "a", "0.06", 600.0),
        ("c5.large", "b", "0.07", 100.0), ("c5.large", "z", "9", 100.0), ("m5.large", "a", "9", 100.0),
    ]  # fmt: skip
    expected = {
        ("c5.large", "a"): HourlyPrice(Decimal("0.05"), "spot history", 700.0),
        ("c5.large", "b"): HourlyPrice(Decimal("0.07"), "spot history", 100.0),
        ("m5.large", "a"): HourlyPrice(Decimal("0.03"), "settings"),
        ("m5.large", "b"): HourlyPrice(Decimal("0.03"), "settings"),
    }
    assert prices.spot(["c5.large", "m5.large"], ["a", "b"]) == expected
    assert shop.said[0][1]["StartTime"].timestamp() == clock.now
    calls = len(shop.said)
    clock.now += 299
    shop.broken["describe_spot_price_history"] = CloudUnavailable("down")
    assert prices.spot(["c5.large", "m5.large"], ["a", "b"]) == expected
    assert len(shop.said) == calls
    clock.now += 1
    assert prices.spot(["c5.large", "m5.large"], ["a", "b"]) == expected
    assert prices.failures == {"spot history": "down"}
