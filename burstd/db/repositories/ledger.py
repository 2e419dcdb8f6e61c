"""What was spent, kept as sums by month: booked with the end of each machine, and never forgotten with its claim.

A row adds up what one payer (a project, a user, or all together) has spent in one calendar month (UTC) and currency.
It is written in the transaction that ends the claim, so that the sums are right after a crash, and stays when the
claim itself is purged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from operator import attrgetter

from sqlalchemy import Connection, select
from sqlmodel import Session

from burstd.db.codec import value_from_row
from burstd.db.tables import SPENDING, SpendingRow
from burstd.domain.billing.costs import Spent
from burstd.domain.billing.settlements import SpentKey, charges_by_payer_and_month, volume_cost_by_payer_and_month
from burstd.domain.billing.use import Charge
from burstd.domain.volume import Volume

_key = attrgetter("kind", "name", "month", "currency")


class Ledger:
    """Booking. The sums are kept in memory: a loop in which nothing ended asks the database for nothing."""

    def __init__(self) -> None:
        self._sums: dict[SpentKey, Spent] | None = None
        self._spending: tuple[Spent, ...] | None = None

    def forget(self) -> None:
        """What is kept in memory may not be in the database any more."""
        self._sums = self._spending = None

    def spending(self, connection: Connection) -> tuple[Spent, ...]:
        """The sums, in the order of their keys; the same tuple while nothing is booked."""
        if self._spending is None:
            self._spending = tuple(sorted(self._load_sums(connection).values(), key=_key))
        return self._spending

    def _load_sums(self, connection: Connection) -> dict[SpentKey, Spent]:
        if self._sums is None:
            rows = connection.execute(select(SPENDING)).mappings()
            self._sums = {_key(spent): spent for spent in (value_from_row(Spent, row) for row in rows)}
        return self._sums

    def _book(self, session: Session, entries: Iterable[tuple[SpentKey, Decimal]]) -> None:
        sums, booked = self._load_sums(session.connection()), dict[SpentKey, Spent]()
        for key, amount in entries:
            old = booked.get(key) or sums.get(key) or Spent(*key, Decimal(0))
            booked[key] = replace(old, amount=old.amount + amount)
        for key, spent in booked.items():
            if spent != (sums.get(key) or Spent(*key, Decimal(0))):
                session.merge(SpendingRow(**asdict(spent)))
                sums[key] = spent
                self._spending = None
        session.flush()

    def book_charges(self, session: Session, currency: str, before: Sequence[Charge], after: Sequence[Charge]) -> None:
        """Books what a claim is charged for when it is GONE, and the difference where that is put right later.

        Traffic of it is booked as it comes home.
        """
        was, now = charges_by_payer_and_month(before, currency), charges_by_payer_and_month(after, currency)
        self._book(session, [*now.items(), *((key, -amount) for key, amount in was.items())])

    def book_volume(self, session: Session, before: Volume, after: Volume) -> None:
        """Books what has been settled of its cost since; the sums are as if it had all been booked at once."""
        was, now = volume_cost_by_payer_and_month(before), volume_cost_by_payer_and_month(after)
        if was != now:
            self._book(session, [*now.items(), *((key, -amount) for key, amount in was.items())])
