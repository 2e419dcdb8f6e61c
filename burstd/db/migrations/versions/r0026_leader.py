"""Which head leads, and what each head says of itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0026"
down_revision = "0025"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "leader",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("cluster", "holder", "settings_digest", "version")),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name="pk_leader"),
    )
    names = ("cluster", "host", "settings_digest", "key_digest", "version", "alarms")
    op.create_table(
        "head",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in names),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "host", name="pk_head"),
    )
