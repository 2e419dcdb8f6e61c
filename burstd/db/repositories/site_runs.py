"""Runs of jobs on nodes of the site's own: those that go on, and what each that is over was charged, by day (UTC)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from math import ceil
from operator import add
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, func, insert, or_, select

from burstd.db.database import chunks, job_or_part
from burstd.db.repositories.bill import BillGrouping, dearest_first
from burstd.db.repositories.charges import first_open_day
from burstd.db.tables import SITE_CHARGE, SITE_RUN
from burstd.domain.billing.closing import days_of, unfrozen
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.site_runs import SiteCharge, SiteRun, site_charges
from burstd.domain.billing.use import DAY_S, Charge, Kind, Payer, day_text

_RunKey = tuple[str, int, str]
_KEY = ("job", "run_start", "node_group")
_ROWS = 2000
"""Of a month's charges that are in memory at a time."""
_ORDER = (
    "day", "node_group", "nodes", "job", "run_start", "user", "account", "partition", "currency", "amount",
    "milliseconds", "corrects",
)  # fmt: skip
_COLUMNS: Mapping[str, ColumnElement[object]] = {
    **{name: SITE_CHARGE.c[name] for name in ("user", "account", "job", "partition", "day")},
    "pool": SITE_CHARGE.c.node_group,
}


def save_site_runs(connection: Connection, begun: Sequence[SiteRun], ended: Sequence[SiteRun]) -> None:
    """Writes runs that have begun, and charges those that have ended; what is on record of a run is written anew.

    Charges of closed months stay: what differs there is charged as a correction. Those of months that are open are
    written anew as well: a run has one for each month that it corrects.
    """
    runs = (*begun, *ended)
    if not runs:
        return
    names = [{f"b_{key}": value for key, value in zip(_KEY, _key(run), strict=True)} for run in runs]
    first_open, on_record = first_open_day(connection), _charges_on_record(connection, runs)
    for table, others in ((SITE_RUN, ()), (SITE_CHARGE, (SITE_CHARGE.c.day >= first_open,))):
        connection.execute(
            delete(table).where(*(table.c[key] == bindparam(f"b_{key}") for key in _KEY), *others), names
        )
    if begun:
        connection.execute(
            insert(SITE_RUN),
            [{**_name(run), "started": run.started, "share": run.share, "price": run.price} for run in begun],
        )
    for run in ended:
        kept = [one for one in on_record[_key(run)] if one.day < first_open]
        cost = site_charges(run, run.started if run.ended is None else run.ended)
        _write(connection, run, unfrozen(cost, kept, first_open))


def freeze(connection: Connection, month: str, now: float) -> None:
    """Writes what runs that go on are charged in a month, the first one that is open, corrections included."""
    days = days_of(month)
    for run, cost in charges_so_far(connection, open_site_runs(connection), now):
        _write(connection, run, [charge for charge in cost if charge.day in days])


def charges_so_far(
    connection: Connection, runs: Sequence[SiteRun], until: float
) -> Iterator[tuple[SiteRun, list[Charge]]]:
    """What runs that go on are charged by ``until`` beside what closed months have on record of them."""
    first_open, on_record = first_open_day(connection), _charges_on_record(connection, runs)
    for run in runs:
        yield run, unfrozen(site_charges(run, until), on_record[_key(run)], first_open)


def _charges_on_record(connection: Connection, runs: Iterable[SiteRun]) -> Mapping[_RunKey, list[Charge]]:
    found: defaultdict[_RunKey, list[Charge]] = defaultdict(list)
    for some in chunks(sorted({run.payer.job for run in runs})):
        for row in connection.execute(select(SITE_CHARGE).where(SITE_CHARGE.c.job.in_(some))).mappings():
            found[row["job"], row["run_start"], row["node_group"]].append(_charge_of_row(row))
    return found


def _write(connection: Connection, run: SiteRun, charges: Iterable[Charge]) -> None:
    rows = [
        {**_name(run), "day": charge.day, "corrects": charge.corrects, "amount": charge.amount,
         "milliseconds": charge.milliseconds}
        for charge in charges
    ]  # fmt: skip
    if rows:
        connection.execute(insert(SITE_CHARGE), rows)


def charges_of_days(connection: Connection, days: range) -> Iterator[SiteCharge]:
    """Those on record, in the order of ``site_month_file``."""
    query = select(SITE_CHARGE).where(SITE_CHARGE.c.day >= days.start, SITE_CHARGE.c.day < days.stop)
    query = query.order_by(*(SITE_CHARGE.c[name] for name in _ORDER)).execution_options(yield_per=_ROWS)
    for row in connection.execute(query).mappings():
        yield SiteCharge(row["node_group"], row["nodes"], row["run_start"], row["currency"], _charge_of_row(row))


def charges_by(connection: Connection, days: range, until: float, user: str = "") -> Iterator[SiteCharge]:
    """All of these days by ``until``, those of runs that go on last. ``user``: his; empty: all."""
    so_far = (
        SiteCharge(run.group, run.nodes, run.run_start, run.currency, charge)
        for run, charges in charges_so_far(connection, open_site_runs(connection), until)
        for charge in charges
        if charge.day in days
    )
    for one in chain(charges_of_days(connection, days), so_far):
        if user in ("", one.charge.payer.user):
            yield one


def reopen(connection: Connection, first_open: int) -> None:
    """Takes back what closed months have of runs that go on; ``first_open``: as in ``unfrozen``, from now on."""
    runs = open_site_runs(connection)
    names = [{f"b_{key}": value for key, value in zip(_KEY, _key(run), strict=True)} for run in runs]
    if names:
        same = (SITE_CHARGE.c[key] == bindparam(f"b_{key}") for key in _KEY)
        connection.execute(delete(SITE_CHARGE).where(*same, SITE_CHARGE.c.day >= first_open), names)


def bring_back(connection: Connection, true_time: float) -> None:
    """Puts charges that a clock wrote that was ahead, of days that had not begun by then, down to the day of then.

    Corrections of months that stay closed are of the first open day, as ever. After ``closed_months.reopen``.
    """
    today, first_open = int(true_time // DAY_S), first_open_day(connection)
    corrects = SITE_CHARGE.c.corrects
    late = or_(SITE_CHARGE.c.day >= today, and_(corrects != "", SITE_CHARGE.c.day >= first_open))
    rows = connection.execute(select(SITE_CHARGE).where(late)).mappings().all()
    connection.execute(delete(SITE_CHARGE).where(late))
    moved: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        corrected = row["corrects"] if row["corrects"] < day_text(first_open)[:7] else ""
        key = (*(row[name] for name in _KEY), corrected)
        before = moved.get(key, {"amount": 0, "milliseconds": 0})
        sums = {name: row[name] + before[name] for name in ("amount", "milliseconds")}
        moved[key] = {**row, **sums, "day": first_open if corrected else today, "corrects": corrected}
    if moved:
        connection.execute(insert(SITE_CHARGE), [*moved.values()])


def purge(connection: Connection, end: int) -> None:
    """Forgets charges before a day, which begins a month; all from the first month on that has some of a run that goes
    on stay."""
    going_on = exists().where(*(SITE_RUN.c[key] == SITE_CHARGE.c[key] for key in _KEY))
    found = select(func.min(SITE_CHARGE.c.day)).where(SITE_CHARGE.c.day < end, going_on)
    first = connection.execute(found).scalar() or end
    connection.execute(delete(SITE_CHARGE).where(SITE_CHARGE.c.day < days_of(day_text(first)[:7]).start))


def open_site_runs(connection: Connection, *wanted: ColumnElement[bool]) -> list[SiteRun]:
    """Those that have not ended, as far as the record knows."""
    return [
        SiteRun(
            row["node_group"],
            _payer(row),
            row["run_start"],
            row["started"],
            row["share"],
            row["price"],
            row["currency"],
            nodes=row["nodes"],
        )
        for row in connection.execute(select(SITE_RUN).where(*wanted)).mappings()
    ]


def charged_site_runs(connection: Connection, jobs: Collection[str]) -> set[tuple[str, int]]:
    """Job and ``run_start`` of the runs of these jobs that are over."""
    name, found = ("job", "run_start"), set[tuple[str, int]]()
    for some in chunks(sorted(jobs)):
        charged, going_on = (
            select(*(table.c[key] for key in name)).where(table.c.job.in_(some)) for table in (SITE_CHARGE, SITE_RUN)
        )
        found.update((job, start) for job, start in connection.execute(charged.except_(going_on)))
    return found


@dataclass(frozen=True, slots=True)
class SiteLine:
    """What the jobs of one user (project, job, partition, day, group of nodes) cost on nodes of the site."""

    key: str
    """Empty by provider and claim: then all is one line."""
    currency: str
    cost: Decimal
    """To a millionth, at the price of nodes that are used all the time."""
    seconds: float
    """Of nodes, by the jobs' shares of them."""
    others: int = 0
    """So many jobs in one line, which are not among the dearest."""


def site_lines(
    connection: Connection, group: BillGrouping, since: float, until: float, user: str = "", limit: int | None = None
) -> tuple[SiteLine, ...]:
    """The bill of the site's own nodes, in whole days (UTC), as ``dearest_first`` has it; by day in order.

    By pool: by group.

    ``limit``: by job so many lines, the dearest; what is not among them is one line a currency. None: all.
    """
    days = range(int(since // DAY_S), ceil(until / DAY_S))
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    others: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    limit = limit if group == "job" else None
    for run, so_far in charges_so_far(connection, open_site_runs(connection), until):
        for charge in so_far if user in ("", run.payer.user) else ():
            if charge.day in days:
                _add(sums[_text(_key_of(group, run, charge)), run.currency], charge.amount, charge.milliseconds)
    by = [SITE_CHARGE.c.currency, *([_COLUMNS[group]] if group in _COLUMNS else ())]
    wanted = [SITE_CHARGE.c.day >= days.start, SITE_CHARGE.c.day < days.stop]
    if user:
        wanted.append(SITE_CHARGE.c.user == user)
    cost = func.sum(SITE_CHARGE.c.amount)
    found = select(cost, func.sum(SITE_CHARGE.c.milliseconds), *by).where(*wanted).group_by(*by)
    seen = Counter[str]()
    for amount, milliseconds, currency, *name in connection.execute(found.order_by(cost.desc(), *by)):
        key = (_text(name[0]) if name else "", currency)
        seen[currency] += 1
        if limit is None or seen[currency] <= limit or key in sums:
            _add(sums[key], int(amount), int(milliseconds))
        else:
            _add(others[currency], int(amount), int(milliseconds), 1)
    lines = [_line(*key, *sums[key]) for key in sorted(sums)]
    if group != "day":
        lines = dearest_first(lines)
    for line in lines[limit:] if limit is not None else ():
        _add(others[line.currency], *sums[line.key, line.currency], 1)
    return (
        *lines[:limit],
        *(_line("", currency, *others[currency]) for currency in sorted(others)),
    )


def job_cost(connection: Connection, job: str, until: float, user: str = "") -> Mapping[str, int]:
    """What a job has cost on nodes of the site by ``until``, by currency, in millionths.

    ``123`` has its array tasks and components too. ``user``: only what he is charged, for Slurm gives ids again.
    """
    found: defaultdict[str, int] = defaultdict(int)
    wanted = [job_or_part(SITE_CHARGE.c.job, job), *([SITE_CHARGE.c.user == user] if user else [])]
    sums = select(SITE_CHARGE.c.currency, func.sum(SITE_CHARGE.c.amount)).where(*wanted)
    for currency, amount in connection.execute(sums.group_by(SITE_CHARGE.c.currency)):
        found[currency] += int(amount)
    for run, cost in charges_so_far(connection, open_site_runs(connection, job_or_part(SITE_RUN.c.job, job)), until):
        if user in ("", run.payer.user):
            found[run.currency] += sum(charge.amount for charge in cost)
    return found


def _line(key: str, currency: str, amount: int, milliseconds: int, others: int = 0) -> SiteLine:
    return SiteLine(key, currency, amount * MICRO, milliseconds / 1000, others)


def _add(sums: list[int], *values: int) -> None:
    sums[:] = map(add, sums, values)


def _key_of(group: BillGrouping, run: SiteRun, charge: Charge) -> object:
    match group:
        case "day":
            return charge.day
        case "pool":
            return run.group
        case "provider" | "claim":
            return ""
        case "user" | "account" | "job" | "partition":
            return getattr(run.payer, group)


def _text(key: object) -> str:
    return day_text(key) if isinstance(key, int) else str(key)


def _name(run: SiteRun) -> dict[str, object]:
    return {
        **run.payer._asdict(), "run_start": run.run_start, "node_group": run.group, "currency": run.currency,
        "nodes": run.nodes,
    }  # fmt: skip


def _key(run: SiteRun) -> _RunKey:
    return run.payer.job, run.run_start, run.group


def _charge_of_row(row: Mapping[Any, Any]) -> Charge:
    return Charge(row["day"], Kind.SITE, "", _payer(row), row["amount"], row["milliseconds"], row["corrects"])


def _payer(row: Mapping[Any, Any]) -> Payer:
    return Payer(row["job"], row["user"], row["account"], row["partition"])
