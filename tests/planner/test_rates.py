"""Prices in several currencies: compared at a rate, and without one never by their numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from burstd.domain.billing.rates import Rates
from burstd.domain.cloud.offer import Offer, OfferRule
from burstd.planner.decide import Decider
from burstd.planner.offers.offers import evaluate_offers, usable_offers
from burstd.planner.policy_chain import make_target
from burstd.planner.timeouts import Tuning
from policies.spot import SpotPolicy, SpotSettings

from .worlds import job, make_snapshot, offer, pool

EURO, DOLLAR, FRANC = (
    offer("euro", "2.50"),
    offer("dollar", "2.60", currency="USD"),
    offer("franc", "2", currency="CHF"),
)
NONE = Rates()
RATES = Rates("EUR", date(2026, 11, 1), {"USD": Decimal("0.86")})
IN_DOLLARS = Rates("USD", date(2026, 11, 1), {"EUR": Decimal("1.16"), "CHF": Decimal("1.25")})
TWO_RULES = (OfferRule("sky", ("dollar",)), OfferRule("sky"))


@pytest.mark.parametrize(
    ("rates", "offers", "rules", "order", "left_out"),
    [
        (NONE, (EURO,), (), ["euro"], {}),
        (NONE, (DOLLAR, offer("dear", "9", currency="USD")), (), ["dollar", "dear"], {}),
        (NONE, (FRANC, EURO, DOLLAR), TWO_RULES, ["dollar"], {"euro": "USD", "franc": "USD"}),
        (RATES, (EURO, DOLLAR), (), ["dollar", "euro"], {}),  # 2.236 EUR
        (RATES, (EURO, DOLLAR, FRANC), (), ["dollar", "euro"], {"franc": "EUR"}),
        (RATES, (FRANC,), (), ["franc"], {}),
        (IN_DOLLARS, (EURO, DOLLAR, FRANC), (), ["franc", "dollar", "euro"], {}),  # 2.50, 2.60, 2.90 USD
    ],
)
def test_the_order_of_offers(
    rates: Rates, offers: tuple[Offer, ...], rules: tuple[OfferRule, ...], order: list[str], left_out: dict[str, str]
) -> None:
    of = pool(rules=rules or pool().rules)
    snapshot = make_snapshot(pools=(of,), offers=offers, rates=rates)
    assert [o.instance_type for o in usable_offers(snapshot, of)] == order
    refused = [(j.offer, j.rejected_because) for j in evaluate_offers(snapshot, of) if j.offer and j.rejected_because]
    assert {offer.instance_type: why for offer, why in refused} == {
        name: f"its price is in {next(o for o in offers if o.instance_type == name).currency}, others of the pool are "
        f"compared in {unit}, and [rates] has no rate"
        for name, unit in left_out.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "one", "other", "dearer"),
    [
        (NONE, EURO, EURO, False),
        (NONE, offer(price="3"), EURO, True),
        (NONE, DOLLAR, EURO, None),
        (RATES, DOLLAR, EURO, False),
        (RATES, EURO, DOLLAR, True),
        (RATES, FRANC, EURO, None),
    ],
)
def test_which_of_two_is_dearer(rates: Rates, one: Offer, other: Offer, dearer: bool | None) -> None:
    assert rates.dearer(one, other) is dearer


def test_an_amount_is_converted_exactly() -> None:
    assert RATES.converted(Decimal("1234.567890"), "USD") == Decimal("1061.7283854")
    assert RATES.converted(Decimal("1.5"), "EUR") == Decimal("1.5")
    assert RATES.converted(Decimal(1), "CHF") is None


@pytest.mark.parametrize(
    ("rates", "amounts", "total"),
    [
        (NONE, ["2 USD", "3 USD"], "5 USD"),
        (RATES, ["2 USD", "3 USD"], "5 USD"),
        (RATES, ["2 USD", "3 EUR"], "4.72 EUR"),
        (NONE, ["2 USD", "3 EUR"], None),
        (RATES, ["2 USD", "3 CHF"], None),
        (RATES, [], None),
    ],
)
def test_amounts_are_added_in_one_currency_or_not_at_all(rates: Rates, amounts: list[str], total: str | None) -> None:
    found = rates.added((Decimal(amount), currency) for amount, currency in map(str.split, amounts))
    assert (found and f"{found[0]} {found[1]}") == total


POOLS = (
    pool("a", rules=(OfferRule("sky", ("euro",)),)),
    pool("b", rules=(OfferRule("sky", ("dollar",)),)),
)


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(
    ("rates", "dollar", "taken"),
    [
        (NONE, "2.60", "a"),
        (NONE, "0.01", "a"),  # Of the first pool: the number says nothing.
        (RATES, "2.60", "b"),
        (RATES, "3.00", "a"),  # 2.58 EUR
    ],
)
def test_the_pool_that_a_job_gets(nodes: int, rates: Rates, dollar: str, taken: str) -> None:
    offers = (EURO, offer("dollar", dollar, currency="USD"))
    wants = make_target(make_snapshot(job(nodes=nodes), pools=POOLS, offers=offers, rates=rates), ()).wants
    assert {want.pool for want in wants} == {taken}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_pool_that_cannot_be_compared_is_still_used_where_no_other_has_room(nodes: int) -> None:
    held = frozenset(POOLS[0].slots)
    wants = make_target(
        make_snapshot(job(nodes=nodes), pools=POOLS, offers=(EURO, DOLLAR), drained_slots=held), ()
    ).wants
    assert {want.pool for want in wants} == {"b"}


def test_a_rate_that_changes_changes_the_next_decision() -> None:
    decider = Decider()
    before = make_snapshot(job(), pools=POOLS, offers=(EURO, DOLLAR), rates=RATES)
    after = replace(before, rates=Rates("EUR", date(2026, 11, 2), {"USD": Decimal("0.97")}))
    assert [decider.decide(seen, (), Tuning()).target.wants[0].pool for seen in (before, after)] == ["b", "a"]


@pytest.mark.parametrize(("rates", "price", "refused"), [(RATES, "2.30", False), (RATES, "2.40", True)])
def test_what_spot_saves_is_told_across_currencies(rates: Rates, price: str, refused: bool) -> None:
    """A saving of 20 % on 2.50 EUR allows 2 EUR, which are 2.3256 USD."""
    spot = offer("spot", price, spot=True, currency="USD")
    policy = SpotPolicy(SpotSettings(min_saving_percent=20))
    [want] = make_target(make_snapshot(job(time_limit_s=3600), offers=(EURO, spot), rates=rates), (policy,)).wants
    assert (spot not in want.offers) is refused
