"""Which jobs run on nodes of the site's own, and what each run was charged by the site's prices."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the tables."""
    name = ("job", "node_group")
    payer = ("user", "account", "partition", "currency")
    op.create_table(
        "site_run",
        *(sa.Column(column, _BYTEWISE, nullable=False) for column in name),
        sa.Column("run_start", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(column, _BYTEWISE, nullable=False) for column in payer),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("share", sa.BigInteger(), nullable=False),
        sa.Column("price", _BYTEWISE, nullable=False),
        sa.PrimaryKeyConstraint("job", "node_group", "run_start", name="pk_site_run"),
    )
    op.create_table(
        "site_charge",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        *(sa.Column(column, _BYTEWISE, nullable=False) for column in name),
        sa.Column("run_start", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(column, _BYTEWISE, nullable=False) for column in payer),
        *(sa.Column(column, sa.BigInteger(), nullable=False) for column in ("amount", "milliseconds")),
        sa.PrimaryKeyConstraint("day", "job", "node_group", "run_start", name="pk_site_charge"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_site_charge_job", "site_charge", ["job"])
