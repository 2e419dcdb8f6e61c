"""Projects that were made, or changed, by ``burstctl project``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "project",
        sa.Column("name", _BYTEWISE, nullable=False),
        sa.Column("values", _BYTEWISE, nullable=False),
        sa.Column("created", sa.Integer(), nullable=False),
        sa.Column("pending", _BYTEWISE, nullable=False),
        sa.Column("by", _BYTEWISE, nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_project"),
    )
