"""What bytes cost that leave a cloud."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer, day_text

GB = 10**9
"""As clouds bill it."""


def traffic_cost(price: Decimal, size: int) -> Decimal:
    """``price`` of a GB, ``size`` in bytes; to a millionth."""
    return (price * size / GB).quantize(MICRO, ROUND_HALF_EVEN)


def traffic_charge(time: float, payer: Payer, size: int, price: Decimal, first_open: int) -> Charge | None:
    """Of bytes that came home at ``time``; None: they cost nothing.

    ``first_open``: the first day of the first month that is not closed. In an earlier month it is a correction.
    """
    amount = int(traffic_cost(price, size) / MICRO)
    day = int(time // DAY_S)
    corrects = day_text(day)[:7] if day < first_open else ""
    return Charge(max(day, first_open), Kind.TRAFFIC, "", payer, amount, 0, corrects, size) if amount else None
