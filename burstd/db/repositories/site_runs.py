"""Runs of jobs on nodes of the site's own: those that go on, and what each that is over was charged, by day (UTC)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from operator import add
from typing import Any

from sqlalchemy import ColumnElement, Connection, bindparam, delete, func, insert, select

from burstd.db.database import chunks, job_or_part
from burstd.db.repositories.bill import BillGrouping, dearest_first
from burstd.db.tables import SITE_CHARGE, SITE_RUN
from burstd.domain.billing.costs import MICRO
from burstd.domain.billing.site_runs import SiteRun, site_charges
from burstd.domain.billing.use import DAY_S, Charge, Payer, day_text

_KEY = ("job", "run_start", "node_group")
_COLUMNS: Mapping[str, ColumnElement[object]] = {
    **{name: SITE_CHARGE.c[name] for name in ("user", "account", "job", "partition", "day")},
    "pool": SITE_CHARGE.c.node_group,
}


def save_site_runs(connection: Connection, begun: Sequence[SiteRun], ended: Sequence[SiteRun]) -> None:
    """Writes runs that have begun, and charges those that have ended; what is on record of a run is written anew."""
    names = [{f"b_{key}": value for key, value in _name(run).items() if key in _KEY} for run in (*begun, *ended)]
    for table in (SITE_RUN, SITE_CHARGE) if names else ():
        connection.execute(delete(table).where(*(table.c[key] == bindparam(f"b_{key}") for key in _KEY)), names)
    if begun:
        connection.execute(
            insert(SITE_RUN),
            [{**_name(run), "started": run.started, "share": run.share, "price": run.price} for run in begun],
        )
    rows = [
        {**_name(run), "day": charge.day, "amount": charge.amount, "milliseconds": charge.milliseconds}
        for run in ended
        for charge in site_charges(run, run.started if run.ended is None else run.ended)
    ]
    if rows:
        connection.execute(insert(SITE_CHARGE), rows)


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
        )
        for row in connection.execute(select(SITE_RUN).where(*wanted)).mappings()
    ]


def charged_site_runs(connection: Connection, jobs: Collection[str]) -> set[tuple[str, int]]:
    """Job and ``run_start`` of the runs of these jobs that are over."""
    name = (SITE_CHARGE.c.job, SITE_CHARGE.c.run_start)
    return {
        (job, start)
        for some in chunks(sorted(jobs))
        for job, start in connection.execute(select(*name).where(name[0].in_(some)).distinct())
    }


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
    for run in open_site_runs(connection):
        for charge in site_charges(run, until) if user in ("", run.payer.user) else ():
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
    for run in open_site_runs(connection, job_or_part(SITE_RUN.c.job, job)):
        if user in ("", run.payer.user):
            found[run.currency] += sum(charge.amount for charge in site_charges(run, until))
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
    return {**run.payer._asdict(), "run_start": run.run_start, "node_group": run.group, "currency": run.currency}


def _payer(row: Mapping[Any, Any]) -> Payer:
    return Payer(row["job"], row["user"], row["account"], row["partition"])
