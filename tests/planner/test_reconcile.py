"""Two bills beside each other: each difference by its name, and amounts that add up to the whole of it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.billing.reconcile import Difference, OwnUse, ProviderUse, reconcile

D = Decimal
MINE = OwnUse("cpu1", "USD", D("3.60"), D(3600))
"""3.60 an hour."""


@pytest.mark.parametrize(
    ("use", "kinds", "why"),
    [
        (ProviderUse("USD", D("3.60"), D(1)), {}, ""),
        (ProviderUse("USD", D("3.63"), D(1)), {}, ""),
        (ProviderUse("USD", D("4.00"), D(1)), {"price": "0.400000"}, ""),
        (ProviderUse("USD", D("7.20"), D(2)), {"time": "3.600000"}, "billed for longer"),
        (ProviderUse("USD", D("1.80"), D("0.5")), {"time": "-1.800000"}, "billed for less"),
        (ProviderUse("USD", D("8.00"), D(2)), {"time": "3.600000", "price": "0.800000"}, "billed for longer"),
        (ProviderUse("EUR", D("3.60"), D(1)), {"currency": "3.600000"}, ""),
        (ProviderUse("", hours=D(2)), {"time": "3.600000"}, "billed for longer"),
        (ProviderUse("", hours=D(1)), {}, ""),
        (ProviderUse("USD", D("3.60"), D(1), D("0.5")), {}, ""),
        (None, {"not there": "-3.600000"}, ""),
    ],
)
def test_one_machine(use: ProviderUse | None, kinds: dict[str, str], why: str) -> None:
    found = reconcile({"i-1": MINE}, {"i-1": use} if use else {}, D("0.01"))
    assert {one.kind.value: f"{one.amount:.6f}" for one in found.differences} == kinds
    assert [one.why for one in found.differences if one.kind is Difference.TIME] == ([why] if why else [])
    assert (found.agreed, found.agrees(all_ours=True)) == ((0, False) if kinds else (1, True))


@pytest.mark.parametrize(
    ("here", "there", "why"),
    [
        (12, 60, "minimum of one minute"),
        (110, 120, "rounded up to whole minutes"),
        (3000, 3600, "minimum of one hour"),
        (4000, 7200, "rounded up to whole hours"),
        (4000, 7201, "billed for longer"),
    ],
)
def test_why_time_differs(here: int, there: int, why: str) -> None:
    mine = OwnUse("cpu1", "USD", D(here) / 1000, D(here))
    found = reconcile({"i-1": mine}, {"i-1": ProviderUse("USD", D(there) / 1000, D(there) / 3600)}, D(0))
    [one] = [one for one in found.differences if abs(one.amount) > D("1e-9")]
    assert (one.kind, one.why, one.here, one.there) == (Difference.TIME, why, f"{here} s", f"{there} s")


def test_others_count_only_where_all_is_ours() -> None:
    found = reconcile({}, {"i-2": ProviderUse("USD", D(5), D(1))}, D("0.01"))
    assert [one.kind for one in found.differences] == [Difference.NOT_OURS]
    assert (found.agrees(all_ours=False), found.agrees(all_ours=True), dict(found.there)) == (True, False, {})
    found = reconcile({}, {"i-2": ProviderUse("USD", D(5), D(1), tagged=True)}, D("0.01"))
    assert [one.kind for one in found.differences] == [Difference.NOT_HERE]
    assert (found.agrees(all_ours=False), dict(found.there)) == (False, {"USD": D(5)})


def test_a_volume_is_compared_by_cost_and_traffic_of_a_machine_is_apart() -> None:
    own = {"vol-1": OwnUse("maps", "USD", D(2), D(86400), timed=False), "i-1": MINE}
    use = {"vol-1": ProviderUse("USD", other_cost=D(3)), "i-1": ProviderUse("USD", D("3.6"), D(1), other_cost=D(9))}
    found = reconcile(own, use, D("0.01"))
    assert [(one.resource, one.kind, one.amount) for one in found.differences] == [("vol-1", Difference.PRICE, D(1))]
    assert (found.traffic, found.agreed, dict(found.there)) == ({"USD": (D(0), D(9))}, 1, {"USD": D("6.6")})
    found = reconcile({"i-1": replace(MINE, traffic=D(7)), "i-2": OwnUse("cpu2", "USD", D(0), D(0), traffic=D(1))},
                      {"i-1": use["i-1"]}, D("0.01"))  # fmt: skip
    assert (found.traffic, found.agreed, found.differences) == ({"USD": (D(8), D(9))}, 1, ())


@pytest.mark.parametrize(
    ("there", "addresses", "kinds"),
    [
        ({"i-1": ProviderUse("USD", D("3.60"), D(1))}, {}, []),
        ({"i-1": ProviderUse("USD", D("3.20"), D(1))}, {}, ["price"]),
        ({"i-1": ProviderUse("USD", D("3.20"), D(1)), "eni-1": ProviderUse("USD", D("0.3"), D(1), tagged=True)},
         {"USD": (D("0.40"), D("0.3"))}, []),
        ({"i-1": ProviderUse("USD", D("3.20"), D(1)), "eni-1": ProviderUse("USD", D("0.3"), D(1))},
         {"USD": (D("0.40"), 0)}, ["not ours"]),
        ({"i-1": ProviderUse("USD", D("3.60"), D(1)), "eni-1": ProviderUse("USD", D("0.3"), D(1), tagged=True)},
         {"USD": (D("0.40"), D("0.3"))}, ["price"]),
        ({"i-1": ProviderUse("", hours=D(1))}, {}, []),
    ],
)  # fmt: skip
def test_an_address_is_in_the_machines_price_unless_it_is_billed_by_an_id_of_its_own(
    there: dict[str, ProviderUse], addresses: dict[str, tuple[D, D]], kinds: list[str]
) -> None:
    found = reconcile({"i-1": replace(MINE, addresses=D("0.40"))}, there, D("0.01"))
    assert (found.addresses, [one.kind.value for one in found.differences]) == (addresses, kinds)
    assert dict(found.here) == {"USD": D("3.20") if addresses else D("3.60")}


amounts = st.decimals(0, 1000, places=4)
names = st.sampled_from(["a", "b", "c", "d"])
own_uses = st.builds(
    OwnUse,
    names,
    st.just("USD"),
    amounts,
    st.integers(1, 10**6).map(D),
    st.booleans(),
    st.sampled_from([D(0), D("0.01")]),
)
there_uses = st.builds(ProviderUse, st.just("USD"), amounts, amounts, amounts, st.booleans())


@given(st.dictionaries(names, own_uses), st.dictionaries(names | st.just("eni-1"), there_uses))
def test_differences_add_up_to_the_difference_of_the_totals(
    own: dict[str, OwnUse], there: dict[str, ProviderUse]
) -> None:
    found = reconcile(own, there, D(0))
    named = sum((one.amount for one in found.differences if one.kind is not Difference.NOT_OURS), D(0))
    whole = sum(found.there.values(), D(0)) - sum(found.here.values(), D(0))
    # Times that differ by less than a second are no difference, and are in none of the others.
    assert abs(named - whole) <= sum((mine.cost / mine.seconds for mine in own.values()), D("1e-6"))
