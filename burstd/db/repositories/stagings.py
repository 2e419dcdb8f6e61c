"""The data of jobs on record: new ones, their guarded moves, and their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from sqlalchemy import Connection, delete, insert, not_, select, update

from burstd.db.codec import staging_columns, staging_field_to_json, staging_from_json, staging_to_json
from burstd.db.errors import IllegalTransition, StagingExists, StaleState
from burstd.db.events import stage_subject
from burstd.db.reader import has_prefix, select_staging
from burstd.db.repositories.ended_jobs import EndedJobRecords
from burstd.db.tables import EVENT, STAGING
from burstd.db.writer import chunks
from burstd.domain.staging import STAGE_TRANSITIONS, Directives, StageState, Staging, Tree

_CLEARED_ON_RESTART: Mapping[str, Any] = {
    "staged": 0.0,
    "estimated_ready": 0.0,
    "job_state": "",
    "exit_code": "",
    "outputs": {},
    "bytes_out": 0,
}
"""What a job that starts over has not got yet."""
_CLEARED_ON_RESUME: Mapping[str, Any] = {"error": "", "resume": "", "attempts": 0}


class StagingFields(TypedDict, total=False):
    """What may change in a staging beside its state; see Staging."""

    directives: Directives
    store: str
    account: str
    work_dir: str
    trees: Mapping[str, Tree]
    nodes: tuple[str, ...]
    outputs: Mapping[str, Tree]
    job_state: str
    exit_code: str
    bytes_in: int
    bytes_sent: int
    bytes_out: int
    estimated_ready: float
    staged: float
    attempts: int
    error: str
    resume: str


class StagingRecords(EndedJobRecords):
    """Writing what is known of the data of jobs; each change with its event in one transaction."""

    def make_staging(self, staging: Staging, cause: str = "slurm") -> Staging:
        """Writes a new one, which is WAITING; returns it as it is on record.

        A job whose data was cleared may come again: numbers of jobs wrap, and a cold start of Slurm gives them anew.
        Raises StagingExists where the job has data that is not cleared, IllegalMove.
        """
        if staging.state is not StageState.WAITING:
            raise IllegalTransition(
                f"The data of job {staging.job_id} begins as {staging.state.value}; it begins as waiting."
            )
        with self._writing() as connection:
            plain = staging_to_json(staging)
            job_id = plain["job_id"]
            known = connection.execute(select(STAGING.c.state).where(STAGING.c.job_id == job_id)).scalar()
            if known is not None and known != StageState.CLEARED.value:
                raise StagingExists(f"Job {job_id} has data on record already, which is {known}.")
            connection.execute(delete(STAGING).where(STAGING.c.job_id == job_id))
            connection.execute(insert(STAGING).values(**staging_columns(plain)))
            self._log(
                connection,
                self._entry(stage_subject(job_id), "", plain["state"], plain["reason"], cause, {"staging": plain}),
            )
        # Through JSON and back, so that it is what a replay of the log gives.
        return staging_from_json(plain)

    def transition_staging(
        self,
        job_id: str,
        old: StageState,
        new: StageState,
        reason: str,
        cause: str = "burstd",
        **fields: Unpack[StagingFields],
    ) -> Staging:
        """Brings a job's data from ``old`` into ``new``, with any fields that change on the way; returns it.

        Where the caller does not say otherwise: STAGED sets ``staged``; WAITING (the job was requeued) takes back what
        a run of the job left (``staged``, ``estimated_ready``, ``job_state``, ``exit_code``, ``outputs``,
        ``bytes_out``); leaving HELD, but for CLEARED, takes back ``error``, ``resume`` and ``attempts``.
        Raises StaleState, IllegalMove, UnknownStaging.
        """
        with self._writing() as connection:
            staging = select_staging(connection, job_id, lock=True)
            if staging.state is not old:
                raise StaleState(f"The data of job {job_id} is {staging.state.value}, not {old.value}; look again.")
            if new not in STAGE_TRANSITIONS[old]:
                allowed = ", ".join(sorted(s.value for s in STAGE_TRANSITIONS[old])) or "nothing"
                raise IllegalTransition(
                    f"The data of job {job_id} cannot go from {old.value} to {new.value}; allowed: {allowed}."
                )
            implied: dict[str, Any] = {}
            if new is StageState.WAITING:
                implied |= _CLEARED_ON_RESTART
            if new is StageState.STAGED:
                implied["staged"] = self._clock.now()
            if old is StageState.HELD and new is not StageState.CLEARED:
                implied |= _CLEARED_ON_RESUME
            return self._change_staging(connection, staging, new, reason, cause, implied | dict(fields))

    def update_staging(
        self, job_id: str, reason: str = "", cause: str = "burstd", **fields: Unpack[StagingFields]
    ) -> Staging:
        """Changes fields without a change of state; returns it. Nothing is written where nothing differs.

        Raises UnknownStaging.
        """
        with self._writing() as connection:
            staging = select_staging(connection, job_id, lock=True)
            return self._change_staging(connection, staging, staging.state, reason, cause, dict(fields))

    def set_staging_reason(self, job_id: str, reason: str, cause: str = "burstd") -> Staging:
        """Writes down why it stays in its state. Nothing is written where that is the reason already."""
        with self._writing() as connection:
            staging = select_staging(connection, job_id, lock=True)
            return self._change_staging(connection, staging, staging.state, reason, cause, {"reason": reason})

    def _change_staging(
        self,
        connection: Connection,
        staging: Staging,
        new: StageState,
        reason: str,
        cause: str,
        fields: Mapping[str, Any],
    ) -> Staging:
        """Writes the row and its event; the caller has looked that it may."""
        now = self._clock.now()
        before = staging_to_json(staging)
        plain = {name: staging_field_to_json(name, value) for name, value in fields.items()}
        plain = {name: value for name, value in plain.items() if value != before[name]}
        if not plain and new is staging.state:
            return staging
        moved = (
            {}
            if new is staging.state
            else {"state": new.value, "since": now, "reason": staging_field_to_json("reason", reason)}
        )
        changes = {**plain, **moved}
        connection.execute(update(STAGING).where(STAGING.c.job_id == staging.job_id).values(**staging_columns(changes)))
        data = {"set": plain} if plain else {}
        subject = stage_subject(staging.job_id)
        self._log(connection, self._entry(subject, staging.state.value, new.value, reason, cause, data, time=now))
        after = staging_from_json({**before, **changes})
        if new is StageState.DELIVERED and staging.state is not StageState.DELIVERED:
            self._book_output(connection, after)
        return after

    def purge(self, before: float) -> int:
        """Forgets what ended before ``before``: also data of jobs that was cleared, and its events.

        Returns the number of claims.
        """
        with self._writing() as connection:
            old = (STAGING.c.state == StageState.CLEARED.value, STAGING.c.since < before)
            for some in chunks(connection.execute(select(STAGING.c.job_id).where(*old)).scalars().all()):
                connection.execute(delete(STAGING).where(STAGING.c.job_id.in_(some)))
                connection.execute(delete(EVENT).where(EVENT.c.subject.in_([stage_subject(j) for j in some])))
            known = select("stage:" + STAGING.c.job_id)
            connection.execute(
                delete(EVENT).where(
                    EVENT.c.time < before, has_prefix(EVENT.c.subject, "stage:"), not_(EVENT.c.subject.in_(known))
                )
            )
            return super().purge(before)
