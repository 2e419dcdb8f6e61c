"""Checkpoints of jobs, and why the last one failed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds columns; jobs of before have no checkpoint."""
    for name, empty in (("checkpoints", "[]"), ("checkpoint_error", "")):
        op.add_column("staging", sa.Column(name, _BYTEWISE, nullable=False, server_default=sa.text(f"'{empty}'")))
