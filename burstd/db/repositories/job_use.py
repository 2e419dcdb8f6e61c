"""What jobs used of their nodes: a row for each node of each run, written anew with each set of figures."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, delete, func, insert, or_, select, update

from burstd.db.codec import from_json, to_json, to_json_text
from burstd.db.tables import JOB_USE
from burstd.domain.job_use import JobUse, NodeUse

MAX_ROWS = 200_000
"""So many rows stay at most, however long history is kept, ..."""
MAX_SERIES = 20_000
"""... and so many of the latest with series: about 200 MB."""
MAX_SERIES_BYTES = 60_000
"""Of one row, compressed; longer series are not kept."""
MAX_PARTS = 20
_PLAIN = tuple(column for column in JOB_USE.c if column is not JOB_USE.c.figures)


def save_uses(connection: Connection, uses: Iterable[JobUse], now: float) -> None:
    """Writes the nodes that each run has; rows of its other nodes stay, but for ``ended``."""
    for use in uses:
        run = _rows_of(use)
        for node in use.nodes:
            connection.execute(delete(JOB_USE).where(*run, JOB_USE.c.node == node.node))
            connection.execute(insert(JOB_USE), [_row(use, node, now)])
        others = JOB_USE.c.ended.is_distinct_from(use.ended)
        connection.execute(update(JOB_USE).where(*run, others).values(ended=use.ended))


def end_use(connection: Connection, use: JobUse, nodes: Iterable[NodeUse]) -> None:
    """Writes that a run has ended, and the summaries of these of its nodes; the series stay as they are."""
    run = _rows_of(use)
    for node in nodes:
        summary = node.without_series()
        connection.execute(update(JOB_USE).where(*run, JOB_USE.c.node == node.node).values(summary=summary))
    connection.execute(update(JOB_USE).where(*run).values(ended=use.ended))


def _rows_of(use: JobUse) -> tuple[ColumnElement[bool], ...]:
    return (
        JOB_USE.c.job == use.job, JOB_USE.c.restarts == use.restarts, JOB_USE.c.run_start == use.run_start,
    )  # fmt: skip


def _row(use: JobUse, node: NodeUse, now: float) -> dict[str, Any]:
    figures = zlib.compress(to_json_text(to_json(node)).encode(), 6) if node.cpu_series is not None else b""
    return {
        "job": use.job, "node": node.node, "restarts": use.restarts, "run_start": use.run_start,
        "number": use.number, "user": use.user, "account": use.account,
        "partition": use.partition, "nodes_allocated": use.nodes_allocated,
        "started": use.started, "written": now, "ended": use.ended, "summary": node.without_series(),
        "figures": figures if len(figures) <= MAX_SERIES_BYTES else b"",
    }  # fmt: skip


def open_runs() -> Select[Any]:
    """Rows of runs that have not ended, as far as the record knows; without series."""
    return select(*_PLAIN).where(JOB_USE.c.ended.is_(None)).order_by(JOB_USE.c.job, JOB_USE.c.node)


def runs_of_job(job: str) -> Select[Any]:
    """Rows of all runs of jobs with this id, the first run first, without series."""
    return select(*_PLAIN).where(JOB_USE.c.job == job).order_by(JOB_USE.c.started, JOB_USE.c.node)


def last_run_of_job(job: str) -> Select[Any]:
    """Rows of the last run of a job, without series."""
    last = select(func.max(JOB_USE.c.started)).where(JOB_USE.c.job == job).scalar_subquery()
    return runs_of_job(job).where(JOB_USE.c.started == last)


def owner_of_job(job: str) -> Select[Any]:
    """Whose the last run of a job is."""
    return select(JOB_USE.c.user).where(JOB_USE.c.job == job).order_by(JOB_USE.c.started.desc()).limit(1)


def parts_of_job(number: str) -> Select[Any]:
    """Ids and users of tasks of an array, and of components of a het job: the latest MAX_PARTS."""
    ranges = (
        and_(JOB_USE.c.job >= f"{number}{mark}", JOB_USE.c.job < f"{number}{chr(ord(mark) + 1)}") for mark in "_+"
    )
    query = select(JOB_USE.c.job, JOB_USE.c.user).where(or_(*ranges)).group_by(JOB_USE.c.job, JOB_USE.c.user)
    return query.order_by(func.max(JOB_USE.c.started).desc(), JOB_USE.c.job).limit(MAX_PARTS)


def series_of_run(use: JobUse, nodes: int | None) -> Select[Any]:
    """Series of a run, of its first ``nodes`` nodes that have any; None: of all."""
    rows = select(JOB_USE.c.node, JOB_USE.c.figures).where(*_rows_of(use), func.length(JOB_USE.c.figures) > 0)
    return rows.order_by(JOB_USE.c.node).limit(nodes)


def uses_of_rows(rows: Iterable[RowMapping]) -> tuple[JobUse, ...]:
    """The runs of these rows, in their order, without series."""
    runs: dict[tuple[str, int, int], list[RowMapping]] = {}
    for row in rows:
        runs.setdefault((row["job"], row["restarts"], row["run_start"]), []).append(row)
    return tuple(_use(parts) for parts in runs.values())


def _use(rows: Sequence[RowMapping]) -> JobUse:
    first = rows[0]
    return JobUse(
        job=first["job"], number=first["number"], restarts=first["restarts"], user=first["user"],
        account=first["account"], partition=first["partition"], nodes_allocated=first["nodes_allocated"],
        started=first["started"], ended=first["ended"], run_start=first["run_start"],
        nodes=tuple(row["summary"] for row in rows),
    )  # fmt: skip


def with_series(use: JobUse, rows: Iterable[RowMapping]) -> JobUse:
    """A run with the series of these rows. All else is as the summaries have it, which know of the run's end."""
    figures = {row["node"]: row["figures"] for row in rows}
    nodes = (_with_series(node, figures[node.node]) if node.node in figures else node for node in use.nodes)
    return replace(use, nodes=tuple(nodes))


def _with_series(node: NodeUse, figures: bytes) -> NodeUse:
    whole: NodeUse = from_json(NodeUse, json.loads(zlib.decompress(figures)))
    return replace(whole, ended=node.ended, cut=node.cut)


def purge(connection: Connection, before: float) -> None:
    """Forgets runs that ended before ``before``, rows beyond a number, and the series of all but the latest."""
    connection.execute(delete(JOB_USE).where(JOB_USE.c.ended < before))
    newest = select(JOB_USE.c.written).order_by(JOB_USE.c.written.desc())
    last = connection.execute(newest.offset(MAX_ROWS).limit(1)).scalar()
    if last is not None:
        connection.execute(delete(JOB_USE).where(JOB_USE.c.written <= last))
    last = connection.execute(newest.offset(MAX_SERIES).limit(1)).scalar()
    if last is not None:
        over = (JOB_USE.c.written <= last, JOB_USE.c.figures != b"")
        connection.execute(update(JOB_USE).where(*over).values(figures=b""))
