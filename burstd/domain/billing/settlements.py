"""What those who pay have been charged for machines and volumes, month by month."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal

from burstd.domain.billing.costs import MICRO, Spent, by_month, cost_of
from burstd.domain.billing.use import Charge, day_text
from burstd.domain.volume import Volume

SpentKey = tuple[str, str, str, str]
"""Kind, name, month and currency, as in Spent."""


def charges_by_payer_and_month(charges: Iterable[Charge], currency: str) -> Mapping[SpentKey, Decimal]:
    """Sums of the charges of one claim: for all together, for projects and for users.

    A correction counts in the month that it puts right: limits are not bills.
    """
    found: defaultdict[SpentKey, int] = defaultdict(int)
    for charge in charges:
        month = charge.corrects or day_text(charge.day)[:7]
        for kind, name in (("", ""), ("project", charge.payer.account), ("user", charge.payer.user)):
            if name or not kind:
                found[kind, name, month, currency] += charge.amount
    return {key: amount * MICRO for key, amount in found.items()}


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

    def add(self, charges: Iterable[Charge], currency: str) -> None:
        """Those of one claim that is gone."""
        for key, amount in charges_by_payer_and_month(charges, currency).items():
            self._sums[key] += amount
        self._spent = None

    def spent(self) -> tuple[Spent, ...]:
        """As a snapshot has them."""
        if self._spent is None:
            self._spent = tuple(Spent(*key, self._sums[key]) for key in sorted(self._sums))
        return self._spent
