"""Bytes that a charge of traffic is for; what was spent has amounts only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_KEY = ("kind", "name", "month", "currency")


def upgrade() -> None:
    """Adds the column. Bytes that budgets counted before had no price on record: they are dropped."""
    op.add_column("charge", sa.Column("bytes_out", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    names = (*_KEY, "amount")
    query = f"SELECT {', '.join(names)} FROM spent WHERE currency <> ''"  # noqa: S608 - of columns
    rows = [dict(zip(names, row, strict=True)) for row in op.get_bind().execute(sa.text(query))]
    op.drop_table("spent")
    spent = op.create_table(
        "spent",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in names),
        sa.PrimaryKeyConstraint(*_KEY, name="pk_spent"),
    )
    if rows:
        op.bulk_insert(spent, rows)
