"""Claims that one launch call served."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds a column; claims of before were launched one by one."""
    op.add_column("claim", sa.Column("batch", _BYTEWISE, nullable=False, server_default=sa.text("''")))
