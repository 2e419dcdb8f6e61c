"""What jobs used of their nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0013"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_OPEN = sa.text("ended IS NULL")


def upgrade() -> None:
    """Adds the table, empty: nobody has measured so far."""
    op.create_table(
        "job_use",
        *(sa.Column(name, _BYTEWISE, primary_key=True, nullable=False) for name in ("job", "node")),
        sa.Column("restarts", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("number", "user", "account", "partition")),
        sa.Column("nodes_allocated", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("written", sa.Float(), nullable=False),
        sa.Column("ended", sa.Float()),
        sa.Column("summary", _BYTEWISE, nullable=False),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
    )
    op.create_index("ix_job_use_written", "job_use", ["written"])
    op.create_index("job_use_open", "job_use", ["job"], sqlite_where=_OPEN, postgresql_where=_OPEN)
