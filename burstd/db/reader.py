"""Reading the record. Any number of readers, in any thread or process, beside the one writer."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, and_, func, or_, select

from burstd.db.codec import claim_from_row, request_from_text, staging_from_row
from burstd.db.engine import database_url, display_url, in_memory, is_sqlite, open_engine, translate_errors
from burstd.db.errors import StoreUnavailable, UnknownClaim, UnknownStaging
from burstd.db.events import USER_KEY, LoggedEvent, claim_subject
from burstd.db.migrate import schema_is_current
from burstd.db.repositories import bill
from burstd.db.tables import (
    BREAKER,
    CLAIM,
    CLAIM_JOB,
    CLAIM_USER,
    DRAINED_SLOT,
    EVENT,
    LAUNCH_REQUEST,
    METADATA,
    REMARK,
    SCALE_OVERRIDE,
    SPENDING,
    STAGING,
    USER_DATA,
)
from burstd.domain.billing.costs import Spent
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.snapshot import CircuitBreaker, EndedClaim, Pin, RecentLaunch
from burstd.domain.staging import StageState, Staging

_MAX_PARAMETERS = 500
"""Databases take a limited number of parameters."""


@dataclass(frozen=True, slots=True)
class RecordedRemark:
    """A remark, and since when it has been the same (but for numbers in its reason)."""

    remark: Remark
    since: float


@dataclass(frozen=True, slots=True)
class DrainedSlot:
    """A slot that an administrator keeps out of use."""

    slot: str
    by: str
    reason: str
    since: float


class StoreReader:
    """Everything that can be asked. Each answer is of one moment. All methods raise StoreError kinds."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._url = engine.url
        self._clock = clock

    @classmethod
    def open(cls, location: str | Path, clock: Clock) -> Self:
        """Opens an existing database for reading: for ``burstctl`` while no daemon answers."""
        url = database_url(location)
        if in_memory(url):
            raise StoreUnavailable("A database in memory has no readers beside its writer; use a file.")
        if is_sqlite(url) and not Path(url.database or "").is_file():
            raise StoreUnavailable(f"There is no database {display_url(url)}; burstd makes it at its first start.")
        reader = cls(open_engine(url, writer=False), clock)
        with reader._reading() as connection:
            if not schema_is_current(connection, reader.location):
                raise StoreUnavailable(
                    f"The database {reader.location} has an older schema; start burstd to upgrade it."
                )
        return reader

    @property
    def location(self) -> str:
        """Where the database is, without a password."""
        return display_url(self._url)

    def close(self) -> None:
        """Gives connections back."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with translate_errors(self._url), self._engine.begin() as connection:
            yield connection

    def claims(self) -> tuple[Claim, ...]:
        """All claims that are not GONE, oldest first."""
        with self._reading() as connection:
            rows = connection.execute(
                select(CLAIM).where(CLAIM.c.state != ClaimState.GONE.value).order_by(CLAIM.c.created, CLAIM.c.id)
            )
            return tuple(claim_from_row(row) for row in rows.mappings())

    def image_was_in_service(self, image: str) -> bool:
        """Whether any machine of this version of an image was ever a node that jobs could use."""
        query = select(CLAIM.c.id).where(CLAIM.c.image == image, CLAIM.c.opened.is_not(None)).limit(1)
        with self._reading() as connection:
            return connection.execute(query).first() is not None

    def claim(self, claim_id: str) -> Claim:
        """One claim, GONE or not. Raises UnknownClaim."""
        with self._reading() as connection:
            return select_claim(connection, claim_id)

    def has_claim(self, claim_id: str, batch: str = "") -> bool:
        """Whether a claim of this id, or of this batch where the id is empty, was ever on record, GONE or not."""
        if not claim_id and not batch:
            return False
        same = CLAIM.c.id == claim_id if claim_id else CLAIM.c.batch == batch
        with self._reading() as connection:
            return connection.execute(select(CLAIM.c.id).where(same).limit(1)).first() is not None

    def launch_request(self, claim_id: str) -> LaunchRequest | None:
        """The exact request that the cloud was, or was about to be, asked with; None: not asked yet."""
        joined = LAUNCH_REQUEST.join(USER_DATA, LAUNCH_REQUEST.c.user_data == USER_DATA.c.digest)
        query = (
            select(LAUNCH_REQUEST.c.body, USER_DATA.c.body)
            .select_from(joined)
            .where(LAUNCH_REQUEST.c.claim_id == claim_id)
        )
        with self._reading() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else request_from_text(row[0], row[1])

    def find_claims(
        self,
        *,
        pool: str = "",
        user: str = "",
        job: str = "",
        slot: str = "",
        since: float | None = None,
        until: float | None = None,
        states: Collection[ClaimState] = (),
        limit: int = 1000,
    ) -> tuple[Claim, ...]:
        """History: claims that lived at some time in [since, until) and fit, newest first.

        ``job`` ``123`` also finds its array tasks and components; ``123_7`` also what was made for the whole of 123.
        """
        wanted: list[ColumnElement[bool]] = []
        if pool:
            wanted.append(CLAIM.c.pool == pool)
        if slot:
            wanted.append(CLAIM.c.slot == slot)
        if user:
            wanted.append(CLAIM.c.id.in_(select(CLAIM_USER.c.claim_id).where(CLAIM_USER.c.user == user)))
        if job:
            wanted.append(CLAIM.c.id.in_(select(CLAIM_JOB.c.claim_id).where(_job_matches(CLAIM_JOB.c.job, job))))
        if since is not None:
            wanted.append(or_(CLAIM.c.state != ClaimState.GONE.value, CLAIM.c.since >= since))
        if until is not None:
            wanted.append(CLAIM.c.created < until)
        if states:
            wanted.append(CLAIM.c.state.in_([s.value for s in states]))
        query = select(CLAIM).where(*wanted).order_by(CLAIM.c.created.desc(), CLAIM.c.id).limit(limit)
        with self._reading() as connection:
            return tuple(claim_from_row(row) for row in connection.execute(query).mappings())

    def stagings(self, live: bool = True) -> tuple[Staging, ...]:
        """The data of all jobs whose data is not CLEARED (``live`` False: of those too), oldest first."""
        query = select(STAGING).order_by(STAGING.c.created, STAGING.c.job_id)
        if live:
            query = query.where(STAGING.c.state.in_([s.value for s in StageState if s is not StageState.CLEARED]))
        with self._reading() as connection:
            return tuple(staging_from_row(row) for row in connection.execute(query).mappings())

    def staging(self, job_id: str) -> Staging:
        """The data of one job, CLEARED or not. Raises UnknownStaging."""
        with self._reading() as connection:
            return select_staging(connection, job_id)

    def find_staging(self, job_id: str) -> Staging | None:
        """The same; None where it is not on record."""
        query = select(STAGING).where(STAGING.c.job_id == job_id)
        with self._reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return None if row is None else staging_from_row(row)

    def find_stagings(
        self,
        *,
        user: str = "",
        states: Collection[StageState] = (),
        before: tuple[float, str] | None = None,
        limit: int = 100,
    ) -> tuple[Staging, ...]:
        """History: one page of the data of jobs that fits, newest first.

        ``before`` is (``created``, ``job_id``) of the last one of the page before; None: from the newest.
        """
        wanted: list[ColumnElement[bool]] = []
        if user:
            wanted.append(STAGING.c.user == user)
        if states:
            wanted.append(STAGING.c.state.in_([s.value for s in states]))
        if before is not None:
            created, job_id = before
            older = and_(STAGING.c.created == created, STAGING.c.job_id < job_id)
            wanted.append(or_(STAGING.c.created < created, older))
        query = select(STAGING).where(*wanted).order_by(STAGING.c.created.desc(), STAGING.c.job_id.desc()).limit(limit)
        with self._reading() as connection:
            return tuple(staging_from_row(row) for row in connection.execute(query).mappings())

    def recent_launches(self, since: float) -> tuple[RecentLaunch, ...]:
        """Claims whose cloud was asked for a machine after ``since``, oldest first, each once."""
        query = select(CLAIM).where(CLAIM.c.launch_called >= since).order_by(CLAIM.c.launch_called)
        with self._reading() as connection:
            claims = [claim_from_row(row) for row in connection.execute(query).mappings()]
        return tuple(RecentLaunch(c.launch_called or 0.0, c.pool, c.offer.provider, c.users) for c in claims)

    def gone_claims(self, since: float) -> tuple[EndedClaim, ...]:
        """Claims that came to their end after ``since``, oldest first."""
        over = (CLAIM.c.state == ClaimState.GONE.value, CLAIM.c.since >= since)
        with self._reading() as connection:
            rows = connection.execute(select(CLAIM).where(*over).order_by(CLAIM.c.since, CLAIM.c.id)).mappings()
            claims = [claim_from_row(row) for row in rows]
        return tuple(EndedClaim(claim.since, claim) for claim in claims)

    def spending(self) -> tuple[Spent, ...]:
        """What machines that are gone have cost, and what was sent home, by payer and month (see ledger.py)."""
        with self._reading() as connection:
            return select_spending(connection)

    def events(
        self, *, after: int = 0, subject: str = "", job: str = "", newest: bool = False, limit: int = 1000
    ) -> tuple[LoggedEvent, ...]:
        """Entries of the log with ``seq`` above ``after``: the first ``limit``, or the last ones in reverse.

        ``subject`` is exact, or ends in a colon for all of a kind (``claim:``). ``job`` finds what was said about a
        job, the life of its data and of every claim made for it; its form as in ``find``.
        """
        wanted: list[ColumnElement[bool]] = [EVENT.c.seq > after]
        if subject.endswith(":"):
            wanted.append(has_prefix(EVENT.c.subject, subject))
        elif subject:
            wanted.append(EVENT.c.subject == subject)
        if job:
            made = select("claim:" + CLAIM_JOB.c.claim_id).where(_job_matches(CLAIM_JOB.c.job, job))
            said = (_job_matches(EVENT.c.subject, job, kind) for kind in ("job:", "stage:"))
            wanted.append(or_(*said, EVENT.c.subject.in_(made)))
        order = EVENT.c.seq.desc() if newest else EVENT.c.seq
        with self._reading() as connection:
            rows = connection.execute(select(EVENT).where(*wanted).order_by(order).limit(limit)).mappings()
            return tuple(_event(row) for row in rows)

    def job_owner(self, job_id: str) -> str:
        """Whose job this was, as the log has it; of an id that came again the last one's. Empty: nobody knows."""
        query = select(EVENT.c.data).where(
            _job_matches(EVENT.c.subject, job_id, "job:"), EVENT.c.data.contains(f'"{USER_KEY}"')
        )
        with self._reading() as connection:
            found = connection.execute(query.order_by(EVENT.c.seq.desc()).limit(1)).scalar()
        return str(json.loads(found).get(USER_KEY, "")) if found else ""

    def runs_with_event(self, job_ids: Collection[str], new: str) -> dict[str, frozenset[int]]:
        """The numbers of the runs of these jobs of which an event ``new`` is on record, for jobs that have any."""
        subjects = [f"job:{job}" for job in job_ids]
        found: dict[str, set[int]] = {}
        with self._reading() as connection:
            for start in range(0, len(subjects), _MAX_PARAMETERS):
                some = subjects[start : start + _MAX_PARAMETERS]
                query = select(EVENT.c.subject, EVENT.c.data).where(EVENT.c.subject.in_(some), EVENT.c.new == new)
                for subject, data in connection.execute(query):
                    run = json.loads(data).get("run")
                    if isinstance(run, int):
                        found.setdefault(subject.removeprefix("job:"), set()).add(run)
        return {job: frozenset(runs) for job, runs in found.items()}

    def last_event_time(self) -> float:
        """When the latest event was written; 0 where there is none."""
        with self._reading() as connection:
            return float(connection.execute(select(func.max(EVENT.c.time))).scalar() or 0.0)

    def last_event_seq(self) -> int:
        """The number of the latest event; 0 where there is none."""
        with self._reading() as connection:
            return int(connection.execute(select(func.max(EVENT.c.seq))).scalar() or 0)

    def claim_events(self, claim_id: str) -> tuple[LoggedEvent, ...]:
        """Every event of one claim, oldest first."""
        return self.events(subject=claim_subject(claim_id), limit=100_000)

    def remarks(self, subject: str) -> tuple[RecordedRemark, ...]:
        """What was last decided about a subject (``job:123``, ``pool:gpu``), in the order in which it was said."""
        query = select(REMARK).where(REMARK.c.subject == subject).order_by(REMARK.c.position)
        with self._reading() as connection:
            return tuple(
                RecordedRemark(Remark(r["by"], r["subject"], r["verdict"], r["reason"]), r["since"])
                for r in connection.execute(query).mappings()
            )

    def scale_overrides(self) -> tuple[Pin, ...]:
        """Pins that hold now, by pool."""
        query = select(SCALE_OVERRIDE).where(
            or_(SCALE_OVERRIDE.c.until.is_(None), SCALE_OVERRIDE.c.until > self._clock.now())
        )
        with self._reading() as connection:
            return tuple(
                Pin(r["pool"], r["nodes"], r["kind"], r["until"], r["by"], r["created"])
                for r in connection.execute(query.order_by(SCALE_OVERRIDE.c.pool, SCALE_OVERRIDE.c.kind)).mappings()
            )

    def drained_slots(self) -> tuple[DrainedSlot, ...]:
        """Slots that administrators hold."""
        with self._reading() as connection:
            rows = connection.execute(select(DRAINED_SLOT).order_by(DRAINED_SLOT.c.slot)).mappings()
            return tuple(DrainedSlot(r["slot"], r["by"], r["reason"], r["since"]) for r in rows)

    def breakers(self) -> tuple[CircuitBreaker, ...]:
        """All breakers, also those whose time is over: their count of failures still matters."""
        with self._reading() as connection:
            rows = connection.execute(select(BREAKER).order_by(BREAKER.c.key, BREAKER.c.cause)).mappings()
            return tuple(CircuitBreaker(r["key"], r["cause"], r["failures"], r["until"], r["error"]) for r in rows)

    def metadata(self, key: str) -> str:
        """A single word about the cluster; empty where it was never set."""
        with self._reading() as connection:
            return str(connection.execute(select(METADATA.c.value).where(METADATA.c.key == key)).scalar() or "")

    def bill(self, group: bill.BillGrouping, since: float, until: float | None = None) -> tuple[bill.BillLine, ...]:
        """What machines cost in [since, until), by user, job, pool, provider or claim; ``until`` None: by now."""
        end = self._clock.now() if until is None else until
        query = select(CLAIM).where(
            CLAIM.c.billed_from < end, or_(CLAIM.c.billed_until.is_(None), CLAIM.c.billed_until > since)
        )
        with self._reading() as connection:
            claims = [claim_from_row(row) for row in connection.execute(query).mappings()]
        return bill.bill_lines(claims, group, since, end)


def select_claim(connection: Connection, claim_id: str, *, lock: bool = False) -> Claim:
    """One claim, read in somebody's transaction, and locked to its end where the database can. Raises UnknownClaim."""
    query = select(CLAIM).where(CLAIM.c.id == claim_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise UnknownClaim(f"There is no claim {claim_id!r} on record.")
    return claim_from_row(row)


def select_spending(connection: Connection) -> tuple[Spent, ...]:
    """The sums of the ledger, in the order of their keys."""
    order = (SPENDING.c.kind, SPENDING.c.name, SPENDING.c.month, SPENDING.c.currency, SPENDING.c.provider)
    rows = connection.execute(select(SPENDING).order_by(*order)).mappings()
    return tuple(
        Spent(r["kind"], r["name"], r["month"], r["currency"], Decimal(r["amount"]), r["bytes_out"], r["provider"])
        for r in rows
    )


def select_staging(connection: Connection, job_id: str, *, lock: bool = False) -> Staging:
    """The data of one job, read in somebody's transaction, as ``claim_of`` does. Raises UnknownStaging."""
    query = select(STAGING).where(STAGING.c.job_id == job_id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    if row is None:
        raise UnknownStaging(f"Job {job_id!r} has no data on record.")
    return staging_from_row(row)


def _event(row: RowMapping) -> LoggedEvent:
    return LoggedEvent(
        row["seq"], row["time"], row["subject"], row["old"], row["new"], row["reason"], row["cause"],
        json.loads(row["data"]),
    )  # fmt: skip


def has_prefix(column: ColumnElement[Any], prefix: str) -> ColumnElement[bool]:
    """A prefix as a range: uses the index, and needs no escaping."""
    return and_(column >= prefix, column < prefix[:-1] + chr(ord(prefix[-1]) + 1))


def _job_matches(column: ColumnElement[Any], job: str, before: str = "") -> ColumnElement[bool]:
    whole = job.partition("_")[0].partition("+")[0]
    if job != whole:
        return or_(column == before + job, column == before + whole)
    return or_(column == before + job, has_prefix(column, f"{before}{job}_"), has_prefix(column, f"{before}{job}+"))
