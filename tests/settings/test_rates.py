"""[rates]: bad ones are refused, and so are pools whose prices cannot be compared."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from burstd.settings import PluginRegistry, SettingsError, parse_settings, resolve_plugins
from burstd.settings.rates import old_rates
from burstd.settings.reload import diff_settings, settings_until_restart

HEAD = 'cluster = "site"\n'
RATES = "[rates]\ncurrency = 'EUR'\ndate = 2020-11-01\nworth = { USD = '0.86' }\n"
POOL = """
[pools.{0}]
nodes = "{0}[1-2]"
partitions = {1}
cpus = 4
memory = 1000
offers = [{2}]
"""
SKY = """
[providers.sky]
kind = "openstack"
cloud = "sky"
networks = ["n"]
flavors = ["*"]
image = "i"
prices = { "*" = "1" }
[providers.fog]
kind = "openstack"
cloud = "fog"
networks = ["n"]
flavors = ["*"]
image = "i"
prices = { "*" = "1" }
currency = "USD"
[providers.sand]
kind = "sandbox"
"""


def pools(*named: tuple[str, str, str]) -> str:
    return "".join(
        POOL.format(name, partitions, ", ".join(f'{{ provider = "{one}" }}' for one in providers.split()))
        for name, partitions, providers in named
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("'EUR'", "'euro'", "line 3: rates.currency: must be the code of a currency, such as 'EUR'"),
        ("USD", "US", "rates.worth.US: must be the code of a currency"),
        ("0.86", "0", "line 5: rates.worth.USD: must be greater than or equal to 0.000001"),
        ("0.86", "NaN", "line 5: rates.worth.USD: must be a finite number"),
        ("'0.86'", "1e9", "line 5: rates.worth.USD: must be less than or equal to 1000000"),
        ("USD", "EUR", "'worth' must not name EUR"),
        ("USD = '0.86'", "", "line 5: rates.worth: must have at least one entry"),
        ("date = 2020-11-01\n", "", "rates.date: must be set"),
        ("2020-11-01", "'2020-11-01'", "line 4: rates.date: must be a date without quotes, such as 2026-11-01"),
    ],
)
def test_a_fault_of_the_rates_is_named(old: str, new: str, says: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse_settings(HEAD + RATES.replace(old, new))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("days", "says"),
    [
        (40, []),
        (41, ["line 4: rates.date: is 41 days ago: set the rates of now, and their date"]),
        (-2, ["line 4: rates.date: is in the future: set the day of which the rates are, or this machine's clock"]),
    ],
)
def test_rates_of_another_time_are_named(days: int, says: list[str]) -> None:
    day = datetime.now().astimezone().date() - timedelta(days)
    settings = parse_settings(HEAD + RATES.replace("2020-11-01", day.isoformat()))
    assert [str(one) for one in old_rates(settings)] == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (pools(("a", '["x"]', "sky fog")), "pools.a.offers[1].provider: names fog, whose prices are in USD;"),
        (pools(("a", '["x"]', "fog sky")), "in partition x too, are in USD. Prices are compared: set [rates],"),
        (pools(("a", '["x", "y"]', "sky"), ("b", '["y"]', "fog")), "pools.b.offers[0].provider: names fog,"),
        (RATES.replace("USD", "CHF") + pools(("a", '["x"]', "sky fog")), "set a rate for USD in [rates]"),
        (pools(("a", '["x"]', "sky"), ("b", '["y"]', "fog")), ""),
        (pools(("a", '["x"]', "sky sand"), ("b", '["y"]', "fog sand")), ""),
        (RATES + pools(("a", '["x"]', "sky fog")), ""),
        (RATES.replace("USD", "CHF") + pools(("a", '["x"]', "fog")), ""),
    ],
)  # fmt: skip
def test_prices_that_would_be_compared_need_a_rate(text: str, says: str) -> None:
    settings = parse_settings(HEAD + text + SKY)
    if not says:
        resolve_plugins(settings, PluginRegistry.installed(), check_files=False)
        return
    with pytest.raises(SettingsError) as raised:
        resolve_plugins(settings, PluginRegistry.installed(), check_files=False)
    assert says in str(raised.value)
    assert "2 faults" not in str(raised.value)


@pytest.mark.parametrize(("before", "after"), [("", RATES), (RATES, ""), (RATES, RATES.replace("0.86", "0.9"))])
def test_rates_come_and_go_with_a_reload(before: str, after: str) -> None:
    old, new = parse_settings(HEAD + before), parse_settings(HEAD + after)
    assert not diff_settings(old, new).at_restart
    assert settings_until_restart(old, new).tuning.rates == new.tuning.rates
