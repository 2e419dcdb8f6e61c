"""Runs of jobs that are over, and claims for their own jobs only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds a column, and a table that is empty: predictions go by time limits until jobs have ended."""
    op.add_column("claim", sa.Column("alone", sa.Integer(), nullable=False, server_default=sa.text("0")))
    op.create_table(
        "ended_job",
        sa.Column("id", _BYTEWISE, primary_key=True, nullable=False),
        sa.Column("started", sa.Float(), primary_key=True, nullable=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("user", "account", "name", "partitions")),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("nodes", "cpus", "gpus")),
        *(sa.Column(name, sa.Float(), nullable=False) for name in ("time_limit_s", "eligible", "ended")),
        sa.Column("burst", sa.Integer(), nullable=False),
    )
    op.create_index("ix_ended_job_ended", "ended_job", ["ended"])
