"""Closed months: charges that stay as they are, with the hash by which anybody can tell that they did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, delete, func, insert, or_, select, union_all, update

from burstd.db.codec import value_from_row
from burstd.db.repositories import charges, site_runs
from burstd.db.tables import CHARGE, CLAIM, CLOSED_MONTH, SITE_CHARGE, SITE_RUN, VOLUME
from burstd.domain.billing.closing import RULE, ClosedMonth, MonthCharge, awaited, close_month, days_of
from burstd.domain.billing.costs import month_of, month_start, next_month
from burstd.domain.billing.use import IdleMode, Kind, day_text
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.volume import Volume, VolumeState

_ROWS = 2000
"""Of a month's charges that are in memory at a time."""
_ORDER = (
    "day", "claim_id", "kind", "cause", "job", "user", "account", "partition", "pool", "provider", "currency",
    "amount", "milliseconds", "corrects",
)  # fmt: skip


def closed_months(connection: Connection) -> list[ClosedMonth]:
    """All of them, oldest first."""
    rows = connection.execute(select(CLOSED_MONTH).order_by(CLOSED_MONTH.c.month)).mappings()
    return [value_from_row(ClosedMonth, row) for row in rows]


def charges_of_days(connection: Connection, days: range, rule: int = RULE) -> Iterator[MonthCharge]:
    """Those on record that were closed by this rule, in the order of ``month_file``."""
    query = select(CHARGE).where(CHARGE.c.day >= days.start, CHARGE.c.day < days.stop)
    if rule < 2:
        query = query.where(CHARGE.c.kind != Kind.VOLUME)
    query = query.order_by(*(CHARGE.c[name] for name in _ORDER)).execution_options(yield_per=_ROWS)
    for row in connection.execute(query).mappings():
        yield charges.charge_of_row(row)


def awaited_claims(connection: Connection, live: Sequence[Claim]) -> tuple[str, list[Claim]]:
    """The first month that is not closed, and the claims that it has to wait for."""
    month = first_open_month(connection, live)
    return month, awaited(live, month) if month else []


def first_open_month(connection: Connection, live: Sequence[Claim]) -> str:
    """The first one that has charges and is not closed; the one after the last closed. Empty: nothing was charged."""
    if last := connection.execute(select(func.max(CLOSED_MONTH.c.month))).scalar():
        return next_month(last)
    days = [connection.execute(select(func.min(table.c.day))).scalar() for table in (CHARGE, SITE_CHARGE)]
    volume = select(func.min(VOLUME.c.billed_from)).where(VOLUME.c.state != VolumeState.GONE)
    times = [connection.execute(query).scalar() for query in (volume, select(func.min(SITE_RUN.c.started)))]
    begins = [month_of(begin) for begin in (*times, *(claim.billed_from for claim in live)) if begin is not None]
    return min([*begins, *(day_text(day)[:7] for day in days if day is not None)], default="")


def due_month(connection: Connection, live: Sequence[Claim], now: float, after_s: float) -> str:
    """The first open month, where it ended ``after_s`` seconds ago and no claim's part in it is uncertain; or empty."""
    month = first_open_month(connection, live)
    return month if month and month_start(next_month(month)) + after_s <= now and not awaited(live, month) else ""


def close(
    connection: Connection,
    live: Sequence[Claim],
    volumes: Sequence[Volume],
    month: str,
    now: float,
    idle: IdleMode,
) -> ClosedMonth:
    """Closes the first open month. ``volumes``: those that live."""
    charges.freeze(connection, live, month, now, idle)
    charges.freeze_volumes(connection, volumes, month)
    site_runs.freeze(connection, month, now)
    days = days_of(month)
    closed = close_month(month, now, charges_of_days(connection, days), site_runs.charges_of_days(connection, days))
    connection.execute(insert(CLOSED_MONTH), asdict(closed))
    return closed


def reopen(connection: Connection, true_time: float) -> list[str]:
    """Opens months again that had not ended by then: a clock that was ahead closed them.

    Corrections of months that stay closed are of the first open day, as ever. Returns the claims and volumes that are
    gone and have corrections of those months: they are to be charged anew.
    """
    first = month_of(true_time)
    if not connection.execute(delete(CLOSED_MONTH).where(CLOSED_MONTH.c.month >= first)).rowcount:
        return []
    site_runs.reopen(connection, charges.first_open_day(connection))
    day, corrects = days_of(first).start, CHARGE.c.corrects
    gone = (CLAIM.c.state == ClaimState.GONE, VOLUME.c.state == VolumeState.GONE)
    live = union_all(select(CLAIM.c.id).where(~gone[0]), select(VOLUME.c.id).where(~gone[1]))
    opened = (charges.OF_TIME, CHARGE.c.day >= day, or_(corrects == "", corrects >= first))
    connection.execute(delete(CHARGE).where(*opened, CHARGE.c.claim_id.in_(live)))
    connection.execute(update(CHARGE).where(corrects != "", CHARGE.c.day > day).values(day=day))
    over = union_all(select(CLAIM.c.id).where(gone[0]), select(VOLUME.c.id).where(gone[1]))
    wrong = select(CHARGE.c.claim_id).distinct().where(corrects >= first, CHARGE.c.claim_id.in_(over))
    return list(connection.execute(wrong).scalars())


def purge(connection: Connection, before: float) -> None:
    """Forgets the charges of whole months that had ended by then; what is known of closed months stays.

    Charges begin with the first month that has some of a claim or volume on record: a later word on it needs them.
    """
    end = days_of(month_of(before)).start
    site_runs.purge(connection, end)
    on_record = union_all(select(CLAIM.c.id), select(VOLUME.c.id))
    known = (CHARGE.c.day < end, CHARGE.c.claim_id.in_(on_record))
    first = connection.execute(select(func.min(CHARGE.c.day)).where(*known)).scalar()
    begin = end if first is None else days_of(day_text(first)[:7]).start
    connection.execute(delete(CHARGE).where(CHARGE.c.day < begin))
