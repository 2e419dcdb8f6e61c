"""The data of a task of an array has the task's id in the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column: of data that is there nobody knows it."""
    op.add_column("staging", sa.Column("array_task", _BYTEWISE, nullable=False, server_default=sa.text("''")))
    op.create_index("ix_staging_array_task", "staging", ["array_task"])
