"""What runs on nodes of the site cost, by day: by hand, and sums over random runs."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.billing.costs import MICRO, cost_of
from burstd.domain.billing.site_runs import SiteRun, site_charges
from burstd.domain.billing.use import WHOLE, Payer, day_text

ADA = Payer("17", "ada", "atlas", "cpu")
START = datetime(2026, 11, 27, 23, tzinfo=UTC).timestamp()


def run(hours: float, price: str = "3.60", share: int = WHOLE, started: float = START) -> SiteRun:
    return SiteRun("cpu", ADA, int(started), started, share, Decimal(price), "EUR", started + hours * 3600)


@pytest.mark.parametrize(
    ("one", "until", "days"),
    [
        (run(0.5), START + 9999, [("2026-11-27", 1_800_000, 1_800_000)]),
        (run(0.5), START + 10, [("2026-11-27", 10_000, 10_000)]),
        (run(1), START + 9999, [("2026-11-27", 3_600_000, 3_600_000)]),
        (run(2, share=WHOLE * 3 // 2), START + 9999,
         [("2026-11-27", 3_600_000, 5_400_000), ("2026-11-28", 3_600_000, 5_400_000)]),
        (run(26, price="0"), START + 99999, [("2026-11-27", 0, 3_600_000), ("2026-11-28", 0, 86_400_000),
                                             ("2026-11-29", 0, 3_600_000)]),
        (run(0), START + 9999, []),
        (run(1), START - 5, []),
    ],
)  # fmt: skip
def test_by_hand(one: SiteRun, until: float, days: list[tuple[str, int, int]]) -> None:
    """At 3.60 an hour a second costs a thousandth."""
    assert [(day_text(c.day), c.amount, c.milliseconds) for c in site_charges(one, until)] == days


@given(
    st.floats(0, 200_000),
    st.decimals(0, 10_000, places=10),
    st.integers(1, 10**9),
    st.floats(1.6e9, 1.9e9),
)
def test_days_add_up_to_the_cost_of_the_run(length: float, price: Decimal, share: int, started: float) -> None:
    one = SiteRun("cpu", ADA, int(started), started, share, price, "EUR", started + length)
    found = [*site_charges(one, started + length)]
    milliseconds = round((one.started + length - one.started) * 1000)
    assert sum(c.amount for c in found) * MICRO == cost_of(price, milliseconds / 1000)
    assert sum(c.milliseconds for c in found) == milliseconds * share // WHOLE
    assert len({c.day for c in found}) == len(found)
    assert all(c.amount >= 0 and c.milliseconds >= 0 for c in found)
