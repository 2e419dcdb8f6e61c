"""Runs of jobs that are over with what they cost, in the order in which they are compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, RowMapping, and_, case, func, select

from burstd.db.repositories.journal import STAGINGS
from burstd.db.repositories.site_runs import open_site_runs, site_lines
from burstd.db.tables import CHARGE, ENDED_JOB, EVENT, SITE_CHARGE, STAGING
from burstd.domain.billing.compare import LIKENESS, Place, PlacedRun
from burstd.domain.billing.costs import month_of
from burstd.domain.billing.use import DAY_S
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.staging import StageState

_ROWS = 500
_NEAR_S = 31 * DAY_S
"""Charges from so long before a run until so long after it are its job's: it may have been requeued, and Slurm gives
numbers again."""
_ORDER = (*LIKENESS, "id", "started")


class DatedCost(NamedTuple):
    """What a job was charged in a day."""

    day: int
    """Since 1970."""
    corrects: str
    """The month that it puts right, or empty."""
    key: str
    amount: int
    """Both as in ``PlacedRun.costs``."""


DatedCosts = Mapping[tuple[str, str], Sequence[DatedCost]]
"""By job and user."""


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs count, by when they ended; an empty text: all. The others tell of them."""

    since: float
    until: float
    job: str = ""
    user: str = ""
    account: str = ""

    def counts(self, row: RowMapping) -> bool:
        """Whether a row of ``ended_job`` does."""
        return self.since <= row["ended"] < self.until and all(
            value in ("", row[name])
            for name, value in (("id", self.job), ("user", self.user), ("account", self.account))
        )


def placed_runs(
    connection: Connection,
    since: float,
    wanted: RunFilter,
    live: DatedCosts,
    like: EndedJob | None = None,
    user: str = "",
) -> Iterator[PlacedRun]:
    """Runs that ended from ``since`` until the end of what is wanted; with ``like`` those that are like it only, with
    ``user`` his only.

    ``live``: costs that are not on record yet.
    """
    query = select(ENDED_JOB).where(ENDED_JOB.c.ended >= since, ENDED_JOB.c.ended < wanted.until)
    if like is not None:
        query = query.where(*(ENDED_JOB.c[name] == getattr(like, name) for name in LIKENESS))
    if user:
        query = query.where(ENDED_JOB.c.user == user)
    query = query.order_by(*(ENDED_JOB.c[name] for name in _ORDER)).execution_options(yield_per=_ROWS)
    for rows in connection.execute(query).mappings().partitions():
        jobs = sorted({row["id"] for row in rows})
        costs = {
            Place.THERE: _charged(connection, [CHARGE.c.amount, CHARGE.c.currency, CHARGE.c.corrects], jobs, rows),
            Place.HERE: _charged(
                connection, [SITE_CHARGE.c.milliseconds, SITE_CHARGE.c.node_group, SITE_CHARGE.c.corrects], jobs, rows
            ),
        }
        delivered = _deliveries(connection, jobs)
        for row in rows:
            place, name, ended = Place.THERE if row["burst"] else Place.HERE, (row["id"], row["user"]), row["ended"]
            cost = Counter[str]()
            for one in (*costs[place].get(name, ()), *(live.get(name, ()) if place is Place.THERE else ())):
                if _is_near(one, row):
                    cost[one.key] += one.amount
            yield PlacedRun(
                *name, row["name"], row["nodes"], row["cpus"], row["gpus"], place,
                row["eligible"] if row["submitted"] is None else row["submitted"], row["eligible"], row["started"],
                ended, min((at for at in delivered[name] if at >= ended), default=ended), cost, wanted.counts(row),
            )  # fmt: skip


def _charged(
    connection: Connection, columns: Sequence[Column[Any]], jobs: Sequence[str], rows: Sequence[RowMapping]
) -> DatedCosts:
    """Of these jobs, from the first day on that is near to any of the rows.

    ``columns``: amount, key and ``corrects``.
    """
    table, first = columns[0].table.c, min(_near_days(row)[0] for row in rows)
    by = (table.job, table.user, table.day, *columns[1:])
    query = select(func.sum(columns[0]), *by).where(table.job.in_(jobs), table.day >= first).group_by(*by)
    found: defaultdict[tuple[str, str], list[DatedCost]] = defaultdict(list)
    for amount, job, user, day, key, corrects in connection.execute(query):
        found[job, user].append(DatedCost(day, corrects, key, int(amount)))
    return found


def _near_days(row: RowMapping) -> tuple[int, int]:
    return int((row["started"] - _NEAR_S) // DAY_S), int((row["ended"] + _NEAR_S) // DAY_S)


def _is_near(cost: DatedCost, row: RowMapping) -> bool:
    """Whether it is the row's; what puts a month right counts as of that month."""
    first, last = _near_days(row)
    if cost.corrects:
        return month_of(first * DAY_S) <= cost.corrects <= month_of(last * DAY_S)
    return first <= cost.day <= last


def _deliveries(connection: Connection, jobs: Sequence[str]) -> Mapping[tuple[str, str], list[float]]:
    """When output of these jobs was at home, by job and user."""
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    event = and_(EVENT.c.subject == STAGINGS.subject + STAGING.c.job_id, EVENT.c.new == StageState.DELIVERED.value)
    name = case((STAGING.c.array_task != "", STAGING.c.array_task), else_=STAGING.c.job_id)
    query = select(name, STAGING.c.user, EVENT.c.time).join(EVENT, event).where(name.in_(jobs))
    for job, user, time in connection.execute(query):
        found[job, user].append(time)
    return found


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How much nodes of one group of ``[site.cost]`` were used."""

    since: float
    """The beginning of what was asked for, or of the first day with use on record."""
    node_s: float
    """Of nodes, by the jobs' shares of them."""


def group_uses(connection: Connection, groups: Collection[str], since: float, until: float) -> Mapping[str, GroupUse]:
    """From the day (UTC) of ``since`` on; a group that no job has used is missing."""
    seconds = {line.key: line.seconds for line in site_lines(connection, "pool", since, until)}
    begun: defaultdict[str, list[float]] = defaultdict(list)
    for run in open_site_runs(connection):
        begun[run.group].append(run.started)
    for group in groups:
        charged = select(SITE_CHARGE.c.day).where(SITE_CHARGE.c.node_group == group)
        day = connection.execute(charged.order_by(SITE_CHARGE.c.day).limit(1)).scalar()
        begun[group] += [] if day is None else [day * DAY_S]
    return {group: GroupUse(max(since, min(begun[group])), seconds[group]) for group in groups if seconds.get(group)}
