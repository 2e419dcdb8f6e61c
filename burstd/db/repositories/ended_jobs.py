"""Runs of jobs that are over, for predictions: the latest ones survive a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import RowMapping, delete, insert, select

from burstd.db.codec import storable_text, to_json_text
from burstd.db.repositories.ledger import Ledger
from burstd.db.tables import ENDED_JOB
from burstd.db.writer import chunks
from burstd.domain.slurm.job_history import EndedJob

MAX_ENDED_JOBS = 200_000
"""So many rows stay at most, however long history is kept."""


class EndedJobRecords(Ledger):
    """Writing and reading them."""

    def record_ended_jobs(self, some: Iterable[EndedJob]) -> None:
        """Writes runs down; one that is on record already (the job and its start) is written anew."""
        rows = {(row["id"], row["started"]): row for row in map(_columns, some)}
        if not rows:
            return
        with self._writing() as connection:
            for ids in chunks(list({id_ for id_, _ in rows})):
                known = connection.execute(
                    select(ENDED_JOB.c.id, ENDED_JOB.c.started).where(ENDED_JOB.c.id.in_(ids))
                ).all()
                for id_, started in known:
                    if (id_, started) in rows:
                        again = (ENDED_JOB.c.id == id_, ENDED_JOB.c.started == started)
                        connection.execute(delete(ENDED_JOB).where(*again))
            connection.execute(insert(ENDED_JOB), list(rows.values()))

    def ended_jobs(self, limit: int) -> tuple[EndedJob, ...]:
        """The latest of them, in the order in which they ended."""
        query = select(ENDED_JOB).order_by(ENDED_JOB.c.ended.desc(), ENDED_JOB.c.id).limit(limit)
        with self._reading() as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(_ended(row) for row in reversed(rows))

    def purge(self, before: float) -> int:
        """Forgets what ended before ``before``, runs of jobs too, and the oldest of these beyond KEPT."""
        with self._writing() as connection:
            connection.execute(delete(ENDED_JOB).where(ENDED_JOB.c.ended < before))
            newest = select(ENDED_JOB.c.ended).order_by(ENDED_JOB.c.ended.desc())
            last = connection.execute(newest.offset(MAX_ENDED_JOBS).limit(1)).scalar()
            if last is not None:
                connection.execute(delete(ENDED_JOB).where(ENDED_JOB.c.ended <= last))
            return super().purge(before)


def _columns(job: EndedJob) -> dict[str, Any]:
    return {
        "id": storable_text(job.id),
        "user": storable_text(job.user),
        "account": storable_text(job.account),
        "name": storable_text(job.name),
        "partitions": to_json_text([storable_text(p) for p in job.partitions]),
        "nodes": job.nodes,
        "cpus": job.cpus,
        "gpus": job.gpus,
        "time_limit_s": job.time_limit_s,
        "eligible": job.eligible,
        "started": job.started,
        "ended": job.ended,
        "burst": int(job.burst),
    }


def _ended(row: RowMapping) -> EndedJob:
    return EndedJob(
        row["id"], row["user"], row["account"], row["name"], tuple(json.loads(row["partitions"])), row["nodes"],
        row["cpus"], row["gpus"], row["time_limit_s"], row["eligible"], row["started"], row["ended"],
        bool(row["burst"]),
    )  # fmt: skip
