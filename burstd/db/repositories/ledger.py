"""What was spent, kept as sums by month: booked with the end of each machine, and never forgotten with its claim.

A row adds up what one payer (a project, a user, or all together) has spent in one calendar month (UTC) and currency.
It is written in the transaction that ends the claim, so that the sums are right after a crash, and stays when the
claim itself is purged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from sqlalchemy import URL, Connection, insert, select, update

from burstd.db.reader import select_spending
from burstd.db.repositories.record import OperationalRecords
from burstd.db.tables import CLAIM, CLAIM_JOB, SPENDING
from burstd.domain.billing.costs import Spent, month_of
from burstd.domain.billing.settlements import cost_by_payer_and_month
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.snapshot import EndedClaim
from burstd.domain.staging import Staging

LedgerKey = tuple[str, str, str, str, str]
"""Kind, name, month, currency, provider: the columns of the table's key."""
LedgerEntry = tuple[Decimal, int]
"""Money, bytes."""


class Ledger(OperationalRecords):
    """Booking. The sums are kept in memory: a loop in which nothing ended asks the database for nothing."""

    def __init__(self, url: URL, clock: Clock) -> None:
        super().__init__(url, clock)
        self._sums: dict[LedgerKey, LedgerEntry] | None = None
        self._spending: tuple[Spent, ...] | None = None
        self._gone: tuple[float, list[EndedClaim]] | None = None

    def _drop_caches(self) -> None:
        super()._drop_caches()
        self._sums = self._spending = self._gone = None

    def gone_claims(self, since: float) -> tuple[EndedClaim, ...]:
        """Claims that are gone. With later and later times it reads the database once."""
        self._check_thread()
        if self._gone is None or since < self._gone[0]:
            self._gone = (since, list(super().gone_claims(since)))
        self._gone = (since, [one for one in self._gone[1] if one.at >= since])
        return tuple(self._gone[1])

    def spending(self) -> tuple[Spent, ...]:
        """Money spent, by user, account, pool and currency; cached."""
        if self._spending is None:
            with self._reading() as connection:
                booked = self._load_sums(connection)
            self._spending = tuple(Spent(k[0], k[1], k[2], k[3], *booked[k], k[4]) for k in sorted(booked))
        return self._spending

    def _load_sums(self, connection: Connection) -> dict[LedgerKey, LedgerEntry]:
        if self._sums is None:
            rows = select_spending(connection)
            self._sums = {(s.kind, s.name, s.month, s.currency, s.provider): (s.amount, s.bytes_out) for s in rows}
        return self._sums

    def _book(self, connection: Connection, entries: Iterable[tuple[LedgerKey, Decimal, int]]) -> None:
        news: dict[LedgerKey, LedgerEntry] = defaultdict(lambda: (Decimal(0), 0))
        for key, amount, sent in entries:
            news[key] = (news[key][0] + amount, news[key][1] + sent)
        changed = {key: entry for key, entry in news.items() if any(entry)}
        if not changed:
            return
        booked = self._load_sums(connection)
        for key, (amount, sent) in changed.items():
            old = booked.get(key)
            sums = (amount, sent) if old is None else (old[0] + amount, old[1] + sent)
            named = dict(zip(("kind", "name", "month", "currency", "provider"), key, strict=True))
            values = {"amount": str(sums[0]), "bytes_out": sums[1]}
            if old is None:
                connection.execute(insert(SPENDING).values(**named, **values))
            else:
                here = [SPENDING.c[column] == value for column, value in named.items()]
                connection.execute(update(SPENDING).where(*here).values(**values))
            booked[key] = sums
        self._spending = None

    def _book_claim(self, connection: Connection, before: Claim, after: Claim) -> None:
        """Books what a claim has cost when it is GONE, and the difference where that is put right later."""
        if after.state is ClaimState.GONE:
            if self._gone is not None:
                others = [one for one in self._gone[1] if one.claim.id != after.id]
                self._gone = (self._gone[0], [*others, EndedClaim(after.since, after)])
            was = cost_by_payer_and_month(before) if before.state is ClaimState.GONE else {}
            parts = [((*key, ""), amount, 0) for key, amount in cost_by_payer_and_month(after).items()]
            self._book(connection, [*parts, *(((*key, ""), -amount, 0) for key, amount in was.items())])

    def _book_output(self, connection: Connection, staging: Staging) -> None:
        """Books the output of a job that has come home, where its nodes were a cloud's."""
        if not staging.bytes_out or not staging.nodes:
            return
        made_for = select(CLAIM_JOB.c.claim_id).where(CLAIM_JOB.c.job == staging.job_id)
        there = select(CLAIM.c.provider).where(CLAIM.c.slot.in_(staging.nodes[:500]))
        # The claims that were made for it come first; a slot may have had another machine since.
        order = (CLAIM.c.id.in_(made_for).desc(), CLAIM.c.created.desc())
        provider = connection.execute(there.order_by(*order).limit(1)).scalar()
        if provider is None:
            return
        month = month_of(self._clock.now())
        payers = [("", ""), ("project", staging.account), ("user", staging.user)]
        keys = ((kind, name, month, "", str(provider)) for kind, name in payers if name or not kind)
        self._book(connection, [(key, Decimal(0), staging.bytes_out) for key in keys])
