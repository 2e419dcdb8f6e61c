"""What bytes cost that leave a cloud: to the millionth, on the day on which they came."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.domain.billing.traffic import traffic_charge, traffic_cost
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer

ANN = Payer("17", "ann", "atlas", "gpu")
PRICE = Decimal("0.09")


@pytest.mark.parametrize(
    ("size", "cost"),
    [
        (0, "0"),
        (5_555, "0"),
        (5_556, "0.000001"),
        (10**9, "0.09"),
        (2**30, "0.096637"),
        (5 * 10**11 + 1, "45"),
        (2**60, "103762935.414616"),
    ],
)
def test_a_gigabyte_is_ten_to_the_ninth(size: int, cost: str) -> None:
    assert traffic_cost(PRICE, size) == Decimal(cost)


@pytest.mark.parametrize(
    ("size", "price", "first_open", "charge"),
    [
        (10**9, PRICE, 0, Charge(20423, Kind.TRAFFIC, "", ANN, 90_000, 0, "", 10**9)),
        (10**9, PRICE, 20423, Charge(20423, Kind.TRAFFIC, "", ANN, 90_000, 0, "", 10**9)),
        (10**9, PRICE, 20424, Charge(20424, Kind.TRAFFIC, "", ANN, 90_000, 0, "2025-12", 10**9)),
        (10**9, Decimal(0), 0, None),
        (5_000, PRICE, 0, None),
    ],
    ids=["no month closed", "first open day", "after its month was closed", "free", "less than a millionth"],
)
def test_a_charge_is_of_the_day_or_corrects_its_month(
    size: int, price: Decimal, first_open: int, charge: Charge | None
) -> None:
    assert traffic_charge(20423.9 * DAY_S, ANN, size, price, first_open) == charge
