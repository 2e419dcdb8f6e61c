"""The tables. Rows never leave this room: a table model does not validate. Every change here needs a migration.

Times are burstd's own seconds since 1970. Money and everything with an inner structure is text (decimals as digits,
the rest as JSON), never a float.

What is read and written by the thousand (claims, stagings, events, remarks, ended jobs) goes through SQLAlchemy's Core,
as values of the domain: with SQLModel's rows in a session 1,000 claims are written 8 times, changed 1.8 times and read
1.4 times as slowly. All else are rows in sessions.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, ClassVar, get_type_hints

from sqlalchemy import BigInteger, Column, Dialect, Float, Index, Integer, LargeBinary, MetaData, Table, Text, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Field, SQLModel

from burstd.db.codec import field_names, from_json, storable_text, to_json, to_json_text
from burstd.domain.billing.closing import ClosedMonth
from burstd.domain.billing.use import Kind
from burstd.domain.claim import Claim
from burstd.domain.cloud.offer import Offer
from burstd.domain.job_use import NodeUse
from burstd.domain.notification import DeliveryState
from burstd.domain.project import SetupStep
from burstd.domain.site_history import Figure, Figures, Part, gauge_values
from burstd.domain.slurm.job_history import EndedJob
from burstd.domain.staging import Staging
from burstd.domain.volume import Volume


class TableRow(SQLModel):
    """Base of all rows; holds the tables of this room apart from any other user of SQLModel."""

    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"}
    )


class Stored(TypeDecorator[Any]):
    """Text that any database takes, written and read as a value where ``encode`` and ``decode`` say so.

    Compared by bytes, as SQLite does: under a language's rules a prefix is no range.
    """

    impl = Text
    cache_ok = True

    def __init__(self, decode: Callable[[str], Any] | None = None, encode: Callable[[Any], str] = str) -> None:
        super().__init__()
        self.decode, self.encode = decode, encode

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The database's own type."""
        return postgresql.TEXT(collation="C") if dialect.name == "postgresql" else Text()

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str | None]:  # noqa: ARG002
        """What writes a value."""
        return lambda value: None if value is None else storable_text(self.encode(value))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:  # noqa: ARG002
        """What reads one."""
        return self.decode  # no column of this type is NULL


class StoredFlag(TypeDecorator[bool]):
    """0 or 1."""

    impl = Integer
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], int]:  # noqa: ARG002
        """What writes a flag."""
        return int

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], bool]:  # noqa: ARG002
        """What reads one."""
        return bool


class StoredFigures(TypeDecorator[Any]):
    """JSON, compressed; by measure, a value for each subject: smaller than subject by subject, and read faster.

    Read as bytes: most readers want a few figures of many samples (see ``decode_figures``).
    """

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes:  # noqa: ARG002
        """What writes it."""
        return zlib.compress(json.dumps(_columns_of(value), separators=(",", ":"), allow_nan=False).encode())


def _columns_of(figures: Figures) -> tuple[list[str], dict[str, list[list[float]]]]:
    """The subjects; by measure, their sums, then their largest values where one differs from its sum."""
    found: dict[str, list[list[float]]] = {}
    for measure in sorted({measure for measures in figures.values() for measure in measures}):
        pairs = [gauge_values(measures.get(measure, 0)) for measures in figures.values()]
        sums, largest = [total for total, _ in pairs], [most for _, most in pairs]
        found[measure] = [sums] if sums == largest else [sums, largest]
    return [*figures], found


def decode_figures(
    stored: bytes, places: Callable[[tuple[str, ...], str], Sequence[tuple[int, str]]] | None = None
) -> Figures:
    """What StoredFigures wrote. Raises ValueError where it is damaged.

    ``places``: of subjects and a measure, which of them are wanted, each by its number and name; None: all.
    """
    try:
        read = json.loads(zlib.decompress(stored))
        # An object: written subject by subject, as the first samples were.
        names, columns = _columns_of(read) if isinstance(read, dict) else read
        subjects = tuple(names)
        found: dict[str, dict[str, Figure]] = {}
        for measure, (sums, *more) in columns.items():
            largest = more[0] if more else sums
            for n, name in enumerate(subjects) if places is None else places(subjects, measure):
                total, most = sums[n], largest[n]
                if total or most:
                    found.setdefault(name, {})[measure] = total if total == most else [total, most]
    except (zlib.error, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return found


def _json(kind: Any) -> Stored:
    def decode(stored: str) -> Any:
        return from_json(kind, json.loads(stored))

    # The same few offers and lists stand in thousands of claims, which share them.
    shared = kind in (Offer, tuple[str, ...])
    return Stored(lru_cache(maxsize=4096)(decode) if shared else decode, lambda value: to_json_text(to_json(value)))


def _columns(
    kind: type,
    *,
    keys: Collection[str],
    index: Collection[str] = (),
    defaults: Mapping[str, str] | None = None,
    types: Mapping[str, TypeEngine[Any]] | None = None,
) -> Iterator[Column[Any]]:
    """A column for each field of a dataclass, of its type unless ``types`` has another."""
    hints, others = get_type_hints(kind), types or {}
    for name in field_names(kind):
        default = (defaults or {}).get(name)
        yield Column(
            name,
            others[name] if name in others else _column_type(hints[name]),
            primary_key=name in keys,
            nullable=hints[name] == float | None,
            index=name in index,
            server_default=None if default is None else text(default),
        )


def _column_type(hint: Any) -> TypeEngine[Any]:
    if hint in _TYPES:
        return _TYPES[hint]()
    return Stored(hint) if isinstance(hint, type) and issubclass(hint, Decimal | StrEnum) else _json(hint)


_TYPES: Mapping[Any, type[TypeEngine[Any]]] = {
    str: Stored, int: BigInteger, bool: StoredFlag, float: Float, float | None: Float,
}  # fmt: skip
_LIVE = text("state <> 'gone'")

CLAIM = Table(
    "claim",
    TableRow.metadata,
    *_columns(
        Claim,
        keys=["id"],
        index=["created", "launch_called", "billed_until"],
        defaults={
            "batch": "''",
            "accounts": "'[]'",
            "reserved": "'0'",
            "egress": "'0'",
            "dedicated_by_policy": "0",
            "reused_from": "''",
        },
        types={"attempts": Integer()},
    ),
    Column("provider", Stored, nullable=False),
    # One machine for one slot at any time, whatever a caller does.
    Index("claim_live_slot", "slot", unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE),
    Index("claim_live", "state", sqlite_where=_LIVE, postgresql_where=_LIVE),
    Index("claim_pool_created", "pool", "created"),
)
CLAIM_JOB, CLAIM_USER = (
    Table(
        f"claim_{name}",
        TableRow.metadata,
        Column(name, Stored, primary_key=True),
        Column("claim_id", Stored, primary_key=True, index=True),
    )
    for name in ("job", "user")
)
"""Which jobs and users a claim was made for: an index over its fields ``jobs`` and ``users``."""
STAGING = Table(
    "staging",
    TableRow.metadata,
    # The working directory too: JSON escapes what a database refuses in a text.
    *_columns(
        Staging,
        keys=["job_id"],
        index=["user", "state", "created", "array_task"],
        defaults={"checkpoints": "'[]'", "checkpoint_error": "''", "array_task": "''"},
        types={"attempts": Integer(), "work_dir": _json(str)},
    ),
)
VOLUME = Table(
    "volume",
    TableRow.metadata,
    *_columns(Volume, keys=["id"], index=["created", "billed_until"]),
    # One volume of a name for each user at any time.
    Index("volume_live_name", "uid", "name", unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE),
)
EVENT = Table(
    "event",
    TableRow.metadata,
    # The log. ``seq`` is never given twice, also not after a purge.
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False, index=True),
    *(Column(name, Stored, nullable=False) for name in ("subject", "old", "new", "reason", "cause")),
    Column("data", Stored(json.loads, to_json_text), nullable=False),
    Index("event_subject_seq", "subject", "seq"),
    sqlite_autoincrement=True,
)
REMARK = Table(
    "remark",
    TableRow.metadata,
    # The latest remarks about a subject, in the order in which they were made.
    Column("subject", Stored, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    *(Column(name, Stored, nullable=False) for name in ("by", "verdict", "reason")),
    Column("since", Float, nullable=False),
    Column("written", Float, nullable=False, index=True),
)
ENDED_JOB = Table("ended_job", TableRow.metadata, *_columns(EndedJob, keys=["id", "started"], index=["ended"]))

JOB_USE = Table(
    "job_use",
    TableRow.metadata,
    # What one run of a job used of one node. ``figures``: ``summary`` with its series, zlib; empty: forgotten.
    *(Column(name, Stored, primary_key=True) for name in ("job", "node")),
    *(Column(name, BigInteger, primary_key=True, autoincrement=False) for name in ("restarts", "run_start")),
    *(Column(name, Stored, nullable=False) for name in ("number", "user", "account", "partition")),
    Column("nodes_allocated", BigInteger, nullable=False),
    Column("started", Float, nullable=False),
    Column("written", Float, nullable=False, index=True),
    Column("ended", Float),
    Column("summary", _json(NodeUse), nullable=False),
    Column("figures", LargeBinary, nullable=False),
    Index("job_use_open", "job", sqlite_where=text("ended IS NULL"), postgresql_where=text("ended IS NULL")),
)
CLAIM_RUN = Table(
    "claim_run",
    TableRow.metadata,
    # One run of a job on the machine of a claim; ``share`` of the node in millionths.
    *(Column(name, Stored, primary_key=True) for name in ("claim_id", "job")),
    Column("run_start", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, Stored, nullable=False) for name in ("user", "account", "partition")),
    Column("started", Float, nullable=False),
    Column("share", BigInteger, nullable=False),
    Column("ended", Float),
    Index("ix_claim_run_job", "job"),
    Index("claim_run_open", "claim_id", sqlite_where=text("ended IS NULL"), postgresql_where=text("ended IS NULL")),
)
CHARGE = Table(
    "charge",
    TableRow.metadata,
    # What one payer is charged for one use of a claim in one day: ``amount`` in millionths of the currency. Whole
    # numbers, which databases add up. By day first, as bills ask for them.
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("claim_id", Stored, primary_key=True, index=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Stored(Kind), nullable=False),
    *(
        Column(name, Stored, nullable=False)
        for name in ("cause", "job", "user", "account", "partition", "pool", "provider", "currency")
    ),
    Column("amount", BigInteger, nullable=False),
    Column("milliseconds", BigInteger, nullable=False),
    Column("corrects", Stored, nullable=False, server_default=text("''")),
    Column("bytes_out", BigInteger, nullable=False, server_default=text("0")),
    Index("ix_charge_job", "job"),
    sqlite_with_rowid=False,
)
CLOSED_MONTH = Table(
    "closed_month",
    TableRow.metadata,
    # Whose charges stay as they are; ``totals`` by currency.
    *_columns(
        ClosedMonth,
        keys=["month"],
        types={"rule": Integer()},
        defaults={"site_charges": "0", "site_totals": "'{}'", "site_sha256": "''"},
    ),
)
SITE_RUN = Table(
    "site_run",
    TableRow.metadata,
    # One run, that goes on, of a job on nodes of the site that cost the same; ``share`` in millionths of a node.
    *(Column(name, Stored, primary_key=True) for name in ("job", "node_group")),
    Column("run_start", BigInteger, primary_key=True, autoincrement=False),
    *(Column(name, Stored, nullable=False) for name in ("user", "account", "partition", "currency")),
    Column("started", Float, nullable=False),
    Column("share", BigInteger, nullable=False),
    Column("price", Stored(Decimal), nullable=False),
    Column("nodes", Stored, nullable=False, server_default=text("''")),
)
SITE_CHARGE = Table(
    "site_charge",
    TableRow.metadata,
    # What a run of a job on such nodes was charged in one day; as in ``charge``.
    Column("day", Integer, primary_key=True, autoincrement=False),
    *(Column(name, Stored, primary_key=True) for name in ("job", "node_group")),
    Column("run_start", BigInteger, primary_key=True, autoincrement=False),
    Column("corrects", Stored, primary_key=True, server_default=text("''")),
    *(Column(name, Stored, nullable=False) for name in ("user", "account", "partition", "currency")),
    Column("nodes", Stored, nullable=False, server_default=text("''")),
    Column("amount", BigInteger, nullable=False),
    Column("milliseconds", BigInteger, nullable=False),
    Index("ix_site_charge_job", "job"),
    sqlite_with_rowid=False,
)
NOTIFICATION = Table(
    "notification",
    TableRow.metadata,
    # A message by one way; kept when it was sent, so that it is not sent again.
    *(Column(name, Stored, primary_key=True) for name in ("id", "way")),
    Column("time", Float, nullable=False, index=True),
    Column("tries", Integer, nullable=False),
    Column("due", Float, nullable=False),
    Column("state", Stored(DeliveryState), nullable=False),
    Column("message", Stored(json.loads, to_json_text), nullable=False),
)
SITE_HISTORY = Table(
    "site_history",
    TableRow.metadata,
    # Samples of the site, each beginning at ``time`` and ``step_s`` seconds long, merged from ``samples`` snapshots.
    Column("part", Stored(Part), primary_key=True),
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("time", BigInteger, primary_key=True, autoincrement=False),
    Column("samples", Integer, nullable=False),
    Column("figures", StoredFigures, nullable=False),
)


def _text(*, key: bool = False, index: bool = False) -> Any:
    return Field(sa_type=Stored, primary_key=key, index=index)


class SpendingRow(TableRow, table=True):
    """What one payer has spent in one month (see ledger.py)."""

    __tablename__ = "spent"
    kind: str = _text(key=True)
    name: str = _text(key=True)
    month: str = _text(key=True)
    currency: str = _text(key=True)
    amount: Decimal = Field(sa_type=Stored(Decimal))


class LaunchRequestRow(TableRow, table=True):
    """The request that a claim's cloud was, or is about to be, asked; user data by digest."""

    __tablename__ = "launch_request"
    claim_id: str = _text(key=True)
    body: str = _text()
    user_data: str = _text(index=True)
    recorded: float


class UserDataRow(TableRow, table=True):
    """User data is the same for every claim of a pool and provider, so it is kept once."""

    __tablename__ = "user_data"
    digest: str = _text(key=True)
    body: str = _text()


class ScaleOverrideRow(TableRow, table=True):
    """``burstctl scale``."""

    __tablename__ = "pin"
    pool: str = _text(key=True)
    kind: str = _text(key=True)
    nodes: int
    until: float | None
    by: str = _text()
    created: float


class DrainedSlotRow(TableRow, table=True):
    """``burstctl node drain``."""

    __tablename__ = "held_slot"
    slot: str = _text(key=True)
    by: str = _text()
    reason: str = _text()
    since: float


class BreakerRow(TableRow, table=True):
    """What is not tried again for a while."""

    __tablename__ = "breaker"
    key: str = _text(key=True)
    cause: str = _text(key=True)
    failures: int
    until: float
    error: str = _text()


class ProjectRow(TableRow, table=True):
    """``burstctl project``."""

    __tablename__ = "project"
    name: str = _text(key=True)
    values: dict[str, object] = Field(sa_type=Stored(json.loads, to_json_text))
    created: bool = Field(sa_type=StoredFlag)
    pending: SetupStep = Field(sa_type=Stored(SetupStep))
    by: str = _text()
    since: float


class LeaderTableRow(TableRow, table=True):
    """Which head leads. ``since`` by the database's clock. A write of an earlier epoch finds no row, and is refused."""

    __tablename__ = "leader"
    cluster: str = _text(key=True)
    holder: str = _text()
    epoch: int = Field(sa_type=BigInteger)
    since: float
    settings_digest: str = _text()
    version: str = _text()


class HeadTableRow(TableRow, table=True):
    """What a head says of itself, whether or not it leads. ``seen`` by the database's clock."""

    __tablename__ = "head"
    cluster: str = _text(key=True)
    host: str = _text(key=True)
    seen: float
    settings_digest: str = _text()
    key_digest: str = _text()
    version: str = _text()
    alarms: tuple[str, ...] = Field(sa_type=Stored(lambda words: tuple(json.loads(words)), to_json_text))


class RelayedCallRow(TableRow, table=True):
    """A call of one of Slurm's programs at a head that does not lead. ``asked`` by the database's clock.

    ``answer``: empty, until the leader has given one; nobody needs the row after that.
    """

    __tablename__ = "relayed_call"
    id: str = _text(key=True)
    cluster: str = _text()
    program: str = _text()
    line: str = _text()
    asked: float
    state: str = _text()
    """``asked`` or ``taken``: by the leader, who answers it."""
    answer: str = _text()


class MetadataRow(TableRow, table=True):
    """Single words about the cluster: its name, whether burstd is paused ..."""

    __tablename__ = "meta"
    key: str = _text(key=True)
    value: str = _text()


SPENDING, LAUNCH_REQUEST, USER_DATA, SCALE_OVERRIDE, DRAINED_SLOT, BREAKER, PROJECT, METADATA = (
    TableRow.metadata.tables[str(row.__tablename__)]
    for row in (
        SpendingRow, LaunchRequestRow, UserDataRow, ScaleOverrideRow, DrainedSlotRow, BreakerRow, ProjectRow,
        MetadataRow,
    )
)  # fmt: skip
"""Their tables, for conditions."""
LEADER, HEAD, RELAYED_CALL = (
    TableRow.metadata.tables[str(row.__tablename__)] for row in (LeaderTableRow, HeadTableRow, RelayedCallRow)
)
