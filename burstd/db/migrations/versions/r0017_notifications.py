"""Messages to people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "notification",
        sa.Column("id", _BYTEWISE, nullable=False),
        sa.Column("way", _BYTEWISE, nullable=False),
        sa.Column("time", sa.Float(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due", sa.Float(), nullable=False),
        sa.Column("state", _BYTEWISE, nullable=False),
        sa.Column("message", _BYTEWISE, nullable=False),
        sa.PrimaryKeyConstraint("id", "way", name="pk_notification"),
    )
    op.create_index("ix_notification_time", "notification", ["time"])
