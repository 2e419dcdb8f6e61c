"""Volumes of users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_TEXTS_BEFORE = ("id", "name", "user")
_TEXTS_AFTER = ("provider", "region", "zone", "disk_id", "price", "currency", "job_id", "claim_id", "instance_id")
_TIMES = ("called", "billed_from", "billed_until", "settled_until")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "volume",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in _TEXTS_BEFORE),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("gid", sa.BigInteger(), nullable=False),
        sa.Column("account", _BYTEWISE, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", _BYTEWISE, nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.Column("reason", _BYTEWISE, nullable=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in _TEXTS_AFTER),
        sa.Column("formatted", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Float(), nullable=True) for name in _TIMES),
        sa.Column("error", _BYTEWISE, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_volume"),
    )
    for name in ("created", "billed_until"):
        op.create_index(f"ix_volume_{name}", "volume", [name])
    live = sa.text("state <> 'gone'")
    op.create_index(
        "volume_live_name", "volume", ["uid", "name"], unique=True, sqlite_where=live, postgresql_where=live
    )
