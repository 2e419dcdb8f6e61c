"""A3: numbers that a cloud says are bounded where they come in: no time is in the year 51692, no price is NaN."""

from __future__ import annotations

from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given

from burstd.domain.cloud.bounds import MAX_RETRY_AFTER_S, MAX_TIME_S
from burstd.domain.cloud.instance import Instance, InstanceState
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import RateLimited
from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.lifecycle.spot_notices import notice_reason

WILD = st.floats() | st.integers(-(2**80), 2**80) | st.sampled_from([2**80, 1.6e12, float("nan"), float("inf")])


@given(WILD)
def test_times(number: float) -> None:
    made = Instance("i", "sky", InstanceState.RUNNING, "c", launched=number)
    assert 0 <= made.launched <= MAX_TIME_S
    notice = Notice("i", NoticeKind.INTERRUPTION, number)
    assert notice_reason(notice).startswith("burstd: interruption")
    assert 0 <= RateLimited("slower", retry_after_s=number).retry_after_s <= MAX_RETRY_AFTER_S
    offer = Offer("sky", "r", "z", "t", False, Shape(1, 1), Decimal(1), capacity_wait_s=number, price_at=number)
    assert (0 <= offer.capacity_wait_s <= 86400, 0 <= offer.price_at <= MAX_TIME_S) == (True, True)


@pytest.mark.parametrize("price", ["nan", "inf", "-inf", "-1", "1e30", "sNaN"])
def test_prices(price: str) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Offer("sky", "r", "z", "t", False, Shape(1, 1), Decimal(price))
    with pytest.raises(ValueError, match="cannot be"):
        Offer("sky", "r", "z", "t", False, Shape(1, 1), Decimal(1), address_price=Decimal(price))


@pytest.mark.parametrize(
    "shape", [Shape(2**80, 1), Shape(-1, 1), Shape(1, 2**80), Shape(1, 1, (Gres("gpu", "", 2**80),))]
)
def test_sizes(shape: Shape) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        Offer("sky", "r", "z", "t", False, shape, Decimal(1))
