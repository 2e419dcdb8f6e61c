"""[site.cost]: prices of the site's own nodes, and what is wrong with them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from burstd.settings import SettingsError, parse_settings

HEAD = 'cluster = "site"\n[site.cost.cpu]\nnodes = ["op*"]\n'


@pytest.mark.parametrize(
    ("text", "owned", "marginal"),
    [
        ("node_hour = '0.50'", "0.50", None),
        ("node_hour = 0.5\nkw = 1\nenergy_kwh = '0.20'\npue = 1.5", "0.20", "0.30"),
        ("price = 8760\nlife_years = 1", "1", "0"),
        ("price = 8760\nlife_years = 1\nkw = 1\nkw_idle = 0.5\nenergy_kwh = '0.20'\nstaff_month = 73", "1.20", "0.10"),
    ],
)
def test_prices_that_are_right(text: str, owned: str, marginal: str | None) -> None:
    group = parse_settings(HEAD + text).tuning.site_costs.group_of("op1")
    assert group is not None
    assert (group.hour.owned, group.hour.marginal) == (Decimal(owned), None if marginal is None else Decimal(marginal))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 2: site.cost.cpu: needs node_hour, or gpu_hour, or price and life_years"),
        ("price = 1", "line 2: site.cost.cpu: needs node_hour, or gpu_hour, or price and life_years"),
        ("node_hour = 1\ngpu_hour = 1", "line 2: site.cost.cpu: has node_hour and gpu_hour: give node_hour, or"),
        ("node_hour = 1\nstaff_month = 1", "has node_hour and staff_month: give node_hour, or gpu_hour, or the parts"),
        ("node_hour = 1\nkw = 1", "line 2: site.cost.cpu: needs both of kw and energy_kwh, or none"),
        ("node_hour = 1\nkw_idle = 1", "line 5: site.cost.cpu.kw_idle: must not be more than kw"),
        ("node_hour = 1\nkw = 9\nenergy_kwh = 1", "line 4: site.cost.cpu.node_hour: must not be less than the energy"),
        ("node_hour = -1", "line 4: site.cost.cpu.node_hour: must be greater than or equal to 0"),
        ("price = 1\nlife_years = 0", "line 5: site.cost.cpu.life_years: must be greater than 0"),
        ("node_hour = 1\npue = 0.9", "line 5: site.cost.cpu.pue: must be greater than or equal to 1"),
        ("node_hour = 1\ncurrency = '€'", "site.cost.cpu.currency: must be the code of a currency"),
    ],
)
def test_prices_that_are_wrong(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(HEAD + text)
    assert says in str(raised.value)
