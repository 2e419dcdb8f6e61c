"""Whose projects pay for claims, what is held back for them, and what was spent by month."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_KEY = ("kind", "name", "month", "currency", "provider")
_MICRO = Decimal("0.000001")


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
        names = tuple(dict.fromkeys(json.loads(users)))
        for month, seconds in _by_month(since if since is not None else until, until):
            whole = (Decimal(offer["price"]) * Decimal(f"{seconds:.3f}") / 3600).quantize(_MICRO)
            sums["", "", month, offer["currency"], ""] += whole
            for number, user in enumerate(names):
                part, left = divmod(int(whole / _MICRO), len(names))
                sums["user", user, month, offer["currency"], ""] += (part + (number < left)) * _MICRO
    rows = [
        {**dict(zip(_KEY, key, strict=True)), "amount": str(amount), "bytes_out": 0}
        for key, amount in sums.items()
        if amount
    ]
    if rows:
        op.bulk_insert(spent, rows)


def _by_month(since: float, until: float) -> Iterator[tuple[str, float]]:
    """The calendar months (UTC) of a stretch of time, each with its seconds in it."""
    while since < until:
        begin = datetime.fromtimestamp(since, UTC)
        after = datetime(begin.year + begin.month // 12, begin.month % 12 + 1, 1, tzinfo=UTC).timestamp()
        yield f"{begin:%Y-%m}", min(after, until) - since
        since = min(after, until)
