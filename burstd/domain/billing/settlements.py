"""What a machine that is gone has cost each of those who pay for it, month by month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from decimal import Decimal

from burstd.domain.billing.costs import Spent, by_month, cost_of, cost_shares
from burstd.domain.claim import Claim
from burstd.domain.volume import Volume

SpentKey = tuple[str, str, str, str]
"""Kind, name, month and currency, as in Spent."""


def cost_by_payer_and_month(claim: Claim) -> Mapping[SpentKey, Decimal]:
    """Its cost by payer and month; empty where it never cost anything, or still does."""
    if claim.billed_from is None or claim.billed_until is None:
        return {}
    found: dict[SpentKey, Decimal] = defaultdict(Decimal)
    for month, seconds in by_month(claim.billed_from, claim.billed_until):
        whole, currency = cost_of(claim.offer.price, seconds), claim.offer.currency
        found["", "", month, currency] += whole
        for kind, names in (("project", claim.accounts), ("user", claim.users)) if not claim.overhead else ():
            for name, amount in cost_shares(whole, names).items():
                found[kind, name, month, currency] += amount
    return found


def volume_cost_by_payer_and_month(volume: Volume) -> Mapping[SpentKey, Decimal]:
    """What is settled of its cost, by payer and month: from its beginning up to ``settled_until``."""
    if volume.billed_from is None or volume.settled_until is None:
        return {}
    payers = (("", ""), ("project", volume.account), ("user", volume.user))
    return {
        (kind, name, month, volume.currency): cost_of(volume.price, seconds)
        for month, seconds in by_month(volume.billed_from, volume.settled_until)
        for kind, name in payers
        if name or not kind
    }


class SpendTotals:
    """The sums over many claims, in memory."""

    def __init__(self) -> None:
        self._sums: dict[SpentKey, Decimal] = defaultdict(Decimal)
        self._spent: tuple[Spent, ...] | None = None

    def add(self, claim: Claim) -> None:
        """One that is gone."""
        for key, amount in cost_by_payer_and_month(claim).items():
            self._sums[key] += amount
        self._spent = None

    def spent(self) -> tuple[Spent, ...]:
        """As a snapshot has them."""
        if self._spent is None:
            self._spent = tuple(Spent(*key, self._sums[key]) for key in sorted(self._sums))
        return self._spent
