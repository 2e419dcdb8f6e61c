"""Calls of Slurm's programs at a head that does not lead."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0028"
down_revision = "0027"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "relayed_call",
        *(
            sa.Column(name, _BYTEWISE, nullable=False)
            for name in ("id", "cluster", "program", "line", "state", "answer")
        ),
        sa.Column("asked", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_relayed_call"),
    )
