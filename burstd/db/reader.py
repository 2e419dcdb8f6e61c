"""Reading the record. Any number of readers, in any thread or process, beside the one writer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, RowMapping, Select, Text, and_, bindparam, func, or_, select, type_coerce

from burstd.db.codec import request_from_text, value_from_row
from burstd.db.database import Database, chunks, database_url, has_prefix, in_memory, is_sqlite, job_or_part
from burstd.db.errors import StoreUnavailable
from burstd.db.migrate import schema_is_current
from burstd.db.repositories import (
    bill,
    charge_pages,
    charges,
    closed_months,
    job_use,
    notifications,
    placed_runs,
    site_history,
    site_runs,
)
from burstd.db.repositories.bill import BillGrouping
from burstd.db.repositories.journal import CLAIMS, STAGINGS, USER_KEY, LoggedEvent, claim_subject, select_journaled
from burstd.db.tables import (
    BREAKER,
    CHARGE,
    CLAIM,
    CLAIM_JOB,
    CLAIM_RUN,
    CLAIM_USER,
    DRAINED_SLOT,
    ENDED_JOB,
    EVENT,
    LAUNCH_REQUEST,
    METADATA,
    PROJECT,
    REMARK,
    SCALE_OVERRIDE,
    SPENDING,
    STAGING,
    USER_DATA,
    VOLUME,
)
from burstd.domain.billing.closing import RULE, ClosedMonth, MonthCharge
from burstd.domain.billing.compare import PlacedRun
from burstd.domain.billing.costs import MICRO, Spent
from burstd.domain.billing.site_runs import SiteCharge, SiteRun
from burstd.domain.billing.use import DAY_S, ClaimRun, IdleMode, Kind
from burstd.domain.claim import Claim, ClaimState
from burstd.domain.clock import Clock
from burstd.domain.job_use import JobUse
from burstd.domain.notification import Delivery
from burstd.domain.plugins.policy import Remark
from burstd.domain.plugins.provider import LaunchRequest
from burstd.domain.project import ProjectOverride
from burstd.domain.site_history import Part, Sample
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.snapshot import CircuitBreaker, EndedClaim, Pin, RecentLaunch
from burstd.domain.staging import StageState, Staging
from burstd.domain.volume import Volume, VolumeState

T = TypeVar("T")
NODE = "node:"
"""How the subject of an event about a node on premises begins."""
NODE_FAULT = "fault"
"""The event of a fault of such a node."""

# Each loop asks for them, and SQLAlchemy takes longer to put them together than to run them.
_LIVE_CLAIMS = select(CLAIM).where(CLAIM.c.state != ClaimState.GONE).order_by(CLAIM.c.created, CLAIM.c.id)
_LIVE_VOLUMES = select(VOLUME).where(VOLUME.c.state != VolumeState.GONE).order_by(VOLUME.c.created, VOLUME.c.id)
_RECENT_LAUNCHES = (
    select(CLAIM.c.launch_called.label("at"), CLAIM.c.pool, CLAIM.c.provider, CLAIM.c.users)
    .where(CLAIM.c.launch_called >= bindparam("since"))
    .order_by(CLAIM.c.launch_called)
)
_PINS = select(SCALE_OVERRIDE).order_by(*SCALE_OVERRIDE.primary_key)
_DRAINED_SLOTS = select(DRAINED_SLOT).order_by(DRAINED_SLOT.c.slot)
_BREAKERS = select(BREAKER).order_by(*BREAKER.primary_key)
_METADATA = select(METADATA.c.value).where(METADATA.c.key == bindparam("key"))
_LAST_EVENT_SEQ = select(func.max(EVENT.c.seq))


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


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """How often a node on premises had a fault, and the last one."""

    node: str
    faults: int
    last: float
    reason: str
    """Of the last one."""


class StoreReader:
    """Everything that can be asked. Each answer is of one moment. All methods raise StoreError kinds."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.idle_mode = IdleMode.APART
        """Who is charged for idle time."""

    @classmethod
    def open(cls, location: str | Path, clock: Clock) -> Self:
        """Opens an existing database for reading: for ``burstctl`` while no daemon answers."""
        url = database_url(location)
        if in_memory(url):
            raise StoreUnavailable("A database in memory has no readers beside its writer; use a file.")
        if is_sqlite(url) and not Path(url.database or "").is_file():
            raise StoreUnavailable(f"There is no database {url.database}; burstd makes it at its first start.")
        reader = cls(Database(url), clock)
        with reader._database.reading() as connection:
            if not schema_is_current(connection, reader.location):
                raise StoreUnavailable(
                    f"The database {reader.location} has an older schema; start burstd to upgrade it."
                )
        return reader

    @property
    def location(self) -> str:
        """Where the database is, without a password."""
        return self._database.location

    def close(self) -> None:
        """Gives connections back."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: Select[Any], values: Mapping[str, object] | None = None) -> Sequence[RowMapping]:
        with self._database.reading() as connection:
            return connection.execute(query, values).mappings().all()

    def _values(self, kind: type[T], query: Select[Any], values: Mapping[str, object] | None = None) -> tuple[T, ...]:
        return tuple(value_from_row(kind, row) for row in self._rows(query, values))

    def _scalar(self, query: Select[Any], values: Mapping[str, object] | None = None) -> Any:
        with self._database.reading() as connection:
            return connection.execute(query, values).scalar()

    def claims(self) -> tuple[Claim, ...]:
        """All claims that are not GONE, oldest first."""
        return self._values(Claim, _LIVE_CLAIMS)

    def image_was_in_service(self, image: str) -> bool:
        """Whether any machine of this version of an image was ever a node that jobs could use."""
        query = select(CLAIM.c.id).where(CLAIM.c.image == image, CLAIM.c.in_service_from.is_not(None)).limit(1)
        return self._scalar(query) is not None

    def failed_claims(self, image: str, error: str) -> tuple[Claim, ...]:
        """Machines of this version of an image that failed with this error, the last hundred."""
        query = select(CLAIM).where(CLAIM.c.image == image, CLAIM.c.error == error)
        return self._values(Claim, query.order_by(CLAIM.c.created.desc()).limit(100))

    def claim(self, claim_id: str) -> Claim:
        """One claim, GONE or not. Raises UnknownClaim."""
        with self._database.reading() as connection:
            return select_journaled(connection, CLAIMS, claim_id)

    def claims_by_id(self, claim_ids: Collection[str]) -> tuple[Claim, ...]:
        """Those of these claims that are on record, GONE or not, in no order."""
        found: list[Claim] = []
        for some in chunks(sorted(claim_ids)):
            found += self._values(Claim, select(CLAIM).where(CLAIM.c.id.in_(some)))
        return tuple(found)

    def has_claim(self, claim_id: str, batch: str = "") -> bool:
        """Whether a claim of this id, or of this batch where the id is empty, was ever on record, GONE or not."""
        if not claim_id and not batch:
            return False
        same = CLAIM.c.id == claim_id if claim_id else CLAIM.c.batch == batch
        return self._scalar(select(CLAIM.c.id).where(same).limit(1)) is not None

    def launch_request(self, claim_id: str) -> LaunchRequest | None:
        """The exact request that the cloud was, or was about to be, asked with; None: not asked yet."""
        query = select(LAUNCH_REQUEST.c.body, USER_DATA.c.body.label("user_data")).where(
            LAUNCH_REQUEST.c.claim_id == claim_id, LAUNCH_REQUEST.c.user_data == USER_DATA.c.digest
        )
        return next((request_from_text(row["body"], row["user_data"]) for row in self._rows(query)), None)

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
            wanted.append(or_(CLAIM.c.state != ClaimState.GONE, CLAIM.c.since >= since))
        if until is not None:
            wanted.append(CLAIM.c.created < until)
        if states:
            wanted.append(CLAIM.c.state.in_(states))
        query = select(CLAIM).where(*wanted).order_by(CLAIM.c.created.desc(), CLAIM.c.id)
        return self._values(Claim, query.limit(limit))

    def stagings(self, live: bool = True) -> tuple[Staging, ...]:
        """The data of all jobs whose data is not CLEARED (``live`` False: of those too), oldest first."""
        query = select(STAGING).order_by(STAGING.c.created, STAGING.c.job_id)
        if live:
            query = query.where(STAGING.c.state.in_([state for state in StageState if state is not StageState.CLEARED]))
        return self._values(Staging, query)

    def staging(self, job_id: str) -> Staging:
        """The data of one job, CLEARED or not. Raises UnknownStaging."""
        with self._database.reading() as connection:
            return select_journaled(connection, STAGINGS, job_id)

    def find_staging(self, job_id: str) -> Staging | None:
        """The same; None where it is not on record."""
        return next(iter(self._values(Staging, select(STAGING).where(STAGING.c.job_id == job_id))), None)

    def find_staging_of_task(self, task: str) -> Staging | None:
        """The last one of a task of an array (``123_7``); None where it is not on record."""
        query = select(STAGING).where(STAGING.c.array_task == task).order_by(STAGING.c.created.desc()).limit(1)
        return next(iter(self._values(Staging, query)), None) if task else None

    def array_tasks(self, job_ids: Collection[str]) -> dict[str, str]:
        """Of these jobs with data those that are tasks of an array, by the number that Slurm gave the task."""
        found: dict[str, str] = {}
        with self._database.reading() as connection:
            for some in chunks(sorted(job_ids)):
                rows = select(STAGING.c.job_id, STAGING.c.array_task)
                wanted = rows.where(STAGING.c.job_id.in_(some), STAGING.c.array_task != "")
                found |= {row.job_id: row.array_task for row in connection.execute(wanted)}
        return found

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
            wanted.append(STAGING.c.state.in_(states))
        if before is not None:
            created, job_id = before
            older = and_(STAGING.c.created == created, STAGING.c.job_id < job_id)
            wanted.append(or_(STAGING.c.created < created, older))
        query = select(STAGING).where(*wanted).order_by(STAGING.c.created.desc(), STAGING.c.job_id.desc())
        return self._values(Staging, query.limit(limit))

    def volumes(self, *, gone: bool = False) -> tuple[Volume, ...]:
        """All volumes that are not GONE (``gone``: those too), oldest first."""
        query = select(VOLUME).order_by(VOLUME.c.created, VOLUME.c.id)
        return self._values(Volume, query if gone else query.where(VOLUME.c.state != VolumeState.GONE))

    def recent_launches(self, since: float) -> tuple[RecentLaunch, ...]:
        """Claims whose cloud was asked for a machine after ``since``, oldest first, each once."""
        return self._values(RecentLaunch, _RECENT_LAUNCHES, {"since": since})

    def gone_claims(self, since: float) -> tuple[EndedClaim, ...]:
        """Claims that came to their end after ``since``, oldest first."""
        over = (CLAIM.c.state == ClaimState.GONE, CLAIM.c.since >= since)
        claims = self._values(Claim, select(CLAIM).where(*over).order_by(CLAIM.c.since, CLAIM.c.id))
        return tuple(EndedClaim(claim.since, claim) for claim in claims)

    def spending(self) -> tuple[Spent, ...]:
        """What machines that are gone have cost, and what was sent home, by payer and month (see ledger.py)."""
        return self._values(Spent, select(SPENDING).order_by(*SPENDING.primary_key))

    def ended_jobs(self, limit: int) -> tuple[EndedJob, ...]:
        """The latest runs of jobs that are over, in the order in which they ended."""
        query = select(ENDED_JOB).order_by(ENDED_JOB.c.ended.desc(), ENDED_JOB.c.id).limit(limit)
        return self._values(EndedJob, query)[::-1]

    def open_job_uses(self) -> tuple[JobUse, ...]:
        """Runs that use nodes now, as far as the record knows; without series."""
        return job_use.uses_of_rows(self._rows(job_use.open_runs()))

    def job_uses(self, job_id: str) -> tuple[JobUse, ...]:
        """What each run of a job used, the first run first, without series; empty where no node has sent figures."""
        return job_use.uses_of_rows(self._rows(job_use.runs_of_job(job_id)))

    def last_job_use(self, job_id: str, *, series_nodes: int | None = 0) -> JobUse | None:
        """What the last run of a job used; None where no node has sent figures.

        ``series_nodes``: so many nodes, the first that have any, have their series (None: all). A node's series cost
        about four milliseconds of the interpreter.
        """
        runs = job_use.uses_of_rows(self._rows(job_use.last_run_of_job(job_id)))
        if not runs or series_nodes == 0:
            return runs[0] if runs else None
        return job_use.with_series(runs[0], self._rows(job_use.series_of_run(runs[0], series_nodes)))

    def job_use_owner(self, job_id: str) -> str | None:
        """The user of the last run of a job that nodes have sent figures of; None: there is none."""
        user = self._scalar(job_use.owner_of_job(job_id))
        return None if user is None else str(user)

    def job_use_parts(self, number: str) -> tuple[tuple[str, str], ...]:
        """Id and user of tasks of an array, or components of a het job, that have figures: the latest."""
        return tuple((row["job"], row["user"]) for row in self._rows(job_use.parts_of_job(number)))

    def events(
        self, *, after: int = 0, subject: str = "", job: str = "", newest: bool = False, limit: int = 1000
    ) -> tuple[LoggedEvent, ...]:
        """Entries of the log with ``seq`` above ``after``: the first ``limit``, or the last ones in reverse.

        ``subject`` is exact, or ends in a colon for all of a kind (``claim:``). ``job`` finds what was said about a
        job, the life of its data and of every claim made for it; its form as in ``find_claims``.
        """
        wanted: list[ColumnElement[bool]] = [EVENT.c.seq > after]
        if subject.endswith(":"):
            wanted.append(has_prefix(EVENT.c.subject, subject))
        elif subject:
            wanted.append(EVENT.c.subject == subject)
        if job:
            made = select("claim:" + CLAIM_JOB.c.claim_id).where(_job_matches(CLAIM_JOB.c.job, job))
            said = (_job_matches(EVENT.c.subject, job, kind) for kind in ("job:", "stage:"))
            tasks = select("stage:" + STAGING.c.job_id).where(_job_matches(STAGING.c.array_task, job))
            wanted.append(or_(*said, EVENT.c.subject.in_(made), EVENT.c.subject.in_(tasks)))
        order = EVENT.c.seq.desc() if newest else EVENT.c.seq
        return self._values(LoggedEvent, select(EVENT).where(*wanted).order_by(order).limit(limit))

    def state_changes(self, after: int, until: int, limit: int = 1000) -> tuple[LoggedEvent, ...]:
        """Changes of state of claims and of jobs' data, and removals of orphans, with ``seq`` in (after, until].

        The first ``limit``; remarks about claims are among them.
        """
        # Not as a range of subjects: that would read those of all times.
        kind = func.substr(EVENT.c.subject, 1, 6)
        changed = and_(kind.in_(("claim:", "stage:")), EVENT.c.old != "", EVENT.c.old != EVENT.c.new)
        removed = and_(kind == "orphan", EVENT.c.new == "removed")
        query = select(EVENT).where(EVENT.c.seq > after, EVENT.c.seq <= until, or_(changed, removed))
        return self._values(LoggedEvent, query.order_by(EVENT.c.seq).limit(limit))

    def named_events(self, names: Collection[str], *, after: int, limit: int) -> tuple[LoggedEvent, ...]:
        """The first entries of the log with ``seq`` above ``after`` whose ``new`` is one of these words."""
        wanted = (EVENT.c.seq > after, EVENT.c.new.in_(names))
        return self._values(LoggedEvent, select(EVENT).where(*wanted).order_by(EVENT.c.seq).limit(limit))

    def deliveries_waiting(self) -> list[Delivery]:
        """Messages that are still to be sent, oldest first."""
        with self._database.reading() as connection:
            return notifications.waiting(connection)

    def known_notifications(self, ids: Collection[str]) -> set[str]:
        """Those of these ids that are on record, sent or not."""
        with self._database.reading() as connection:
            return notifications.known(connection, ids)

    def job_owner(self, job_id: str) -> str:
        """Whose job this was, as the log has it; of an id that came again the last one's. Empty: nobody knows."""
        named = type_coerce(EVENT.c.data, Text).contains(f'"{USER_KEY}"')
        query = select(EVENT.c.data).where(_job_matches(EVENT.c.subject, job_id, "job:"), named)
        found = self._scalar(query.order_by(EVENT.c.seq.desc()).limit(1))
        return str(found.get(USER_KEY, "")) if found else ""

    def node_faults(self, since: float) -> tuple[NodeFaults, ...]:
        """Nodes on premises that had faults after ``since``, most faults first."""
        wanted = (has_prefix(EVENT.c.subject, NODE), EVENT.c.new == NODE_FAULT, EVENT.c.time >= since)
        columns = (EVENT.c.subject, EVENT.c.time, EVENT.c.reason)
        found: dict[str, NodeFaults] = {}
        for row in self._rows(select(*columns).where(*wanted).order_by(EVENT.c.seq)):
            node = row["subject"].removeprefix(NODE)
            before = found[node].faults if node in found else 0
            found[node] = NodeFaults(node, before + 1, row["time"], row["reason"])
        return tuple(sorted(found.values(), key=lambda one: (-one.faults, one.node)))

    def held_jobs(self, cause: str) -> dict[str, str]:
        """Jobs that burstd has held for this cause, with the last reason."""
        query = select(EVENT.c.subject, EVENT.c.reason).where(EVENT.c.new == "held", EVENT.c.cause == cause)
        return {row["subject"].removeprefix("job:"): row["reason"] for row in self._rows(query.order_by(EVENT.c.seq))}

    def runs_with_event(self, job_ids: Collection[str], new: str) -> dict[str, frozenset[int]]:
        """The numbers of the runs of these jobs of which an event ``new`` is on record, for jobs that have any."""
        found: dict[str, set[int]] = {}
        for some in chunks([f"job:{job}" for job in job_ids]):
            query = select(EVENT.c.subject, EVENT.c.data).where(EVENT.c.subject.in_(some), EVENT.c.new == new)
            for row in self._rows(query):
                run = row["data"].get("run")
                if isinstance(run, int):
                    found.setdefault(row["subject"].removeprefix("job:"), set()).add(run)
        return {job: frozenset(runs) for job, runs in found.items()}

    def last_event_time(self) -> float:
        """When the latest event was written; 0 where there is none."""
        return float(self._scalar(select(func.max(EVENT.c.time))) or 0.0)

    def last_event_seq(self) -> int:
        """The number of the latest event; 0 where there is none."""
        return int(self._scalar(_LAST_EVENT_SEQ) or 0)

    def claim_events(self, claim_id: str) -> tuple[LoggedEvent, ...]:
        """Every event of one claim, oldest first."""
        return self.events(subject=claim_subject(claim_id), limit=100_000)

    def remarks(self, subject: str) -> tuple[RecordedRemark, ...]:
        """What was last decided about a subject (``job:123``, ``pool:gpu``), in the order in which it was said."""
        rows = self._rows(select(REMARK).where(REMARK.c.subject == subject).order_by(REMARK.c.position))
        return tuple(RecordedRemark(value_from_row(Remark, row), row["since"]) for row in rows)

    def scale_overrides(self) -> tuple[Pin, ...]:
        """Pins that hold now, by pool."""
        now = self._clock.now()
        return tuple(pin for pin in self._pins() if pin.until is None or pin.until > now)

    def _pins(self) -> tuple[Pin, ...]:
        return self._values(Pin, _PINS)

    def drained_slots(self) -> tuple[DrainedSlot, ...]:
        """Slots that administrators hold."""
        return self._values(DrainedSlot, _DRAINED_SLOTS)

    def breakers(self) -> tuple[CircuitBreaker, ...]:
        """All breakers, also those whose time is over: their count of failures still matters."""
        return self._values(CircuitBreaker, _BREAKERS)

    def project_overrides(self) -> tuple[ProjectOverride, ...]:
        """What was made or changed by ``burstctl project``, by name; also what Slurm is still to lose."""
        return self._values(ProjectOverride, select(PROJECT).order_by(PROJECT.c.name))

    def metadata(self, key: str) -> str:
        """A single word about the cluster; empty where it was never set."""
        return self._scalar(_METADATA, {"key": key}) or ""

    def bills(
        self,
        groups: Collection[bill.BillGrouping],
        since: float,
        until: float,
        user: str = "",
        limit: int | None = None,
    ) -> dict[bill.BillGrouping, tuple[bill.BillLine, ...]]:
        """The bill, split in several ways, as of one moment."""
        found = {group: bill.Bill(group, since, until, user, limit) for group in groups}
        with self._database.reading() as connection:
            live = [value_from_row(Claim, row) for row in connection.execute(_LIVE_CLAIMS).mappings()]
            known = charges.charges_so_far(connection, live, until, self.idle_mode)
            volumes = [value_from_row(Volume, row) for row in connection.execute(_LIVE_VOLUMES).mappings()]
            more_of_volumes = charges.volume_charges_so_far(connection, volumes, until)
            for one in found.values():
                for claim in live:
                    frozen, more = known[claim.id]
                    one.add_live(claim, more, frozen)
                for volume in volumes:
                    one.add_live_volume(volume, more_of_volumes[volume.id])
                one.add_closed(connection)
        return {group: one.lines() for group, one in found.items()}

    def bill(
        self,
        group: bill.BillGrouping,
        since: float,
        until: float | None = None,
        user: str = "",
        limit: int | None = None,
    ) -> tuple[bill.BillLine, ...]:
        """What machines cost from the day (UTC) of ``since`` to that of ``until``, then what volumes cost.

        ``until`` None: by now. ``user``: what he is charged for; empty: all. ``limit``: as in Bill.
        """
        return self.bills([group], since, self._clock.now() if until is None else until, user, limit)[group]

    def daily_costs(self, since: float) -> Mapping[str, Mapping[int, int]]:
        """By currency and day (UTC, from that of ``since`` on), what machines cost by now, in millionths."""
        found: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        now, by = self._clock.now(), (CHARGE.c.currency, CHARGE.c.day)
        wanted = (CHARGE.c.day >= int(since // DAY_S), CHARGE.c.kind != Kind.VOLUME)
        sums = select(*by, func.sum(CHARGE.c.amount)).where(*wanted).group_by(*by)
        with self._database.reading() as connection:
            for currency, day, amount in connection.execute(sums):
                found[currency][day] += int(amount)
            live = [value_from_row(Claim, row) for row in connection.execute(_LIVE_CLAIMS).mappings()]
            known = charges.charges_so_far(connection, live, now, self.idle_mode)
        for claim in live:
            for charge in known[claim.id][1]:
                found[claim.offer.currency][charge.day] += charge.amount
        return found

    def volume_costs(self, since: float) -> Mapping[str, int]:
        """By currency, what volumes cost by now from the day (UTC) of ``since`` on, in millionths."""
        first, found = int(since // DAY_S), defaultdict[str, int](int)
        wanted = (CHARGE.c.day >= first, CHARGE.c.kind == Kind.VOLUME)
        sums = select(CHARGE.c.currency, func.sum(CHARGE.c.amount)).where(*wanted).group_by(CHARGE.c.currency)
        with self._database.reading() as connection:
            for currency, amount in connection.execute(sums):
                found[currency] += int(amount)
            live = [value_from_row(Volume, row) for row in connection.execute(_LIVE_VOLUMES).mappings()]
            more = charges.volume_charges_so_far(connection, live, self._clock.now())
        for volume in live:
            found[volume.currency] += sum(charge.amount for charge in more[volume.id] if charge.day >= first)
        return found

    def charge_page(
        self, since: float, until: float, cursor: charge_pages.Cursor, rows: int, user: str = ""
    ) -> tuple[list[charge_pages.ChargeLine], charge_pages.Cursor | None]:
        """Single charges from the day (UTC) of ``since`` to that of ``until``; they add up to the bill.

        ``rows``: about so many. Goes on after the cursor that it returns; None: that was all.
        """
        days = range(int(since // DAY_S), ceil(until / DAY_S))
        pages = charge_pages.ChargePages(days, until, user, self.idle_mode)
        with self._database.reading() as connection:
            return pages.page(connection, cursor, rows)

    def site_bill(
        self, group: BillGrouping, since: float, until: float, user: str = "", limit: int | None = None
    ) -> tuple[site_runs.SiteLine, ...]:
        """What jobs cost on nodes of the site's own, from the day (UTC) of ``since`` to that of ``until``.

        ``user``: his jobs; empty: all. ``limit``: as in ``site_lines``.
        """
        with self._database.reading() as connection:
            return site_runs.site_lines(connection, group, since, until, user, limit)

    def compared_runs(
        self, since: float, wanted: placed_runs.RunFilter, like: EndedJob | None = None, user: str = ""
    ) -> Iterator[PlacedRun]:
        """Runs of jobs that ended from ``since`` on, with their costs so far, in the order that ``compare`` needs.

        ``like``: only those that are like it. ``user``: only his.
        """
        with self._database.reading() as connection:
            live = [value_from_row(Claim, row) for row in connection.execute(_LIVE_CLAIMS).mappings()]
            known = charges.charges_so_far(connection, live, self._clock.now(), self.idle_mode)
            costs: defaultdict[tuple[str, str], list[placed_runs.DatedCost]] = defaultdict(list)
            for claim in live:
                for charge in known.pop(claim.id)[1]:
                    if charge.payer.job:
                        cost = placed_runs.DatedCost(charge.day, charge.corrects, claim.offer.currency, charge.amount)
                        costs[charge.payer.job, charge.payer.user].append(cost)
            yield from placed_runs.placed_runs(connection, since, wanted, costs, like, user)

    def group_uses(self, groups: Collection[str], since: float, until: float) -> Mapping[str, placed_runs.GroupUse]:
        """How much groups of nodes of the site were used, from the day (UTC) of ``since`` on; none: it is missing."""
        with self._database.reading() as connection:
            return placed_runs.group_uses(connection, groups, since, until)

    def last_run(self, job: str, user: str = "") -> EndedJob | None:
        """Of a job that is over; None: there is none on record. ``user``: only if it is his."""
        query = select(ENDED_JOB).where(ENDED_JOB.c.id == job, *([ENDED_JOB.c.user == user] if user else []))
        return next(iter(self._values(EndedJob, query.order_by(ENDED_JOB.c.started.desc()).limit(1))), None)

    def first_run_ended(self, user: str = "") -> float | None:
        """When the first run of a job that is on record ended. ``user``: of his."""
        found = self._scalar(select(func.min(ENDED_JOB.c.ended)).where(*([ENDED_JOB.c.user == user] if user else [])))
        return None if found is None else float(found)

    def open_site_runs(self) -> list[SiteRun]:
        """Runs of jobs on nodes of the site that have not ended, as far as the record knows."""
        with self._database.reading() as connection:
            return site_runs.open_site_runs(connection)

    def charged_site_runs(self, jobs: Collection[str]) -> set[tuple[str, int]]:
        """Job and ``run_start`` of the runs of these jobs on nodes of the site that are over."""
        with self._database.reading() as connection:
            return site_runs.charged_site_runs(connection, jobs)

    def job_cost(self, job: str, user: str = "") -> Mapping[str, Decimal]:
        """What a job has cost so far, by currency, over all its runs: its work, and its part of boots.

        ``123`` has its array tasks and components too. ``user``: only what he is charged, for Slurm gives ids again.
        """
        found: defaultdict[str, int] = defaultdict(int)
        # Of an array task not what the whole array is charged.
        sums = select(CHARGE.c.currency, func.sum(CHARGE.c.amount)).where(job_or_part(CHARGE.c.job, job))
        sums = sums.where(CHARGE.c.user == user) if user else sums
        of = [
            select(table.c.claim_id).where(_job_matches(table.c.job, job)) for table in (CLAIM_RUN, CLAIM_JOB)
        ]  # fmt: skip
        wanted = _LIVE_CLAIMS.where(or_(*(CLAIM.c.id.in_(some) for some in of)))
        with self._database.reading() as connection:
            live = [value_from_row(Claim, row) for row in connection.execute(wanted).mappings()]
            known = charges.charges_so_far(connection, live, self._clock.now(), self.idle_mode)
            for currency, amount in connection.execute(sums.group_by(CHARGE.c.currency)):
                found[currency] += int(amount)
        for claim in live:
            for charge in known[claim.id][1]:
                same = charge.payer.job == job or charge.payer.job.startswith((f"{job}_", f"{job}+"))
                if same and user in ("", charge.payer.user):
                    found[claim.offer.currency] += charge.amount
        return {currency: amount * MICRO for currency, amount in found.items() if amount}

    def job_site_cost(self, job: str, user: str = "") -> Mapping[str, Decimal]:
        """What a job has cost so far on nodes of the site, as ``job_cost``, which has none of it."""
        with self._database.reading() as connection:
            found = site_runs.job_cost(connection, job, self._clock.now(), user)
        return {currency: amount * MICRO for currency, amount in found.items() if amount}

    def closed_months(self) -> tuple[ClosedMonth, ...]:
        """Months whose charges stay as they are, oldest first."""
        with self._database.reading() as connection:
            return tuple(closed_months.closed_months(connection))

    def charges_of_days(self, days: range, rule: int = RULE) -> Iterator[MonthCharge]:
        """Those on record of these days (since 1970) that were closed by ``rule``, in the order of ``month_file``."""
        with self._database.reading() as connection:
            yield from closed_months.charges_of_days(connection, days, rule)

    def site_charges_of_days(self, days: range) -> Iterator[SiteCharge]:
        """The same of nodes of the site, in the order of ``site_month_file``."""
        with self._database.reading() as connection:
            yield from site_runs.charges_of_days(connection, days)

    def site_charges(self, days: range, user: str = "") -> list[SiteCharge]:
        """All of these days by now on nodes of the site; they add up to ``site_bill``. ``user``: his; empty: all."""
        with self._database.reading() as connection:
            return [*site_runs.charges_by(connection, days, self._clock.now(), user)]

    def awaited_claims(self) -> tuple[str, list[Claim]]:
        """The first month that is not closed, and the claims that it has to wait for."""
        live = self.claims()
        with self._database.reading() as connection:
            return closed_months.awaited_claims(connection, live)

    def open_runs(self) -> tuple[ClaimRun, ...]:
        """Runs of jobs on machines that have not ended, as far as the record knows."""
        return tuple(map(charges.run_of_row, self._rows(charges.open_runs())))

    def runs_of_jobs(self, jobs: Collection[str]) -> tuple[ClaimRun, ...]:
        """Runs of these jobs on machines, in no order."""
        rows = (row for some in chunks(sorted(jobs)) for row in self._rows(charges.runs_of_jobs(some)))
        return tuple(map(charges.run_of_row, rows))

    def site_history(
        self, parts: Collection[Part], since: float, until: float, series: site_history.SeriesFilter | None = None
    ) -> tuple[float, int, Mapping[Part, tuple[list[Sample], Sample | None]]]:
        """When they begin, and their length in seconds; by part, samples in [since, until), and the last before them.

        See ``burstd.db.repositories.site_history.read``.
        """
        with self._database.reading() as connection:
            begin, step_s, found = site_history.read(connection, parts, since, until, self._clock.now(), series)
            before = {p: site_history.last_before(connection, p, some[0].time) for p, some in found.items() if some}
            return begin, step_s, {part: (samples, before.get(part)) for part, samples in found.items()}


def _job_matches(column: ColumnElement[Any], job: str, before: str = "") -> ColumnElement[bool]:
    whole = job.partition("_")[0].partition("+")[0]
    if job != whole:
        return or_(column == before + job, column == before + whole)
    return or_(column == before + job, has_prefix(column, f"{before}{job}_"), has_prefix(column, f"{before}{job}+"))
