from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.db import Store
from burstd.db.repositories.bill import BillGrouping, bill_lines, cost_between
from burstd.domain.billing.settlements import cost_by_payer_and_month
from burstd.domain.claim import Claim, ClaimState

from .samples import OFFER, START, ManualClock, planned, prices

S = ClaimState
names = st.lists(st.sampled_from("abcd"), max_size=4).map(tuple)
billed = st.builds(
    lambda price, jobs, users, begin, length, opened, error: replace(
        planned(f"c{begin}", f"n{begin}", offer=replace(OFFER, price=price), jobs=jobs, users=users),
        billed_from=begin,
        billed_until=None if length is None else begin + length,
        accounts=users,
        in_service_from=begin if opened else None,
        error=error,
    ),
    prices, names, names, st.floats(0, 1e6), st.none() | st.floats(0, 1e6), st.booleans(),
    st.sampled_from(("", "health", "gpu_health", "unwanted", "interrupted")),
)  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "end", "cost"),
    [
        (0, 3600, "3.06"),
        (0, 1800, "1.53"),
        (1000, 1000, "0"),
        (-3600, 10, "0.0085"),  # the window begins at 0
        (3000, None, "0.51"),  # and ends at 3600
        (None, None, "0"),
        (9000, None, "0"),
    ],
)
def test_price_times_hours_within_the_window(begin: float | None, end: float | None, cost: str) -> None:
    claim = replace(planned(), billed_from=begin, billed_until=end)
    assert cost_between(claim, 0, 3600)[0] == Decimal(cost)


@given(st.lists(billed, max_size=8), st.floats(0, 1e6), st.floats(0, 1e6))
def test_shares_add_up_to_the_whole(claims: list[Claim], since: float, length: float) -> None:
    until = since + length
    whole = sum((cost_between(c, since, until)[0] for c in claims), Decimal(0))
    failed = sum((cost_between(c, since, until)[0] for c in claims if c.overhead), Decimal(0))
    for group in get_args(BillGrouping):
        lines = bill_lines(claims, group, since, until)
        assert sum((line.cost for line in lines), Decimal(0)) == whole
        assert sum((line.cost for line in lines if line.overhead), Decimal(0)) == failed
        assert all(line.cost == line.cost.quantize(Decimal("0.000001")) for line in lines)
        if group in ("user", "account", "job"):
            assert not any(line.key for line in lines if line.overhead)


@pytest.mark.parametrize(
    ("error", "opened", "overhead"),
    [
        ("", False, False),
        ("", True, False),
        ("lost", True, False),
        ("node_down", True, False),
        ("health", True, True),
        ("gpu_health", False, True),
        ("boot_timeout", False, True),
        ("interrupted", False, True),
        ("unwanted", False, False),
        ("too_late", False, False),
    ],
)
def test_what_a_failed_machine_costs_is_nobodys(error: str, opened: bool, overhead: bool) -> None:
    claim = replace(planned(users=("ann", "bob")), accounts=("atlas",), error=error, billed_from=START)
    claim = replace(claim, in_service_from=START if opened else None, billed_until=START + 3600)
    lines = bill_lines([claim], "user", 0, START + 7200)
    assert [(b.key, b.overhead, str(b.cost)) for b in lines] == (
        [("", True, "3.060000")] if overhead else [("ann", False, "1.530000"), ("bob", False, "1.530000")]
    )
    assert not replace(claim, error="validation_timeout", in_service_from=None, reused_from="gpu9").overhead
    payers = {(kind, name) for kind, name, _, _ in cost_by_payer_and_month(claim)}
    assert payers == {("", ""), *(() if overhead else (("project", "atlas"), ("user", "ann"), ("user", "bob")))}


def test_a_node_shared_by_users_is_shared_equally_and_currencies_are_kept_apart(
    store: Store, clock: ManualClock
) -> None:
    dollars = replace(OFFER, currency="USD", price=Decimal("1.00"), provider="aws")
    store.make_claims(
        [planned("c1", "n1", users=("ann", "bob")), planned("c2", "n2", offer=dollars), planned("c3", "n3", users=())]
    )
    for claim_id in ("c1", "c2", "c3"):
        store.transition_claim(claim_id, S.PLANNED, S.LAUNCHING, "asked", billed_from=START)
    clock.time += 3600
    assert [(b.key, b.currency, b.cost, b.seconds, b.claims) for b in store.bill("user", START)] == [
        ("", "EUR", Decimal("3.06"), 3600, 1),
        ("ann", "EUR", Decimal("1.53"), 1800, 1),
        ("bob", "EUR", Decimal("1.53"), 1800, 1),
        ("ann", "USD", Decimal("1.00"), 3600, 1),
    ]
    assert [(b.key, b.cost) for b in store.bill("provider", START + 1800)] == [
        ("sandbox", Decimal("3.06")),
        ("aws", Decimal("0.50")),
    ]
