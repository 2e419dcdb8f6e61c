"""The end of history, and history that a clock wrote which ran ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, not_, or_, select, update
from sqlmodel import Session

from burstd.db.codec import value_from_row
from burstd.db.database import chunks, has_prefix
from burstd.db.repositories import job_use, site_history
from burstd.db.repositories.journal import CLAIMS, STAGINGS, VOLUMES, JournaledKind
from burstd.db.tables import (
    BREAKER,
    CLAIM,
    CLAIM_JOB,
    CLAIM_RUN,
    CLAIM_USER,
    DRAINED_SLOT,
    ENDED_JOB,
    EVENT,
    LAUNCH_REQUEST,
    REMARK,
    SCALE_OVERRIDE,
    SITE_RUN,
    STAGING,
    USER_DATA,
    VOLUME,
)
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.staging import StageState
from burstd.domain.volume import VolumeState

MAX_ENDED_JOBS = 200_000
"""So many rows stay at most, however long history is kept."""

_CLAIM = ("created", "since", "launch_called", "billed_from", "billed_until", "in_service_from")
_STAGING = ("created", "since", "staged", "estimated_ready")
_VOLUME = ("created", "since", "called", "billed_from", "billed_until", "settled_until")
_TIMES = frozenset({*_CLAIM, *_STAGING, *_VOLUME})
_REST = ((CLAIM_RUN, "started"), (CLAIM_RUN, "ended"), (SITE_RUN, "started"),
         (LAUNCH_REQUEST, "recorded"), (DRAINED_SLOT, "since"), (REMARK, "since"), (REMARK, "written"),
         *((STAGING, name) for name in _STAGING), *((VOLUME, name) for name in _VOLUME))  # fmt: skip


def purge(session: Session, before: float) -> int:
    """Forgets what ended before ``before``: claims and jobs' data with all that hangs on them, events, remarks, runs.

    Live claims and jobs' data keep all their events, so that a replay always gives the rows. Returns the number of
    claims.
    """
    connection = session.connection()
    connection.execute(delete(ENDED_JOB).where(ENDED_JOB.c.ended < before))
    newest = select(ENDED_JOB.c.ended).order_by(ENDED_JOB.c.ended.desc())
    last = connection.execute(newest.offset(MAX_ENDED_JOBS).limit(1)).scalar()
    if last is not None:
        connection.execute(delete(ENDED_JOB).where(ENDED_JOB.c.ended <= last))
    job_use.purge(connection, before)
    _forget(connection, STAGINGS, StageState.CLEARED, before)
    _forget(connection, VOLUMES, VolumeState.GONE, before)
    tables = (CLAIM_JOB, CLAIM_USER, CLAIM_RUN, LAUNCH_REQUEST)
    claims = _forget(connection, CLAIMS, ClaimState.GONE, before, *tables)
    connection.execute(delete(USER_DATA).where(USER_DATA.c.digest.not_in(select(LAUNCH_REQUEST.c.user_data))))
    # Of a job whose data came again, the events of before go too.
    journaled = or_(
        has_prefix(EVENT.c.subject, CLAIMS.subject),
        has_prefix(EVENT.c.subject, VOLUMES.subject),
        EVENT.c.subject.in_(select(STAGINGS.subject + STAGING.c.job_id)),
    )
    connection.execute(delete(EVENT).where(EVENT.c.time < before, not_(journaled)))
    connection.execute(delete(REMARK).where(REMARK.c.written < before))
    site_history.purge(connection, before)
    return claims


def write_ended_jobs(connection: Connection, jobs: Sequence[EndedJob]) -> None:
    """Writes runs, one that is on record already (the job and its start) anew."""
    rows = {(job.id, job.started): asdict(job) for job in jobs}
    for ids in chunks(list({id_ for id_, _ in rows})):
        run = (ENDED_JOB.c.id, ENDED_JOB.c.started)
        for id_, started in connection.execute(select(*run).where(run[0].in_(ids))).all():
            if (id_, started) in rows:
                connection.execute(delete(ENDED_JOB).where(run[0] == id_, run[1] == started))
    connection.execute(insert(ENDED_JOB), list(rows.values()))


def _forget(connection: Connection, kind: JournaledKind[Any], end: StrEnum, before: float, *others: Table) -> int:
    key = kind.table.c[kind.key]
    over = (kind.table.c.state == end, kind.table.c.since < before)
    keys = connection.execute(select(key).where(*over)).scalars().all()
    for some in chunks(keys):
        connection.execute(delete(EVENT).where(EVENT.c.subject.in_([kind.subject + k for k in some])))
        for table in others:
            connection.execute(delete(table).where(table.c.claim_id.in_(some)))
        connection.execute(delete(kind.table).where(key.in_(some)))
    return len(keys)


def shift_late_times(session: Session, true_time: float, ahead_s: float) -> list[tuple[Claim, Claim]]:
    """Shifts all times after ``true_time`` back by ``ahead_s`` seconds; returns the changed claims, (before, after).

    Events are shifted too, so a replay still gives the rows. Times that Slurm wrote stay.
    """
    connection = session.connection()
    late = or_(*(CLAIM.c[name] > true_time for name in _CLAIM))
    claims = [value_from_row(Claim, row) for row in connection.execute(select(CLAIM).where(late)).mappings()]
    changed: list[tuple[Claim, Claim]] = []
    for before in claims:
        shifted = _shifted({name: getattr(before, name) for name in _CLAIM}, true_time, ahead_s)
        connection.execute(update(CLAIM).where(CLAIM.c.id == before.id).values(**shifted))
        changed.append((before, replace(before, **shifted)))
    events = connection.execute(select(EVENT.c.seq, EVENT.c.time, EVENT.c.data).where(EVENT.c.time > true_time))
    for seq, time, data in events.all():
        fields = {
            key: _shifted(data[key], true_time, ahead_s) for key in ("claim", "staging", "volume", "set") if key in data
        }
        values = {"time": time - ahead_s, "data": {**data, **fields}}
        connection.execute(update(EVENT).where(EVENT.c.seq == seq).values(**values))
    for table, name in _REST:
        column = table.c[name]
        connection.execute(update(table).where(column > true_time).values({name: column - ahead_s}))
    pins = update(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.created > true_time)
    created, until = SCALE_OVERRIDE.c.created, SCALE_OVERRIDE.c.until
    connection.execute(pins.values(created=created - ahead_s, until=until - ahead_s))
    site_history.shift_late_times(connection, true_time, ahead_s)
    # They only say when something is tried again.
    connection.execute(delete(BREAKER).where(BREAKER.c.until > true_time))
    return changed


def _shifted(fields: Any, limit: float, by: float) -> Any:
    """The fields of a claim or a staging, their times shifted; anything else as it is."""
    if not isinstance(fields, Mapping):
        return fields
    late = {n: v - by for n in _TIMES if isinstance(v := fields.get(n), float | int) and v > limit}
    return {**fields, **late}
