"""The tables. Rows never leave this room: a table model does not validate. Every change here needs a migration.

Times are burstd's own seconds since 1970. Money and everything with an inner structure is text (decimals as digits,
the rest as JSON), never a float.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, Table, Text, text
from sqlalchemy.dialects import postgresql
from sqlmodel import Field, SQLModel


class TableRow(SQLModel):
    """Base of all rows; holds the tables of this room apart from any other user of SQLModel."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
    )


# Compared by bytes, as SQLite does: under a language's rules a prefix is no range.
BYTEWISE = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _text(*, key: bool = False, index: bool = False) -> Column[str]:
    return Column(BYTEWISE, primary_key=key, nullable=False, index=index)


def _time(*, index: bool = False) -> Column[float]:
    return Column(Float, nullable=False, index=index)


def _whole() -> Column[int]:
    """Bytes, and numbers of users: more than 31 bits."""
    return Column(BigInteger, nullable=False)


class ClaimRow(TableRow, table=True):
    """One claim; the columns are named as the fields of ``Claim``."""

    __tablename__ = "claim"
    __table_args__ = (
        # One machine for one slot at any time, whatever a caller does.
        Index(
            "claim_live_slot",
            "slot",
            unique=True,
            sqlite_where=text("state <> 'gone'"),
            postgresql_where=text("state <> 'gone'"),
        ),
        Index("claim_live", "state", sqlite_where=text("state <> 'gone'"), postgresql_where=text("state <> 'gone'")),
        Index("claim_pool_created", "pool", "created"),
    )

    id: str = Field(sa_column=_text(key=True))
    cluster: str = Field(sa_column=_text())
    pool: str = Field(sa_column=_text())
    slot: str = Field(sa_column=_text())
    provider: str = Field(sa_column=_text())
    offer: str = Field(sa_column=_text())
    cause: str = Field(sa_column=_text())
    state: str = Field(sa_column=_text())
    created: float = Field(sa_column=_time(index=True))
    since: float = Field(sa_column=_time())
    reason: str = Field(sa_column=_text())
    jobs: str = Field(sa_column=_text())
    users: str = Field(sa_column=_text())
    gang: str = Field(sa_column=_text())
    image: str = Field(sa_column=_text())
    batch: str = Field(sa_column=Column(BYTEWISE, nullable=False, server_default=text("''")))
    instance_id: str = Field(sa_column=_text())
    address: str = Field(sa_column=_text())
    launch_called: float | None = Field(sa_column=Column(Float, index=True))
    billed_from: float | None = Field(sa_column=Column(Float))
    billed_until: float | None = Field(sa_column=Column(Float, index=True))
    opened: float | None = Field(sa_column=Column(Float))
    attempts: int = Field(sa_column=Column(Integer, nullable=False))
    accounts: str = Field(sa_column=Column(BYTEWISE, nullable=False, server_default=text("'[]'")))
    reserved: str = Field(sa_column=Column(BYTEWISE, nullable=False, server_default=text("'0'")))
    egress: str = Field(sa_column=Column(BYTEWISE, nullable=False, server_default=text("'0'")))
    alone: int = Field(sa_column=Column(Integer, nullable=False, server_default=text("0")))
    error: str = Field(sa_column=_text())


class SpendingRow(TableRow, table=True):
    """What one payer has spent in one month on machines that are gone (see ledger.py)."""

    __tablename__ = "spent"
    kind: str = Field(sa_column=_text(key=True))
    name: str = Field(sa_column=_text(key=True))
    month: str = Field(sa_column=_text(key=True))
    currency: str = Field(sa_column=_text(key=True))
    provider: str = Field(sa_column=_text(key=True))
    amount: str = Field(sa_column=_text())
    bytes_out: int = Field(sa_column=_whole())


class ClaimJobRow(TableRow, table=True):
    """Which jobs a claim was made for: an index over ``ClaimRow.jobs``."""

    __tablename__ = "claim_job"
    job: str = Field(sa_column=_text(key=True))
    claim_id: str = Field(sa_column=_text(key=True, index=True))


class ClaimUserRow(TableRow, table=True):
    """Which users a claim was made for: an index over ``ClaimRow.users``."""

    __tablename__ = "claim_user"
    user: str = Field(sa_column=_text(key=True))
    claim_id: str = Field(sa_column=_text(key=True, index=True))


class LaunchRequestRow(TableRow, table=True):
    """The request that a claim's cloud was, or is about to be, asked; user data by digest."""

    __tablename__ = "launch_request"
    claim_id: str = Field(sa_column=_text(key=True))
    body: str = Field(sa_column=_text())
    user_data: str = Field(sa_column=_text(index=True))
    recorded: float = Field(sa_column=_time())


class UserDataRow(TableRow, table=True):
    """User data is the same for every claim of a pool and provider, so it is kept once."""

    __tablename__ = "user_data"
    digest: str = Field(sa_column=_text(key=True))
    body: str = Field(sa_column=_text())


class EventRow(TableRow, table=True):
    """The log. ``seq`` is never given twice, also not after a purge."""

    __tablename__ = "event"
    __table_args__ = (Index("event_subject_seq", "subject", "seq"), {"sqlite_autoincrement": True})

    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=True))
    time: float = Field(sa_column=_time(index=True))
    subject: str = Field(sa_column=_text())
    old: str = Field(sa_column=_text())
    new: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    cause: str = Field(sa_column=_text())
    data: str = Field(sa_column=_text())


class RemarkRow(TableRow, table=True):
    """The latest remarks about a subject, in the order in which they were made."""

    __tablename__ = "remark"
    subject: str = Field(sa_column=_text(key=True))
    position: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    by: str = Field(sa_column=_text())
    verdict: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    since: float = Field(sa_column=_time())
    written: float = Field(sa_column=_time(index=True))


class ScaleOverrideRow(TableRow, table=True):
    """``burstctl scale``."""

    __tablename__ = "pin"
    pool: str = Field(sa_column=_text(key=True))
    kind: str = Field(sa_column=_text(key=True))
    nodes: int = Field(sa_column=Column(Integer, nullable=False))
    until: float | None = Field(sa_column=Column(Float))
    by: str = Field(sa_column=_text())
    created: float = Field(sa_column=_time())


class DrainedSlotRow(TableRow, table=True):
    """``burstctl node drain``."""

    __tablename__ = "held_slot"
    slot: str = Field(sa_column=_text(key=True))
    by: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    since: float = Field(sa_column=_time())


class BreakerRow(TableRow, table=True):
    """What is not tried again for a while."""

    __tablename__ = "breaker"
    key: str = Field(sa_column=_text(key=True))
    cause: str = Field(sa_column=_text(key=True))
    failures: int = Field(sa_column=Column(Integer, nullable=False))
    until: float = Field(sa_column=_time())
    error: str = Field(sa_column=_text())


class StagingRow(TableRow, table=True):
    """The data of one job; the columns are named as the fields of ``Staging``."""

    __tablename__ = "staging"

    job_id: str = Field(sa_column=_text(key=True))
    user: str = Field(sa_column=_text(index=True))
    uid: int = Field(sa_column=_whole())
    gid: int = Field(sa_column=_whole())
    directives: str = Field(sa_column=_text())
    state: str = Field(sa_column=_text(index=True))
    since: float = Field(sa_column=_time())
    created: float = Field(sa_column=_time(index=True))
    store: str = Field(sa_column=_text())
    account: str = Field(sa_column=_text())
    work_dir: str = Field(sa_column=_text())
    trees: str = Field(sa_column=_text())
    nodes: str = Field(sa_column=_text())
    outputs: str = Field(sa_column=_text())
    job_state: str = Field(sa_column=_text())
    exit_code: str = Field(sa_column=_text())
    bytes_in: int = Field(sa_column=_whole())
    bytes_sent: int = Field(sa_column=_whole())
    bytes_out: int = Field(sa_column=_whole())
    estimated_ready: float = Field(sa_column=_time())
    staged: float = Field(sa_column=_time())
    attempts: int = Field(sa_column=Column(Integer, nullable=False))
    error: str = Field(sa_column=_text())
    resume: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())


class EndedJobRow(TableRow, table=True):
    """One run of a job that is over; the columns are named as the fields of ``EndedJob``."""

    __tablename__ = "ended_job"

    id: str = Field(sa_column=_text(key=True))
    started: float = Field(sa_column=Column(Float, primary_key=True, nullable=False))
    user: str = Field(sa_column=_text())
    account: str = Field(sa_column=_text())
    name: str = Field(sa_column=_text())
    partitions: str = Field(sa_column=_text())
    nodes: int = Field(sa_column=_whole())
    cpus: int = Field(sa_column=_whole())
    gpus: int = Field(sa_column=_whole())
    time_limit_s: float = Field(sa_column=_time())
    eligible: float = Field(sa_column=_time())
    ended: float = Field(sa_column=_time(index=True))
    burst: int = Field(sa_column=Column(Integer, nullable=False))


class MetadataRow(TableRow, table=True):
    """Single words about the cluster: its name, whether burstd is paused ..."""

    __tablename__ = "meta"
    key: str = Field(sa_column=_text(key=True))
    value: str = Field(sa_column=_text())


def table_of_row(row: type[TableRow]) -> Table:
    """The table of a row class."""
    return TableRow.metadata.tables[str(row.__tablename__)]


CLAIM = table_of_row(ClaimRow)
CLAIM_JOB = table_of_row(ClaimJobRow)
CLAIM_USER = table_of_row(ClaimUserRow)
LAUNCH_REQUEST = table_of_row(LaunchRequestRow)
USER_DATA = table_of_row(UserDataRow)
EVENT = table_of_row(EventRow)
REMARK = table_of_row(RemarkRow)
SCALE_OVERRIDE = table_of_row(ScaleOverrideRow)
DRAINED_SLOT = table_of_row(DrainedSlotRow)
BREAKER = table_of_row(BreakerRow)
STAGING = table_of_row(StagingRow)
ENDED_JOB = table_of_row(EndedJobRow)
METADATA = table_of_row(MetadataRow)
SPENDING = table_of_row(SpendingRow)
