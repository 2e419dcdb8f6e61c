"""Months whose charges stay as they are, and charges that put such a month right."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table and the column."""
    op.add_column("charge", sa.Column("corrects", _BYTEWISE, nullable=False, server_default=sa.text("''")))
    op.create_table(
        "closed_month",
        sa.Column("month", _BYTEWISE, nullable=False),
        sa.Column("closed", sa.Float(), nullable=False),
        sa.Column("rule", sa.Integer(), nullable=False),
        sa.Column("charges", sa.BigInteger(), nullable=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("totals", "sha256")),
        sa.PrimaryKeyConstraint("month", name="pk_closed_month"),
    )
