"""Which SKUs of the price list are of machines. Descriptions as Google's price list has had them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from providers.google.catalog.prices import Part, gpu_words, parse_sku


def sku(text: str, usage: str = "OnDemand", unit: str = "h", **money: Any) -> dict[str, Any]:
    rate = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "1", "nanos": 500_000_000} | money}
    return {
        "description": text, "category": {"usageType": usage},
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (sku("N1 Predefined Instance Core running in Netherlands"), ("core", "n1", False)),
        (sku("N2D AMD Instance Ram running in Iowa", unit="GiBy.h"), ("ram", "n2d", False)),
        (sku("Spot Preemptible G2 Instance Core running in Iowa", "Preemptible"), ("core", "g2", True)),
        (sku("Compute optimized Core running in Iowa"), ("core", "c2", False)),
        (sku("C4A Arm Instance Core running in Iowa"), ("core", "c4a", False)),
        (sku("A2 Instance Ram running in Iowa", unit="GiBy.h"), ("ram", "a2", False)),
        (sku("Nvidia L4 GPU running in Iowa"), ("gpu", "l4", False)),
        (
            sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Rome", "Preemptible"),
            ("gpu", "t4", True),
        ),
        (sku("Nvidia H100 80GB GPU running in Iowa"), ("gpu", "h100 80gb", False)),
    ],
)  # fmt: skip
def test_what_machines_are_made_of(said: dict[str, Any], part: Part) -> None:
    assert parse_sku(said) == (part, Decimal("1.5"))


@pytest.mark.parametrize(
    "said",
    [
        {},
        sku("N1 Predefined Instance Core running in Netherlands", "Commit1Yr"),
        sku("N2 Custom Instance Core running in Netherlands"),
        sku("N2 Sole Tenancy Instance Core running in Netherlands"),
        sku("N1 Predefined Instance Core running in Netherlands", unit="mo"),
        sku("DWS Defined Duration N2 Instance Core running in Netherlands"),
        sku("Nvidia L4 GPU attached to reserved machines"),
        sku("Commitment v1: Nvidia L4 GPU running in Iowa for 1 Year"),
        sku("Network Internet Egress from Netherlands to Iowa", unit="GiBy"),
        {**sku("N1 Predefined Instance Core running in Netherlands"), "pricingInfo": []},
    ],
)
def test_what_is_of_no_machine(said: dict[str, Any]) -> None:
    assert parse_sku(said) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("nvidia-tesla-t4", "Nvidia Tesla T4"),
        ("nvidia-l4", "NVIDIA L4"),
        ("nvidia-a100-80gb", "Nvidia Tesla A100 80GB"),
    ],
)
def test_one_gpu_has_one_name(one: str, other: str) -> None:
    assert gpu_words(one) == gpu_words(other)
