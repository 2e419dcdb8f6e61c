"""Machines that were the node of another slot before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column; so far every machine was launched for its slot."""
    op.add_column("claim", sa.Column("reused_from", _BYTEWISE, nullable=False, server_default=sa.text("''")))
