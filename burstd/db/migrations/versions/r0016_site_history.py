"""Samples of what the site asked for, had and paid."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "site_history",
        sa.Column("part", _BYTEWISE, nullable=False),
        sa.Column("step_s", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("part", "step_s", "time", name="pk_site_history"),
    )
