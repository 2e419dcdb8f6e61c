"""Writing the record: claims, jobs' data, what administrators said, what the daemon keeps between its lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, Unpack

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session

from burstd.db.changes import ClaimFields, StagingFields, VolumeFields
from burstd.db.codec import request_to_text, value_from_row
from burstd.db.database import Database, chunks, database_url, is_sqlite
from burstd.db.errors import IllegalTransition, SlotTaken, StagingExists, StaleState, VolumeExists
from burstd.db.leadership import Leadership
from burstd.db.reader import DrainedSlot, StoreReader
from burstd.db.repositories import (
    charges,
    closed_months,
    history,
    job_use,
    notifications,
    site_history,
    site_runs,
    traffic,
)
from burstd.db.repositories.journal import (
    CLAIMS,
    STAGINGS,
    VOLUMES,
    Change,
    JournaledRepository,
    NewEvent,
    log_events,
    select_journaled,
)
from burstd.db.repositories.ledger import Ledger
from burstd.db.repositories.machine_outcomes import FORGOTTEN, PLACE, MachineOutcomes
from burstd.db.repositories.remarks import RemarkLog
from burstd.db.tables import (
    BREAKER,
    CLAIM,
    CLAIM_JOB,
    CLAIM_USER,
    DRAINED_SLOT,
    LAUNCH_REQUEST,
    SCALE_OVERRIDE,
    STAGING,
    USER_DATA,
    VOLUME,
    BreakerRow,
    DrainedSlotRow,
    MetadataRow,
    ProjectRow,
    ScaleOverrideRow,
)
from burstd.domain.billing.closing import ClosedMonth
from burstd.domain.billing.costs import Spent
from burstd.domain.billing.site_runs import SiteRun
from burstd.domain.billing.use import ClaimRun, Payer
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.job_use import JobUse, NodeUse
from burstd.domain.machine_outcomes import MachineOutcome
from burstd.domain.notification import Delivery, DeliveryState
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.project import ProjectOverride
from burstd.domain.site_history import Figures, Part
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.snapshot import CircuitBreaker, EndedClaim, Pin, RecentLaunch
from burstd.domain.staging import StageState, Staging
from burstd.domain.volume import Volume, VolumeState

T = TypeVar("T")

_VOLUME_BILL = ("billed_from", "billed_until", "price")
"""What its charges hang on."""


def _no_user(_: str) -> str:
    return ""


class Store(StoreReader):
    """The only writer. Opened, used and closed by one thread; every method is one transaction, or part of a batch.

    All methods raise StoreError kinds. ChangeRefused kinds (UnknownClaim, StaleState, IllegalTransition, SlotTaken ...)
    are about the change; the others about the database.

    What each loop asks for is read once after each change and kept in memory: no other process writes meanwhile.
    """

    def __init__(self, database: Database, clock: Clock, leadership: Leadership | None = None) -> None:
        super().__init__(database, clock)
        self._leadership = leadership
        self._claims = JournaledRepository(CLAIMS, clock, self._claims_changed)
        self._stagings = JournaledRepository(STAGINGS, clock)
        self._volumes = JournaledRepository(VOLUMES, clock, self._volumes_changed)
        self._ledger = Ledger()
        self._remarks = RemarkLog()
        self._outcomes = MachineOutcomes()
        self._gone: tuple[float, list[EndedClaim]] | None = None
        self._answers: dict[tuple[str, object], Any] = {}
        """Since the last change, by question and argument."""
        database.on_failure.append(self._forget)
        database.on_end.append(self._answers.clear)
        database.on_connect += (self._answers.clear, self._forget)

    @classmethod
    def open(cls, location: str | Path, clock: Clock, leadership: Leadership | None = None) -> Self:
        """Opens, or makes, the database, and brings its schema up to date.

        ``location`` is a path, ``:memory:`` or a postgresql URL, which takes a ``leadership`` that leads. The calling
        thread owns the store from here on. Raises StoreLocked (another burstd has it), StoreNewer, StoreBroken,
        StoreFull, StoreUnavailable.
        """
        url = database_url(location)
        if not is_sqlite(url) and (leadership is None or not leadership.epoch):
            raise AssertionError("Who writes to PostgreSQL leads: Leadership.try_lead comes first.")
        database = Database(url, writer=True, fence=leadership.fence if leadership is not None else None)
        try:
            database.prepare()
        except BaseException:
            database.close()
            raise
        return cls(database, clock, leadership)

    def reader(self) -> StoreReader:
        """A handle for other threads: reads only, through connections of its own. The caller closes it."""
        reader = StoreReader.open(self._database.url.render_as_string(hide_password=False), self._clock)
        reader.idle_mode = self.idle_mode
        return reader

    def batch(self) -> AbstractContextManager[object]:
        """Makes one transaction of all changes inside it: all are kept or none; see ``Database.batch``."""
        return self._database.batch()

    def check_lock(self) -> None:
        """Raises StoreError where another burstd may have the database by now; each loop asks, as it reads nothing."""
        if self._leadership is not None:
            self._leadership.sure()
            self._database.check_connection()

    def _forget(self) -> None:
        self._ledger.forget()
        self._remarks.forget()
        self._outcomes.forget()
        self._gone = None

    def _keep(self, question: str, read: Callable[[], T], argument: object = None) -> T:
        self._database.check_thread()
        if self._database.in_batch:
            return read()
        key = question, argument
        if key not in self._answers:
            self._answers[key] = read()
        answer: T = self._answers[key]
        return answer

    def claims(self) -> tuple[Claim, ...]:
        """All claims that are not GONE, oldest first."""
        return self._keep("claims", super().claims)

    def stagings(self, live: bool = True) -> tuple[Staging, ...]:
        """The data of all jobs whose data is not CLEARED, oldest first; ``live`` False: of those too, not kept."""
        return self._keep("stagings", super().stagings) if live else super().stagings(live)

    def volumes(self, *, gone: bool = False) -> tuple[Volume, ...]:
        """All volumes that are not GONE, oldest first; ``gone`` True: those too, not kept."""
        return super().volumes(gone=True) if gone else self._keep("volumes", super().volumes)

    def drained_slots(self) -> tuple[DrainedSlot, ...]:
        """Slots that administrators hold."""
        return self._keep("drained slots", super().drained_slots)

    def breakers(self) -> tuple[CircuitBreaker, ...]:
        """All breakers, also those whose time is over: their count of failures still matters."""
        return self._keep("breakers", super().breakers)

    def project_overrides(self) -> tuple[ProjectOverride, ...]:
        """What was made or changed by ``burstctl project``, by name; also what Slurm is still to lose."""
        return self._keep("projects", super().project_overrides)

    def metadata(self, key: str) -> str:
        """A single word about the cluster; empty where it was never set."""
        return self._keep("metadata", partial(super().metadata, key), key)

    def last_event_seq(self) -> int:
        """The number of the latest event; 0 where there is none."""
        return self._keep("last event", super().last_event_seq)

    def _pins(self) -> tuple[Pin, ...]:
        return self._keep("pins", super()._pins)

    def _log(self, session: Session, *events: NewEvent) -> None:
        log_events(session, self._clock.now(), *events)

    def log_event(
        self,
        subject: str,
        *,
        new: str = "",
        old: str = "",
        reason: str = "",
        cause: str = "burstd",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Logs something that is no change of a claim or a job's data: a start, a clock jump, an orphan removed."""
        if subject.startswith((CLAIMS.subject, STAGINGS.subject, VOLUMES.subject)):
            raise AssertionError(
                "Events of claims, stagings and volumes are written by their changes, so that replay holds."
            )
        with self._database.writing() as session:
            self._log(session, NewEvent(subject, old, new, reason, cause, data or {}))

    def make_claims(self, claims: Sequence[Claim]) -> None:
        """Writes new claims, all or none. Each is PLANNED, with an id never used, for a slot without a live claim.

        Raises SlotTaken, IllegalTransition.
        """
        for claim in claims:
            if claim.state is not ClaimState.PLANNED:
                raise IllegalTransition(f"Claim {claim.id} begins as {claim.state.value}; a claim begins as planned.")
        self._insert_claims(claims)

    def adopt_claim(self, claim: Claim) -> None:
        """Writes a claim whose machine lives already, in whatever state it is. Raises SlotTaken, IllegalTransition."""
        self._insert_claims([claim])

    def _insert_claims(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        with self._database.writing() as session:
            _check_new_claims(session, claims)
            try:
                self._claims.insert(session, claims)
            except IntegrityError as error:
                # Only another writer can bring this about.
                raise SlotTaken(
                    "A slot got a live claim from another writer at the same moment; look again."
                ) from error

    def transition_claim(
        self,
        claim_id: str,
        old: ClaimState,
        new: ClaimState,
        reason: str,
        cause: str = "burstd",
        **fields: Unpack[ClaimFields],
    ) -> Claim:
        """Brings a claim from ``old`` into ``new``, with any fields that change on the way; returns it.

        The first IN_SERVICE sets ``in_service_from``, and GONE ends the bill, where the caller does not say when.
        Raises StaleState, IllegalTransition, UnknownClaim.
        """
        with self._database.writing() as session:
            return self._claims.transition(session, claim_id, old, new, reason, cause, fields)

    def hand_over_claim(
        self, claim_id: str, old: ClaimState, onward: Claim, former_id: str, *, in_service_from: float | None = None
    ) -> Claim:
        """Gives a claim's machine to ``onward.slot``, in one transaction; returns the claim, which is VALIDATING.

        What it was so far is written down, and booked, as a claim of its own that is GONE, under ``former_id``: its
        time on the bill ends where that of the claim goes on. Pool, slot, cause, jobs and their owners, reserves and
        reason come from ``onward``. Raises StaleState, IllegalTransition, SlotTaken, UnknownClaim.
        """
        with self._database.writing() as session:
            now = self._clock.now()
            before = select_journaled(session.connection(), CLAIMS, claim_id, lock=True)
            former = replace(
                before, id=former_id, state=ClaimState.GONE, since=now, billed_until=now, launch_called=None, error="",
                reason=f"its machine is {onward.slot} of pool {onward.pool} from now on (claim {claim_id})",
            )  # fmt: skip
            _check_new_claims(session, [replace(onward, id=former_id)])
            fields = {
                "pool": onward.pool, "slot": onward.slot, "cause": onward.cause, "created": now,
                "jobs": onward.jobs, "users": onward.users, "accounts": onward.accounts, "gang": onward.gang,
                "reserved": onward.reserved, "egress": onward.egress, "billed_from": now,
                "dedicated_by_policy": onward.dedicated_by_policy, "in_service_from": in_service_from,
                "reused_from": before.slot,
            }  # fmt: skip
            if old is ClaimState.VALIDATING:
                claim = self._claims.update(session, claim_id, onward.reason, "burstd", fields)
            else:
                claim = self._claims.transition(
                    session, claim_id, old, ClaimState.VALIDATING, onward.reason, "burstd", fields
                )
            charges.hand_over(session.connection(), before, former_id)
            self._claims.insert(session, [former], "burstd")
            return claim

    def update_claim(
        self, claim_id: str, reason: str = "", cause: str = "burstd", **fields: Unpack[ClaimFields]
    ) -> Claim:
        """Changes fields without a change of state; returns the claim. Nothing is written where nothing differs.

        Raises UnknownClaim.
        """
        with self._database.writing() as session:
            return self._claims.update(session, claim_id, reason, cause, fields)

    def record_launch_requests(
        self, requests: Sequence[LaunchRequest], reason: str = "", cause: str = "burstd"
    ) -> list[Claim]:
        """To be called before a cloud is: writes down the exact requests, and that they are about to be sent.

        Each is of another claim. From PLANNED a claim moves to LAUNCHING; one that is LAUNCHING already is asked for
        again, which takes the very request that is on record. Counts the attempts. All or none is written. Raises
        IllegalTransition, StaleState, UnknownClaim.
        """
        if not requests:
            return []
        with self._database.writing() as session:
            return [claim for some in chunks(requests) for claim in self._record_requests(session, some, reason, cause)]

    def _record_requests(
        self, session: Session, requests: Sequence[LaunchRequest], reason: str, cause: str
    ) -> list[Claim]:
        connection, now = session.connection(), self._clock.now()
        texts = {request.claim_id: request_to_text(request) for request in requests}
        locked = select(CLAIM).where(CLAIM.c.id.in_(texts)).with_for_update()
        claims = {row["id"]: value_from_row(Claim, row) for row in connection.execute(locked).mappings()}
        on_record = select(LAUNCH_REQUEST.c.claim_id, LAUNCH_REQUEST.c.body, LAUNCH_REQUEST.c.user_data)
        known = {
            claim_id: (body, digest)
            for claim_id, body, digest in connection.execute(on_record.where(LAUNCH_REQUEST.c.claim_id.in_(texts)))
        }
        changes, rows = list[Change[Claim]](), list[dict[str, Any]]()
        for request in requests:
            claim_id, written = request.claim_id, texts[request.claim_id]
            if (claim := claims.get(claim_id)) is None:
                raise CLAIMS.unknown(claim_id)
            if claim.state not in (ClaimState.PLANNED, ClaimState.LAUNCHING):
                raise StaleState(f"Claim {claim_id} is {claim.state.value}; no machine is asked for any more.")
            if known.get(claim_id, written) != written:
                raise IllegalTransition(
                    f"Claim {claim_id} was asked for with another request; the one on record must be repeated word "
                    "for word, or the cloud may make a second machine."
                )
            if claim_id not in known:
                body, digest = written
                rows.append({"claim_id": claim_id, "body": body, "user_data": digest, "recorded": now})
            fields = {"attempts": claim.attempts + 1, "launch_called": now, "batch": request.batch}
            changes.append(Change(claim, ClaimState.LAUNCHING, reason or claim.reason, fields))
        bodies = {texts[request.claim_id][1]: request.user_data for request in requests}
        kept = connection.execute(select(USER_DATA.c.digest).where(USER_DATA.c.digest.in_(bodies))).scalars().all()
        for table, new in (
            (USER_DATA, [{"digest": digest, "body": bodies[digest]} for digest in sorted({*bodies}.difference(kept))]),
            (LAUNCH_REQUEST, rows),
        ):
            if new:
                connection.execute(insert(table), new)
        return self._claims.change_all(session, changes, cause)

    def _claims_changed(self, session: Session, changes: Sequence[tuple[Claim | None, Claim]]) -> None:
        """Books claims that are gone, and keeps the index of jobs and users."""
        connection, reindexed = session.connection(), []
        self._outcomes.note_changes(changes)
        for before, after in changes:
            self._book_claim(session, before, after)
            if before is None:
                reindexed.append(after)
            elif (before.jobs, before.users) != (after.jobs, after.users):
                reindexed.append(after)
                for index in (CLAIM_JOB, CLAIM_USER):
                    connection.execute(delete(index).where(index.c.claim_id == after.id))
        jobs = [{"job": job, "claim_id": c.id} for c in reindexed for job in dict.fromkeys(c.jobs)]
        users = [{"user": user, "claim_id": c.id} for c in reindexed for user in dict.fromkeys(c.users)]
        for index, rows in ((CLAIM_JOB, jobs), (CLAIM_USER, users)):
            if rows:
                connection.execute(insert(index), rows)

    def _book_claim(self, session: Session, before: Claim | None, after: Claim) -> None:
        if after.state is not ClaimState.GONE or before == after:
            return
        if self._gone is not None:
            others = [one for one in self._gone[1] if one.claim.id != after.id]
            self._gone = (self._gone[0], [*others, EndedClaim(after.since, after)])
        self._charge(session, after, booked=before is not None and before.state is ClaimState.GONE)

    def _charge(self, session: Session, claim: Claim, *, booked: bool) -> None:
        """Of one that is gone. ``booked``: what was charged before is booked already."""
        was, now = charges.close_claim(session.connection(), claim, self.idle_mode)
        self._ledger.book_charges(session, claim.offer.currency, was if booked else (), now)

    def close_month(self, after_s: float) -> ClosedMonth | None:
        """Closes the first open month, where it ended ``after_s`` seconds ago and no claim's part in it is uncertain.

        Its charges stay as they are. Another may be due.
        """
        live, volumes, now = self.claims(), self.volumes(), self._clock.now()
        with self._database.reading() as connection:
            month = closed_months.due_month(connection, live, now, after_s)
        if not month:
            return None
        with self._database.writing() as session:
            connection = session.connection()
            closed = closed_months.close(connection, live, volumes, month, now, self.idle_mode)
            reason = f"{closed.charges} charges, sha256 {closed.sha256}"
            self._log(session, NewEvent(f"bill:{closed.month}", "open", "closed", reason, "timer"))
            return closed

    def gone_claims(self, since: float) -> tuple[EndedClaim, ...]:
        """Claims that are gone. With later and later times it reads the database once."""
        self._database.check_thread()
        if self._gone is None or since < self._gone[0]:
            self._gone = (since, list(super().gone_claims(since)))
        self._gone = (since, [one for one in self._gone[1] if one.at >= since])
        return tuple(self._gone[1])

    def recent_launches(self, since: float) -> tuple[RecentLaunch, ...]:
        """Claims whose cloud was asked for a machine after ``since``, oldest first, each once."""

        def read() -> tuple[float, tuple[RecentLaunch, ...]]:
            return since, super(Store, self).recent_launches(since)

        begun, launches = self._keep("recent launches", read)
        if since < begun:
            return super().recent_launches(since)
        return launches if since == begun else tuple(one for one in launches if one.at >= since)

    def machine_outcomes(self) -> Mapping[MachineOutcome, int]:
        """How many of the machines on record came to each outcome; read once, then kept in memory."""

        def read() -> Mapping[MachineOutcome, int]:
            with self._database.reading() as connection:
                return self._outcomes.counts(connection)

        return self._keep("machine outcomes", read)

    def forget_machines(self, places: Collection[str], by: str) -> None:
        """Machines of these places whose claims were made before do not speak against them any more."""
        with self._database.writing() as session:
            self._log(session, *(NewEvent(PLACE + place, "", FORGOTTEN, "", by) for place in places))
            self._outcomes.forget()

    def spending(self) -> tuple[Spent, ...]:
        """Money spent, by payer and month; read once, then kept in memory."""

        def read() -> tuple[Spent, ...]:
            with self._database.reading() as connection:
                return self._ledger.spending(connection)

        return self._keep("spending", read)

    def make_staging(self, staging: Staging, cause: str = "slurm") -> Staging:
        """Writes a new one, which is WAITING; returns it as it is on record.

        A job whose data was cleared may come again: numbers of jobs wrap, and a cold start of Slurm gives them anew.
        Raises StagingExists where the job has data that is not cleared, IllegalTransition.
        """
        job_id = staging.job_id
        if staging.state is not StageState.WAITING:
            raise IllegalTransition(f"The data of job {job_id} begins as {staging.state.value}; it begins as waiting.")
        with self._database.writing() as session:
            connection = session.connection()
            known = connection.execute(select(STAGING.c.state).where(STAGING.c.job_id == job_id)).scalar()
            if known is not None and known is not StageState.CLEARED:
                raise StagingExists(f"Job {job_id} has data on record already, which is {known.value}.")
            connection.execute(delete(STAGING).where(STAGING.c.job_id == job_id))
            return self._stagings.insert(session, [staging], cause)[0]

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
        Raises StaleState, IllegalTransition, UnknownStaging.
        """
        with self._database.writing() as session:
            return self._stagings.transition(session, job_id, old, new, reason, cause, fields)

    def update_staging(
        self, job_id: str, reason: str = "", cause: str = "burstd", **fields: Unpack[StagingFields]
    ) -> Staging:
        """Changes fields without a change of state; returns it. Nothing is written where nothing differs.

        Raises UnknownStaging.
        """
        with self._database.writing() as session:
            return self._stagings.update(session, job_id, reason, cause, fields)

    def set_staging_reason(self, job_id: str, reason: str, cause: str = "burstd") -> Staging:
        """Writes down why it stays in its state. Nothing is written where that is the reason already."""
        with self._database.writing() as session:
            return self._stagings.update(session, job_id, reason, cause, {"reason": reason})

    def deliver_staging(self, job_id: str, reason: str, size: int, sent: int, payer: Payer) -> Staging:
        """Brings a job's data from DELIVERING into DELIVERED, and charges its owner for traffic; returns it.

        ``size``: bytes of output; ``sent``: those that came from a cloud; ``payer``: with the job's id in the queue.
        Raises as ``transition_staging``.
        """
        with self._database.writing() as session:
            delivered = self.transition_staging(
                job_id, StageState.DELIVERING, StageState.DELIVERED, reason, bytes_out=size, attempts=0, error=""
            )
            charged = traffic.charge_output(session.connection(), delivered.nodes, payer, sent, self._clock.now())
            if charged is not None:
                self._ledger.book_charges(session, charged.currency, (), [charged.charge])
            return delivered

    def make_volume(self, volume: Volume, cause: str = "burstd") -> Volume:
        """Writes a new one, which is PLANNED; returns it. Raises VolumeExists, IllegalTransition."""
        if volume.state is not VolumeState.PLANNED:
            raise IllegalTransition(f"Volume {volume.id} begins as {volume.state.value}; it begins as planned.")
        with self._database.writing() as session:
            live = (VOLUME.c.uid == volume.uid, VOLUME.c.name == volume.name, VOLUME.c.state != VolumeState.GONE)
            if session.connection().execute(select(VOLUME.c.id).where(*live)).first() is not None:
                raise VolumeExists(f"{volume.user} has a volume {volume.name} already.")
            return self._volumes.insert(session, [volume], cause)[0]

    def transition_volume(
        self,
        volume_id: str,
        old: VolumeState,
        new: VolumeState,
        reason: str,
        cause: str = "burstd",
        **fields: Unpack[VolumeFields],
    ) -> Volume:
        """Brings a volume from ``old`` into ``new``, with any fields that change on the way; returns it.

        GONE ends its bill and settles it. Raises StaleState, IllegalTransition, UnknownVolume.
        """
        with self._database.writing() as session:
            return self._volumes.transition(session, volume_id, old, new, reason, cause, fields)

    def update_volume(
        self, volume_id: str, reason: str = "", cause: str = "burstd", **fields: Unpack[VolumeFields]
    ) -> Volume:
        """Changes fields without a change of state; returns it. Nothing is written where nothing differs.

        Raises UnknownVolume.
        """
        with self._database.writing() as session:
            return self._volumes.update(session, volume_id, reason, cause, fields)

    def _volumes_changed(self, session: Session, changes: Sequence[tuple[Volume | None, Volume]]) -> None:
        """Books what has been settled, and charges what has ended or costs something else."""
        for before, after in changes:
            if before is not None:
                self._ledger.book_volume(session, before, after)
                if any(getattr(before, name) != getattr(after, name) for name in _VOLUME_BILL):
                    charges.charge_volume(session.connection(), after)

    def set_metadata(self, key: str, value: str, by: str = "burstd", *, logged: bool = True) -> None:
        """Sets a single word about the cluster; an empty value takes it away. ``logged`` False: without an event."""
        with self._database.writing() as session:
            row = session.get(MetadataRow, key)
            old = "" if row is None else row.value
            if old == value:
                return
            if value:
                session.merge(MetadataRow(key=key, value=value))
            else:
                session.delete(row)
            if logged:
                self._log(session, NewEvent(f"meta:{key}", old, value, "", by))

    def set_scale_override(self, pin: Pin) -> None:
        """``burstctl scale``. An exact pin replaces all pins of its pool, a floor or ceiling the exact one."""
        replaced = (pin.kind, "exact") if pin.kind != "exact" else ("exact", "floor", "ceiling")
        with self._database.writing() as session:
            same = (SCALE_OVERRIDE.c.pool == pin.pool, SCALE_OVERRIDE.c.kind.in_(replaced))
            session.connection().execute(delete(SCALE_OVERRIDE).where(*same))
            session.add(ScaleOverrideRow(**asdict(pin)))
            data = {"kind": pin.kind, "nodes": pin.nodes, "until": pin.until}
            self._log(session, NewEvent(f"pool:{pin.pool}", "", "pinned", f"{pin.kind} {pin.nodes}", pin.by, data))

    def remove_scale_overrides(self, pool: str, by: str) -> int:
        """Takes all pins of a pool back; returns how many there were."""
        with self._database.writing() as session:
            gone = session.connection().execute(delete(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.pool == pool)).rowcount
            if gone:
                self._log(session, NewEvent(f"pool:{pool}", "pinned", "", "taken back", by))
            return gone

    def expire_scale_overrides(self) -> tuple[Pin, ...]:
        """Removes pins whose time is over; returns them."""
        now = self._clock.now()
        pins = tuple(pin for pin in self._pins() if pin.until is not None and pin.until <= now)
        if not pins:
            return ()
        with self._database.writing() as session:
            session.connection().execute(delete(SCALE_OVERRIDE).where(SCALE_OVERRIDE.c.until <= now))
            reason = "{0.kind} {0.nodes} is over"
            self._log(session, *(NewEvent(f"pool:{p.pool}", "pinned", "", reason.format(p), "timer") for p in pins))
            return pins

    def save_project_override(self, override: ProjectOverride, old: str, new: str, reason: str, cause: str) -> None:
        """``burstctl project``: writes it in place of the one of its name, with an event that has both values.

        One that has no values and leaves nothing to do is removed. ``old`` and ``new``: the event's words.
        """
        with self._database.writing() as session:
            row = session.get(ProjectRow, override.name)
            data = {"old": dict(row.values) if row is not None else {}, "new": dict(override.values)}
            if override.values or override.pending:
                session.merge(ProjectRow(**asdict(override)))
            elif row is not None:
                session.delete(row)
            self._log(session, NewEvent(f"project:{override.name}", old, new, reason, cause, data))

    def drain_slots(self, slots: Collection[str], by: str, reason: str) -> tuple[str, ...]:
        """Keeps slots out of use; returns those that were not held before (the others keep who and why)."""
        now = self._clock.now()
        with self._database.writing() as session:
            new = tuple(sorted(set(slots) - {drained.slot for drained in self.drained_slots()}))
            session.add_all(DrainedSlotRow(slot=slot, by=by, reason=reason, since=now) for slot in new)
            self._log(session, *(NewEvent(f"slot:{slot}", "", "held", reason, by) for slot in new))
            return new

    def undrain_slots(self, slots: Collection[str], by: str) -> tuple[DrainedSlot, ...]:
        """Lets slots back into use; returns those that were held."""
        with self._database.writing() as session:
            freed = tuple(drained for drained in self.drained_slots() if drained.slot in slots)
            for some in chunks([drained.slot for drained in freed]):
                session.connection().execute(delete(DRAINED_SLOT).where(DRAINED_SLOT.c.slot.in_(some)))
            self._log(session, *(NewEvent(f"slot:{drained.slot}", "held", "", "released", by) for drained in freed))
            return freed

    def save_breaker(self, breaker: CircuitBreaker) -> None:
        """Writes a breaker, in place of the one with its key and cause."""
        with self._database.writing() as session:
            old = "open" if session.get(BreakerRow, (breaker.key, breaker.cause)) else ""
            session.merge(BreakerRow(**asdict(breaker)))
            data = {"failures": breaker.failures, "until": breaker.until}
            subject = f"breaker:{breaker.key}"
            self._log(session, NewEvent(subject, old, "open", breaker.error, breaker.cause, data))

    def clear_breakers(self, by: str, key: str = "", cause: str = "") -> int:
        """Removes breakers, all or those of a key (and cause); returns how many there were."""
        chosen = [column == value for column, value in ((BREAKER.c.key, key), (BREAKER.c.cause, cause)) if value]
        with self._database.writing() as session:
            keys = session.connection().execute(select(BREAKER.c.key).where(*chosen)).scalars().all()
            session.connection().execute(delete(BREAKER).where(*chosen))
            self._log(session, *(NewEvent(f"breaker:{k}", "open", "", "cleared", by) for k in keys))
            return len(keys)

    def record_remarks(
        self,
        remarks: Sequence[Remark],
        user_of: Callable[[str], str] = _no_user,
        without_event: Collection[str] = (),
    ) -> int:
        """Writes the remarks of one decision where they differ from the last ones; returns how many are new.

        Each new one is an event of its subject: ``old`` and ``new`` are verdicts, ``cause`` is the policy; none is one
        by a policy of ``without_event``.
        ``user_of`` gives the user of a job's subject (``job:123``), or an empty text: users may read remarks about
        their jobs after the job has left the queue.
        """
        now = self._clock.now()
        difference = self._remarks.difference(self._database.reading, remarks, now)
        if not difference.changed:
            return 0
        with self._database.writing() as session:
            self._remarks.record(session, difference, user_of, now, without_event)
        return len(difference.new)

    def record_ended_jobs(self, jobs: Iterable[EndedJob]) -> None:
        """Writes runs down; one that is on record already (the job and its start) is written anew."""
        some = tuple(jobs)
        if some:
            with self._database.writing() as session:
                history.write_ended_jobs(session.connection(), some)

    def save_runs(self, runs: Sequence[ClaimRun]) -> None:
        """Writes runs of jobs on machines; one on record already (claim, job and ``run_start``) is written anew."""
        if runs:
            with self._database.writing() as session:
                charges.save_runs(session.connection(), runs)

    def save_site_runs(self, begun: Sequence[SiteRun], ended: Sequence[SiteRun]) -> None:
        """Writes runs on nodes of the site that have begun, and what those that have ended cost; none doubles."""
        with self._database.writing() as session:
            site_runs.save_site_runs(session.connection(), begun, ended)

    def save_job_uses(self, uses: Sequence[JobUse], packed: job_use.PackedFigures = MappingProxyType({})) -> None:
        """Writes figures of runs, in place of those that the same nodes sent before; other nodes' rows stay.

        ``packed``: what ``packed_figures`` made of those of a node, whose figures need no series then.
        """
        with self._database.writing() as session:
            job_use.save_uses(session.connection(), uses, packed, self._clock.now())

    def reopen_job_uses(self, uses: Iterable[JobUse]) -> None:
        """Writes down that these runs go on, though they may be on record as ended."""
        with self._database.writing() as session:
            job_use.reopen_uses(session.connection(), uses)

    def end_job_use(self, use: JobUse, nodes: Sequence[NodeUse]) -> None:
        """Writes down what is said of these nodes of a run, without series, and when it ended; None: later."""
        with self._database.writing() as session:
            job_use.end_use(session.connection(), use, nodes)

    def record_site_figures(self, time: float, parts: Mapping[Part, Figures], *, thin: bool) -> int:
        """Writes a sample of the site; ``thin``: makes the longer ones that are due by then, forgets shorter ones.

        Returns how many samples the longer ones lack because they cannot be read.
        """
        with self._database.writing() as session:
            site_history.record(session.connection(), time, parts)
            return site_history.thin(session.connection(), time) if thin else 0

    def add_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Writes down what is to be sent to people; none of it may be on record."""
        with self._database.writing() as session:
            notifications.add(session.connection(), deliveries, self._clock.now())

    def settle_delivery(self, delivery: Delivery, state: DeliveryState) -> None:
        """Writes down what became of a try to send it."""
        with self._database.writing() as session:
            notifications.settle(session.connection(), delivery, state)

    def purge(self, before: float, charges_before: float = 0.0) -> int:
        """Forgets what ended before ``before``: claims, jobs' data, events, remarks, runs, samples.

        Live claims keep all their events, so that a replay always gives the rows. Charges stay but for those of whole
        months that ended before ``charges_before``. Returns the number of claims.
        """
        with self._database.writing() as session:
            claims = history.purge(session, before)
            closed_months.purge(session.connection(), charges_before)
            self._remarks.forget()
            self._outcomes.forget()
            if claims:
                self._log(session, NewEvent("daemon", "", "purged", f"{claims} claims", "timer"))
            return claims

    def shift_late_times(self, true_time: float, ahead_s: float) -> int:
        """Shifts all times after ``true_time`` back by ``ahead_s`` seconds, and books the cost of ended claims anew.

        A clock that was ahead by ``ahead_s`` wrote these times. Returns the number of changed claims.
        """
        with self._database.writing() as session:
            volumes, connection = self.volumes(gone=True), session.connection()
            corrected = {*closed_months.reopen(connection, true_time)}
            site_runs.bring_back(connection, true_time)
            changes = history.shift_late_times(session, true_time, ahead_s)
            for before, after in changes:
                self._book_claim(session, before, after)
            for was, now in traffic.bring_back(connection, true_time):
                self._ledger.book_charges(session, was.currency, [was.charge], [now.charge])
            for former, shifted in zip(volumes, self.volumes(gone=True), strict=True):
                self._ledger.book_volume(session, former, shifted)
                if former != shifted or shifted.id in corrected:
                    charges.charge_volume(connection, shifted)
            for claim_id in corrected - {volume.id for volume in volumes}:
                self._charge(session, select_journaled(connection, CLAIMS, claim_id), booked=True)
            self._forget()
            reason = f"times after the system's were {ahead_s:.0f} s ahead and are put right"
            self._log(session, NewEvent("daemon", "", "clock", reason, "clock"))
            return len(changes)


def _check_new_claims(session: Session, claims: Sequence[Claim]) -> None:
    connection, slots = session.connection(), Counter(claim.slot for claim in claims)
    if twice := next((slot for slot, number in slots.items() if number > 1), ""):
        raise SlotTaken(f"Two claims of one batch are for slot {twice}.")
    for some in chunks(sorted(slots)):
        live = (CLAIM.c.slot.in_(some), CLAIM.c.state != ClaimState.GONE)
        taken = connection.execute(select(CLAIM.c.id, CLAIM.c.slot, CLAIM.c.state).where(*live)).first()
        if taken is not None:
            raise SlotTaken(f"Slot {taken[1]} has the live claim {taken[0]} ({taken[2]}).")
    for some in chunks([claim.id for claim in claims]):
        used = connection.execute(select(CLAIM.c.id).where(CLAIM.c.id.in_(some))).scalar()
        if used is not None or len(set(some)) != len(some):
            raise IllegalTransition(f"The claim id {used or some[0]} was used before; ids are never used again.")
