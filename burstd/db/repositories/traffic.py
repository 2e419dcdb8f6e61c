"""Charges of traffic: written once, in the transaction that records that output is at home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, and_, func, insert, or_, select, update

from burstd.db.codec import value_from_row
from burstd.db.repositories.charges import charge_of_row, charge_rows, first_open_day, owners_of
from burstd.db.tables import CHARGE, CLAIM, CLAIM_JOB, CLAIM_RUN
from burstd.domain.billing.closing import MonthCharge
from burstd.domain.billing.costs import month_of
from burstd.domain.billing.traffic import traffic_charge
from burstd.domain.billing.use import DAY_S, Kind, Payer
from burstd.domain.claim import Claim

_FIRST = 10**9
"""From this number on a claim's charges are of traffic: those before are written anew."""
_NODES = 500


def charge_output(
    connection: Connection, nodes: Sequence[str], payer: Payer, size: int, now: float
) -> MonthCharge | None:
    """Charges a job's owner for ``size`` bytes that left the cloud of its machine; None: they cost nothing.

    The machine is the one that the job ran on last; else the latest of ``nodes``. ``payer``: where no run is on record.
    """
    claim = _machine_of(connection, nodes, payer)
    if claim is None or not claim.offer.egress_price:
        return None
    known = owners_of(connection, {payer.job}).get(payer.job)
    if known is not None and known.user == payer.user:
        payer = known._replace(job=payer.job)
    price, first_open = claim.offer.egress_price, first_open_day(connection)
    charge = traffic_charge(now, payer, size, price, first_open)
    if charge is None:
        return None
    others = (CHARGE.c.claim_id == claim.id, CHARGE.c.kind == Kind.TRAFFIC)
    last = connection.execute(select(func.max(CHARGE.c.number)).where(*others)).scalar()
    [row] = charge_rows(claim, [charge], _FIRST if last is None else last + 1)
    connection.execute(insert(CHARGE), row)
    return charge_of_row(row)


def _machine_of(connection: Connection, nodes: Sequence[str], payer: Payer) -> Claim | None:
    runs = select(CLAIM_RUN.c.claim_id).where(CLAIM_RUN.c.job == payer.job, CLAIM_RUN.c.user == payer.user)
    ran_on = connection.execute(runs.order_by(CLAIM_RUN.c.started.desc()).limit(1)).scalar() or ""
    made_for = select(CLAIM_JOB.c.claim_id).where(CLAIM_JOB.c.job == payer.job)
    there = select(CLAIM).where(CLAIM.c.slot.in_(nodes[:_NODES]))
    order = ((CLAIM.c.id == ran_on).desc(), CLAIM.c.id.in_(made_for).desc(), CLAIM.c.created.desc())
    row = connection.execute(there.order_by(*order).limit(1)).mappings().one_or_none()
    return None if row is None else value_from_row(Claim, row)


def bring_back(connection: Connection, true_time: float) -> list[tuple[MonthCharge, MonthCharge]]:
    """Puts charges that a clock wrote that was ahead, of days that had not begun by then, down to the day of then.

    Returns them as they were and as they are. After ``closed_months.reopen``: no month from then on is closed.
    """
    day, corrects = int(true_time // DAY_S), CHARGE.c.corrects
    ahead = or_(and_(corrects == "", CHARGE.c.day > day), corrects >= month_of(true_time))
    late = (CHARGE.c.kind == Kind.TRAFFIC, ahead)
    before = [charge_of_row(row) for row in connection.execute(select(CHARGE).where(*late)).mappings()]
    connection.execute(update(CHARGE).where(*late).values(day=day, corrects=""))
    return [(one, replace(one, charge=one.charge._replace(day=day, corrects=""))) for one in before]
