"""What each claim and volume was charged for, and to whom: written once, in the transaction that ends it.

Those that live are worked out when somebody asks. All sums are over whole millionths, in the database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Text,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)

from burstd.db.database import chunks, has_prefix
from burstd.db.repositories.journal import claim_subject
from burstd.db.tables import CHARGE, CLAIM_RUN, CLOSED_MONTH, EVENT
from burstd.domain.billing.closing import MonthCharge, days_of, is_frozen, month_charge, unfrozen
from burstd.domain.billing.use import (
    DAY_S,
    Charge,
    ClaimRun,
    IdleMode,
    Kind,
    Payer,
    charges_by_use,
    day_text,
    payers_made_for,
    shared_charges,
)
from burstd.domain.billing.volumes import volume_charges
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.volume import Volume, VolumeState

_PAYER = (CLAIM_RUN.c.job, CLAIM_RUN.c.user, CLAIM_RUN.c.account, CLAIM_RUN.c.partition)
_RUN = ("started", "share", "ended", "run_start")
OF_TIME = CHARGE.c.kind != Kind.TRAFFIC
"""Charges that are worked out anew from what is known of the claim. Those of traffic are written once."""
_REMARK = '"remark":true'
"""In the data of an event that is a remark."""


def save_runs(connection: Connection, runs: Sequence[ClaimRun]) -> None:
    """Writes runs, one that is on record already anew."""
    name = (CLAIM_RUN.c.claim_id, CLAIM_RUN.c.job, CLAIM_RUN.c.run_start)
    for run in runs:
        same = zip(name, (run.claim_id, run.payer.job, run.run_start), strict=True)
        connection.execute(delete(CLAIM_RUN).where(*(column == value for column, value in same)))
    rows = [
        {"claim_id": run.claim_id, **run.payer._asdict(), "run_start": run.run_start,
         "started": run.started, "share": run.share, "ended": run.ended}
        for run in runs
    ]  # fmt: skip
    connection.execute(insert(CLAIM_RUN), rows)


def open_runs() -> Select[Any]:
    """Rows of runs that have not ended, as far as the record knows."""
    return select(CLAIM_RUN).where(CLAIM_RUN.c.ended.is_(None))


def runs_of_jobs(jobs: Collection[str]) -> Select[Any]:
    """Rows of runs of these jobs, on all machines."""
    return select(CLAIM_RUN).where(CLAIM_RUN.c.job.in_(jobs))


def run_of_row(row: Mapping[Any, Any]) -> ClaimRun:
    """The value of a row."""
    payer = Payer(row["job"], row["user"], row["account"], row["partition"])
    return ClaimRun(row["claim_id"], payer, row["started"], row["share"], row["ended"], row["run_start"])


def hand_over(connection: Connection, claim: Claim, former_id: str) -> None:
    """The runs of a claim so far are those of its former life, and what closed months have of it is taken back."""
    connection.execute(update(CLAIM_RUN).where(CLAIM_RUN.c.claim_id == claim.id).values(claim_id=former_id))
    on_record = _charges_on_record(connection, [claim])[claim.id]
    taken_back = unfrozen((), [one.charge for _, one in on_record], first_open_day(connection))
    _add(connection, claim, taken_back, [number for number, _ in on_record])


def close_claim(connection: Connection, claim: Claim, idle: IdleMode) -> tuple[list[Charge], list[Charge]]:
    """Writes the charges of a claim that is GONE, in place of those that it had; returns these, and the new ones.

    Those of closed months stay: what differs there is charged as a correction.
    """
    on_record = _charges_on_record(connection, [claim])[claim.id]
    if any(one.charge.kind is Kind.SHARED for _, one in on_record):
        cost = shared_charges(claim)
    else:
        [cost] = charges_of(connection, [claim], claim.since, idle).values()
    before, after = _put_on_record(connection, claim, cost, on_record)
    still = (CLAIM_RUN.c.claim_id == claim.id, CLAIM_RUN.c.ended.is_(None))
    end = claim.since if claim.billed_until is None else claim.billed_until
    connection.execute(update(CLAIM_RUN).where(*still).values(ended=end))
    return before, after


def _put_on_record(
    connection: Connection, thing: Claim | Volume, cost: Iterable[Charge], on_record: Sequence[tuple[int, MonthCharge]]
) -> tuple[list[Charge], list[Charge]]:
    """Writes all that it has cost in place of what is on record, but for closed months; returns charges as they were
    and are."""
    before, first_open = [one.charge for _, one in on_record], first_open_day(connection)
    kept = {number: one.charge for number, one in on_record if is_frozen(one.charge, first_open)}
    after = [*kept.values(), *unfrozen(cost, kept.values(), first_open)]
    if sorted(before) != sorted(after):
        of_it = (CHARGE.c.claim_id == thing.id, OF_TIME)
        connection.execute(delete(CHARGE).where(*of_it, *_not_frozen(first_open)))
        _add(connection, thing, after[len(kept) :], kept)
    return before, after


def charge_volume(connection: Connection, volume: Volume) -> None:
    """Of one whose bill has changed: writes all its charges if it is GONE, else those that correct closed months."""
    gone = volume.state is VolumeState.GONE
    cost = volume_charges(volume, volume.since if gone else first_open_day(connection) * DAY_S)
    _put_on_record(connection, volume, cost, _charges_on_record(connection, [volume])[volume.id])


def volume_charges_so_far(connection: Connection, volumes: Iterable[Volume], until: float) -> dict[str, list[Charge]]:
    """What volumes that live are charged by ``until`` beside what is on record of them."""
    first_open = first_open_day(connection)
    return {volume.id: volume_charges(volume, until, first_open) for volume in volumes}


def volume_charges_on_record(connection: Connection, volumes: Sequence[Volume]) -> Mapping[str, list[MonthCharge]]:
    """Those of closed months, and corrections of such."""
    first_open = first_open_day(connection)
    found = _charges_on_record(connection, volumes)
    return {volume.id: [one for _, one in found[volume.id] if is_frozen(one.charge, first_open)] for volume in volumes}


def _add(connection: Connection, thing: Claim | Volume, charges: Iterable[Charge], numbers: Iterable[int]) -> None:
    """``numbers``: those that its charges on record have."""
    if rows := charge_rows(thing, charges, max(numbers, default=-1) + 1):
        connection.execute(insert(CHARGE), rows)


def first_open_day(connection: Connection) -> int:
    """The first day of the first month that is not closed, since 1970; 0: none is."""
    last = connection.execute(select(func.max(CLOSED_MONTH.c.month))).scalar()
    return days_of(last).stop if last else 0


def _not_frozen(first_open: int) -> tuple[ColumnElement[bool], ...]:
    """As ``is_frozen`` has it."""
    corrects = CHARGE.c.corrects
    return CHARGE.c.day >= first_open, or_(corrects == "", corrects >= day_text(first_open)[:7])


def _charges_on_record(
    connection: Connection, things: Sequence[Claim | Volume], *, traffic: bool = False
) -> Mapping[str, list[tuple[int, MonthCharge]]]:
    """Of their time, with their numbers, in order; ``traffic``: all."""
    found: defaultdict[str, list[tuple[int, MonthCharge]]] = defaultdict(list)
    for some in chunks([thing.id for thing in things]):
        wanted = (CHARGE.c.claim_id.in_(some), *(() if traffic else (OF_TIME,)))
        query = select(CHARGE).where(*wanted).order_by(CHARGE.c.number)
        for row in connection.execute(query).mappings():
            found[row["claim_id"]].append((row["number"], charge_of_row(row)))
    return found


def charges_so_far(
    connection: Connection, claims: Sequence[Claim], until: float, idle: IdleMode
) -> dict[str, tuple[list[MonthCharge], list[Charge]]]:
    """What is on record of these claims, which live (closed months, traffic), and what else they are charged by
    ``until``."""
    first_open, on_record = first_open_day(connection), _charges_on_record(connection, claims, traffic=True)
    found = {}
    for claim_id, cost in charges_of(connection, claims, until, idle).items():
        traffic = [one for _, one in on_record[claim_id] if one.charge.kind is Kind.TRAFFIC]
        of_time = [one for _, one in on_record[claim_id] if one.charge.kind is not Kind.TRAFFIC]
        kept = [one for one in of_time if is_frozen(one.charge, first_open)]
        found[claim_id] = [*kept, *traffic], unfrozen(cost, [one.charge for one in kept], first_open)
    return found


def freeze(connection: Connection, claims: Sequence[Claim], month: str, now: float, idle: IdleMode) -> None:
    """Writes what claims that live are charged in a month, the first one that is open, corrections included."""
    days, first_open, on_record = days_of(month), first_open_day(connection), _charges_on_record(connection, claims)
    end = days.stop * DAY_S
    begun = [one for one in claims if one.id in on_record or (one.billed_from is not None and one.billed_from < end)]
    cost = charges_of(connection, begun, now, idle)
    for claim in begun:
        more = unfrozen(cost[claim.id], [one.charge for _, one in on_record[claim.id]], first_open)
        numbers = [number for number, _ in on_record[claim.id]]
        _add(connection, claim, (one for one in more if one.day in days), numbers)


def freeze_volumes(connection: Connection, volumes: Iterable[Volume], month: str) -> None:
    """Writes what volumes that live are charged in a month, the first one that is open. Corrections are written."""
    days = days_of(month)
    last = select(CHARGE.c.claim_id, func.max(CHARGE.c.number)).where(CHARGE.c.kind == Kind.VOLUME)
    numbers = dict(connection.execute(last.group_by(CHARGE.c.claim_id)).all())
    for volume in volumes:
        _add(connection, volume, volume_charges(volume, days.stop * DAY_S, days.start), [numbers.get(volume.id, -1)])


def charge_rows(thing: Claim | Volume, charges: Iterable[Charge], first: int = 0) -> list[dict[str, Any]]:
    """As they stand in the table, numbered from ``first`` on."""
    return [
        {"day": charge.day, "claim_id": thing.id, "number": number, "kind": charge.kind, "cause": charge.cause,
         **charge.payer._asdict(), "pool": one.pool, "provider": one.provider, "currency": one.currency,
         "amount": charge.amount, "milliseconds": charge.milliseconds, "corrects": charge.corrects,
         "bytes_out": charge.bytes_out}
        for number, charge in enumerate(charges, first)
        for one in (month_charge(thing, charge),)
    ]  # fmt: skip


def charge_of_row(row: Mapping[Any, Any]) -> MonthCharge:
    """The value of a row."""
    payer = Payer(row["job"], row["user"], row["account"], row["partition"])
    charge = Charge(
        row["day"], row["kind"], row["cause"], payer, row["amount"], row["milliseconds"], row["corrects"],
        row["bytes_out"],
    )  # fmt: skip
    return MonthCharge(row["claim_id"], row["pool"], row["provider"], row["currency"], charge)


def charges_of(connection: Connection, claims: Sequence[Claim], now: float, idle: IdleMode) -> dict[str, list[Charge]]:
    """What these claims have cost by now, worked out anew, by claim."""
    states, runs = _states(connection, [claim.id for claim in claims]), _runs(connection, claims)
    owners = owners_of(connection, {job for claim in claims for job in claim.jobs})
    return {
        claim.id: charges_by_use(
            claim, states[claim.id], runs[claim.id], payers_made_for(claim, owners), now, idle
        )
        for claim in claims
    }  # fmt: skip


def _states(connection: Connection, claims: Sequence[str]) -> Mapping[str, list[tuple[float, ClaimState]]]:
    found: defaultdict[str, list[tuple[float, ClaimState]]] = defaultdict(list)
    for some in chunks([claim_subject(claim_id) for claim_id in claims]):
        moves = (
            EVENT.c.subject.in_(some), EVENT.c.old != EVENT.c.new, EVENT.c.new.in_([*ClaimState]),
            ~type_coerce(EVENT.c.data, Text).contains(_REMARK),
        )  # fmt: skip
        query = select(EVENT.c.subject, EVENT.c.time, EVENT.c.new).where(*moves).order_by(EVENT.c.seq)
        for subject, time, new in connection.execute(query):
            found[subject.removeprefix(claim_subject(""))].append((time, ClaimState(new)))
    return found


def _runs(connection: Connection, claims: Sequence[Claim]) -> Mapping[str, list[ClaimRun]]:
    found: defaultdict[str, list[ClaimRun]] = defaultdict(list)
    for some in chunks([claim.id for claim in claims]):
        query = select(CLAIM_RUN.c.claim_id, *_PAYER, *(CLAIM_RUN.c[name] for name in _RUN))
        ordered = query.where(CLAIM_RUN.c.claim_id.in_(some)).order_by(CLAIM_RUN.c.started, CLAIM_RUN.c.job)
        # By place: a claim may have tens of thousands.
        for claim_id, job, user, account, partition, *rest in connection.execute(ordered):
            found[claim_id].append(ClaimRun(claim_id, Payer(job, user, account, partition), *rest))
    return found


def owners_of(connection: Connection, jobs: set[str]) -> dict[str, Payer]:
    """Whose jobs these are, of those that have run somewhere; of an array, a task of it. The latest of a number."""
    found: dict[str, Payer] = {}
    for some in chunks(sorted(jobs)):
        for row in connection.execute(select(*_PAYER).where(CLAIM_RUN.c.job.in_(some)).order_by(CLAIM_RUN.c.started)):
            found[row[0]] = Payer(*row)
    for job in jobs - found.keys():
        parts = or_(*(has_prefix(CLAIM_RUN.c.job, f"{job}{mark}") for mark in "_+"))
        latest = select(*_PAYER).where(parts).order_by(CLAIM_RUN.c.started.desc()).limit(1)
        if one := connection.execute(latest).first():
            found[job] = Payer(*one)
    return found
