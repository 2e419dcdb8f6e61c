"""What jobs used of their nodes: a row for each node of each run, written anew with each set of figures."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

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


_KEY = ("job", "restarts", "run_start", "node")
_OF_KEY = tuple(JOB_USE.c[name] == bindparam(f"of_{name}") for name in _KEY)
PackedFigures = Mapping[tuple[tuple[str, int, int], str], bytes]
"""By job, restarts, start and node."""


def packed_figures(node: NodeUse) -> bytes:
    """A node's figures with their series, as they are written; empty: it has none, or they are too long.

    It takes up to 3 ms with 8 GPUs: the thread that fetched them does it.
    """
    figures = zlib.compress(to_json_text(to_json(node)).encode(), 6) if node.cpu_series is not None else b""
    return figures if len(figures) <= MAX_SERIES_BYTES else b""


def save_uses(connection: Connection, uses: Iterable[JobUse], packed: PackedFigures, now: float) -> None:
    """Writes the nodes that each run has; rows of its other nodes stay."""
    rows = [_row(use, node, packed, now) for use in uses for node in use.nodes]
    if rows:
        connection.execute(delete(JOB_USE).where(*_OF_KEY), [_key(row) for row in rows])
        connection.execute(insert(JOB_USE), rows)


def reopen_uses(connection: Connection, uses: Iterable[JobUse]) -> None:
    """Writes that these runs have not ended, whatever is on record."""
    for use in uses:
        connection.execute(update(JOB_USE).where(*_rows_of(use), JOB_USE.c.ended.is_not(None)).values(ended=None))


def end_use(connection: Connection, use: JobUse, nodes: Sequence[NodeUse]) -> None:
    """Writes the summaries of these nodes, series stay as they are, and that the run has ended, if it says so."""
    if nodes:
        statement = update(JOB_USE).where(*_OF_KEY).values(summary=bindparam("said"))
        connection.execute(
            statement,
            [_key(_place(use, node)) | {"said": node.without_series()} for node in nodes],
        )
    if use.ended is not None:
        connection.execute(update(JOB_USE).where(*_rows_of(use)).values(ended=use.ended))


def _key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"of_{name}": row[name] for name in _KEY}


def _rows_of(use: JobUse) -> tuple[ColumnElement[bool], ...]:
    return (
        JOB_USE.c.job == use.job, JOB_USE.c.restarts == use.restarts, JOB_USE.c.run_start == use.run_start,
    )  # fmt: skip


def _row(use: JobUse, node: NodeUse, packed: PackedFigures, now: float) -> dict[str, Any]:
    figures = packed.get(((use.job, use.restarts, use.run_start), node.node))
    return {
        **_place(use, node), "number": use.number, "user": use.user, "account": use.account,
        "partition": use.partition, "nodes_allocated": use.nodes_allocated,
        "started": use.started, "written": now, "ended": use.ended, "summary": node.without_series(),
        "figures": packed_figures(node) if figures is None else figures,
    }  # fmt: skip


def _place(use: JobUse, node: NodeUse) -> dict[str, Any]:
    return {"job": use.job, "restarts": use.restarts, "run_start": use.run_start, "node": node.node}


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
    """A run with the series of these rows. All else is as the summaries have it: they know of the run's end, and of
    what Slurm said of the job."""
    figures = {row["node"]: row["figures"] for row in rows}
    nodes = (_with_series(node, figures[node.node]) if node.node in figures else node for node in use.nodes)
    return replace(use, nodes=tuple(nodes))


def _with_series(node: NodeUse, figures: bytes) -> NodeUse:
    whole: NodeUse = from_json(NodeUse, json.loads(zlib.decompress(figures)))
    series = {gpu.uuid: gpu.series for gpu in whole.gpus}
    gpus = tuple(replace(gpu, series=series.get(gpu.uuid)) for gpu in node.gpus)
    return replace(node, gpus=gpus, cpu_series=whole.cpu_series, memory_series=whole.memory_series)


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
