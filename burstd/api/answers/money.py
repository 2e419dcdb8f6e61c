"""Amounts of money in answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from decimal import ROUND_HALF_EVEN, Decimal

from burstd.api.answers.types import Money
from burstd.domain.claim import Claim

_MICRO = Decimal("0.000001")


def money_view(amount: Decimal, currency: str) -> Money:
    """To a millionth."""
    return Money(amount=amount.quantize(_MICRO, ROUND_HALF_EVEN), currency=currency)


def cost_per_hour(claims: Iterable[Claim], still_paid: Collection[str]) -> list[Money]:
    """What the claims cost in an hour as it is now, a sum a currency: those that are billed and not at their end.

    ``still_paid``: see ``Snapshot.still_paid``.
    """
    billed = (c for c in claims if c.billed_from is not None and (c.billed_until is None or c.id in still_paid))
    return sum_by_currency((c.offer.price, c.offer.currency) for c in billed)


def sum_by_currency(amounts: Iterable[tuple[Decimal, str]]) -> list[Money]:
    """A sum a currency."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for amount, currency in amounts:
        sums[currency] += amount
    return [money_view(amount, currency) for currency, amount in sorted(sums.items())]
