"""What an hour of the site's own nodes costs, by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.domain.billing.site_cost import CostParts, HourCost, NodeGroup, SiteCosts, plain_hour

BOUGHT = CostParts(
    price=Decimal(87600),
    life_years=Decimal(5),
    kw=Decimal(1),
    kw_idle=Decimal("0.5"),
    pue=Decimal("1.2"),
    energy_kwh=Decimal("0.25"),
    housing_month=Decimal(73),
    staff_month=Decimal(146),
)
"""2.00 to buy it, 0.10 housing, 0.20 staff, 0.15 idle energy; 0.15 more energy at work."""


@pytest.mark.parametrize(
    ("hour", "owned", "marginal", "full"),
    [
        (BOUGHT.hour("EUR"), "2.45", "0.15", "2.60"),
        (CostParts(price=Decimal(8760), life_years=Decimal(1)).hour("EUR"), "1", "0", "1"),
        (CostParts(kw=Decimal(2), pue=Decimal("1.5"), energy_kwh=Decimal("0.20")).hour("EUR"), "0", "0.60", "0.60"),
        (plain_hour("EUR", Decimal("2.60"), Decimal("0.15"), per_gpu=False), "2.45", "0.15", "2.60"),
        (plain_hour("EUR", Decimal("2.60"), None, per_gpu=False), "2.60", None, "2.60"),
        (plain_hour("EUR", Decimal("0.65"), Decimal("0.05"), per_gpu=True).of_node(4), "2.40", "0.20", "2.60"),
        (plain_hour("EUR", Decimal("0.65"), None, per_gpu=True).of_node(0), "0", None, "0"),
    ],
)
def test_an_hour(hour: HourCost, owned: str, marginal: str | None, full: str) -> None:
    assert (hour.owned, hour.marginal, hour.full) == (
        Decimal(owned),
        None if marginal is None else Decimal(marginal),
        Decimal(full),
    )


@pytest.mark.parametrize(
    ("utilisation", "used"), [("1", "2.60"), ("0.5", "5.05"), ("0.25", "9.95"), ("0", None), ("-1", None)]
)
def test_an_hour_of_use(utilisation: str, used: str | None) -> None:
    assert BOUGHT.hour("EUR").used(Decimal(utilisation)) == (None if used is None else Decimal(used))


@pytest.mark.parametrize(
    ("price", "utilisation"),
    [("5.05", "0.5"), ("9.95", "0.25"), ("2.60", "1"), ("2.59", None), ("0.15", None), ("0", None)],
)
def test_when_renting_costs_the_same(price: str, utilisation: str | None) -> None:
    found = BOUGHT.hour("EUR").break_even(Decimal(price))
    assert found == (None if utilisation is None else Decimal(utilisation))
    if found:
        assert BOUGHT.hour("EUR").used(found) == Decimal(price)


def test_a_node_is_of_the_first_group_that_names_it() -> None:
    hour = BOUGHT.hour("EUR")
    fat, cpu = NodeGroup("fat", ("cpu9[0-9]", "fat*"), hour), NodeGroup("cpu", ("cpu*",), hour)
    costs = SiteCosts((fat, cpu))
    assert [costs.group_of(name) for name in ("cpu90", "cpu1", "fat2", "gpu1")] == [fat, cpu, fat, None]
