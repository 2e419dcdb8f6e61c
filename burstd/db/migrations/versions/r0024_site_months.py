"""Nodes of the site in closed months: what runs that go on cost in these is on record, and which nodes a run has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_RUN = ("job", "node_group", "run_start", "user", "account", "partition", "currency")
_DAY_S = 86400


def upgrade() -> None:
    """Adds the columns; a correction has a row of its own beside the charge of its day."""
    op.add_column("site_run", sa.Column("nodes", _BYTEWISE, nullable=False, server_default=sa.text("''")))
    for name, kind, default in (
        ("site_charges", sa.BigInteger(), "0"),
        ("site_totals", _BYTEWISE, "'{}'"),
        ("site_sha256", _BYTEWISE, "''"),
    ):
        op.add_column("closed_month", sa.Column(name, kind, nullable=False, server_default=sa.text(default)))
    connection = op.get_bind()
    connection.execute(sa.text("CREATE TABLE site_charge_before AS SELECT * FROM site_charge"))
    op.drop_table("site_charge")
    empty = sa.text("''")
    charge = op.create_table(
        "site_charge",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("job", "node_group")),
        sa.Column("run_start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("corrects", _BYTEWISE, nullable=False, server_default=empty),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("user", "account", "partition", "currency")),
        sa.Column("nodes", _BYTEWISE, nullable=False, server_default=empty),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("amount", "milliseconds")),
        sa.PrimaryKeyConstraint("day", "job", "node_group", "run_start", "corrects", name="pk_site_charge"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_site_charge_job", "site_charge", ["job"])
    columns = ", ".join(f'"{name}"' for name in ("day", *_RUN, "amount", "milliseconds"))
    connection.execute(
        sa.text(f"INSERT INTO site_charge ({columns}) SELECT {columns} FROM site_charge_before")  # noqa: S608
    )
    op.drop_table("site_charge_before")
    if closed := connection.execute(sa.text("SELECT max(month) FROM closed_month")).scalar():
        year, number = int(closed[:4]), int(closed[5:])
        first_open = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()
        for row in connection.execute(sa.text("SELECT * FROM site_run")).mappings().all():
            if rows := [*_charges(row, first_open)]:
                op.bulk_insert(charge, rows)


def _charges(row: Mapping[Any, Any], end: float) -> Iterator[dict[str, object]]:
    """Of a run that goes on, by day up to the end of the last closed month."""
    begin, length, at, cost, time = row["started"], round((end - row["started"]) * 1000), 0, 0, 0
    while at < length:
        day = int((begin + (at + 0.5) / 1000) // _DAY_S)
        at = max(at + 1, min(length, round(((day + 1) * _DAY_S - begin) * 1000)))
        cost_then, time_then = round(Decimal(row["price"]) * at * 1000 / 3600), at * row["share"] // 10**6
        yield {**{name: row[name] for name in _RUN}, "day": day, "amount": cost_then - cost,
               "milliseconds": time_then - time}  # fmt: skip
        cost, time = cost_then, time_then
