"""Whose projects pay for claims, what is held back for them, and what was spent by month."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from burstd.domain.billing.costs import by_month, cost_of, cost_shares

revision = "0005"
down_revision = "0004"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_KEY = ("kind", "name", "month", "currency", "provider")


def upgrade() -> None:
    """Adds columns and a table. Claims of before had no projects on record: they count for users and in the total."""
    for name, empty in (("accounts", "[]"), ("reserved", "0"), ("egress", "0")):
        op.add_column("claim", sa.Column(name, _BYTEWISE, nullable=False, server_default=sa.text(f"'{empty}'")))
    spent = op.create_table(
        "spent",
        *(sa.Column(name, _BYTEWISE, primary_key=True, nullable=False) for name in _KEY),
        sa.Column("amount", _BYTEWISE, nullable=False),
        sa.Column("bytes_out", sa.BigInteger(), nullable=False),
    )
    query = "SELECT offer, users, billed_from, billed_until FROM claim WHERE state = 'gone' AND billed_until > 0"
    sums: dict[tuple[str, ...], Decimal] = defaultdict(Decimal)
    for offer_text, users, since, until in op.get_bind().execute(sa.text(query)):
        offer = json.loads(offer_text)
        for month, seconds in by_month(since if since is not None else until, until):
            whole = cost_of(Decimal(offer["price"]), seconds)
            sums["", "", month, offer["currency"], ""] += whole
            for user, share in cost_shares(whole, json.loads(users)).items():
                sums["user", user, month, offer["currency"], ""] += share
    rows = [
        {**dict(zip(_KEY, key, strict=True)), "amount": str(amount), "bytes_out": 0}
        for key, amount in sums.items()
        if amount
    ]
    if rows:
        op.bulk_insert(spent, rows)
