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

from burstd.db.reader import spent_rows
from burstd.db.repositories.record import Record
from burstd.db.tables import CLAIM, CLAIM_JOB, SPENT
from burstd.domain.billing.costs import Spent, month_of
from burstd.domain.billing.settlements import parts_of
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.snapshot import Gone
from burstd.domain.staging import Staging

Key = tuple[str, str, str, str, str]
"""Kind, name, month, currency, provider: the columns of the table's key."""
Entry = tuple[Decimal, int]
"""Money, bytes."""


class Ledger(Record):
    """Booking. The sums are kept in memory: a loop in which nothing ended asks the database for nothing."""

    def __init__(self, url: URL, clock: Clock) -> None:
        super().__init__(url, clock)
        self._booked: dict[Key, Entry] | None = None
        self._shown: tuple[Spent, ...] | None = None
        self._gone: tuple[float, list[Gone]] | None = None

    def _forget(self) -> None:
        super()._forget()
        self._booked = self._shown = self._gone = None

    def gone(self, since: float) -> tuple[Gone, ...]:
        """See Reader. Asked for later and later moments it reads the database once."""
        self._own_thread()
        if self._gone is None or since < self._gone[0]:
            self._gone = (since, list(super().gone(since)))
        self._gone = (since, [one for one in self._gone[1] if one.at >= since])
        return tuple(self._gone[1])

    def spent(self) -> tuple[Spent, ...]:
        """See Reader."""
        if self._shown is None:
            with self._reading() as connection:
                booked = self._known(connection)
            self._shown = tuple(Spent(k[0], k[1], k[2], k[3], *booked[k], k[4]) for k in sorted(booked))
        return self._shown

    def _known(self, connection: Connection) -> dict[Key, Entry]:
        if self._booked is None:
            rows = spent_rows(connection)
            self._booked = {(s.kind, s.name, s.month, s.currency, s.provider): (s.amount, s.bytes_out) for s in rows}
        return self._booked

    def _book(self, connection: Connection, entries: Iterable[tuple[Key, Decimal, int]]) -> None:
        news: dict[Key, Entry] = defaultdict(lambda: (Decimal(0), 0))
        for key, amount, sent in entries:
            news[key] = (news[key][0] + amount, news[key][1] + sent)
        changed = {key: entry for key, entry in news.items() if any(entry)}
        if not changed:
            return
        booked = self._known(connection)
        for key, (amount, sent) in changed.items():
            old = booked.get(key)
            sums = (amount, sent) if old is None else (old[0] + amount, old[1] + sent)
            named = dict(zip(("kind", "name", "month", "currency", "provider"), key, strict=True))
            values = {"amount": str(sums[0]), "bytes_out": sums[1]}
            if old is None:
                connection.execute(insert(SPENT).values(**named, **values))
            else:
                here = [SPENT.c[column] == value for column, value in named.items()]
                connection.execute(update(SPENT).where(*here).values(**values))
            booked[key] = sums
        self._shown = None

    def _settle(self, connection: Connection, before: Claim, after: Claim) -> None:
        """Books what a claim has cost when it is GONE, and the difference where that is put right later."""
        if after.state is ClaimState.GONE:
            if self._gone is not None:
                others = [one for one in self._gone[1] if one.claim.id != after.id]
                self._gone = (self._gone[0], [*others, Gone(after.since, after)])
            was = parts_of(before) if before.state is ClaimState.GONE else {}
            parts = [((*key, ""), amount, 0) for key, amount in parts_of(after).items()]
            self._book(connection, [*parts, *(((*key, ""), -amount, 0) for key, amount in was.items())])

    def _sent_home(self, connection: Connection, staging: Staging) -> None:
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
