"""What amounts in several currencies are worth in one, at rates that the site sets: to compare them, never to bill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal

from burstd.domain.cloud.offer import Offer


@dataclass(frozen=True, slots=True)
class Rates:
    """``[rates]``; without it there is no rate at all."""

    currency: str = ""
    """In which all is compared."""
    date: date = date.min
    """Of the rates."""
    worth: Mapping[str, Decimal] = field(default_factory=dict)
    """By another currency, what one unit of it is worth in ``currency``."""

    def converted(self, amount: Decimal, currency: str) -> Decimal | None:
        """An amount in ``currency`` of the rates; None: there is no rate for its own."""
        rate = Decimal(1) if currency == self.currency else self.worth.get(currency)
        return None if rate is None else amount * rate

    def comparable(self, amount: Decimal, currency: str) -> tuple[str, Decimal]:
        """Currency and amount by which it is compared: converted where there is a rate, else as it is.

        Amounts in different currencies cannot be compared; sorted, each currency stands together.
        """
        worth = self.converted(amount, currency)
        return (currency, amount) if worth is None else (self.currency, worth)

    def added(self, amounts: Iterable[tuple[Decimal, str]]) -> tuple[Decimal, str] | None:
        """The sum, in their own currency where all have one, else in that of the rates; None: there is no rate."""
        sums: dict[str, Decimal] = {}
        for amount, currency in amounts:
            sums[currency] = sums.get(currency, Decimal(0)) + amount
        if len(sums) == 1:
            ((currency, amount),) = sums.items()
            return amount, currency
        worths = [self.converted(amount, currency) for currency, amount in sums.items()]
        known = [worth for worth in worths if worth is not None]
        return (sum(known, Decimal(0)), self.currency) if known and len(known) == len(worths) else None

    def price(self, offer: Offer) -> tuple[str, Decimal]:
        """Of an hour, as ``comparable`` has it."""
        return self.comparable(offer.price, offer.currency)

    def common_currency(self, offers: Iterable[Offer]) -> str:
        """In which prices of these are compared: that of the rates, else the first one's. Empty: there are none."""
        found = dict.fromkeys(self.price(offer)[0] for offer in offers)
        return self.currency if self.currency in found else next(iter(found), "")

    def dearer(self, one: Offer, other: Offer) -> bool | None:
        """Whether an hour of the one costs more than one of the other; None: that cannot be said."""
        (unit, price), (other_unit, other_price) = self.price(one), self.price(other)
        return price > other_price if unit == other_unit else None
