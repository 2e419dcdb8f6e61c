"""What volumes were charged: all of those that are gone, and of others what is of closed months."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"

_BILLED = sa.text(
    'SELECT id, "user", account, provider, currency, price, state, billed_from, billed_until FROM volume'
    " WHERE billed_from IS NOT NULL"
)
_TEXTS = (
    "claim_id",
    "kind",
    "cause",
    "job",
    "user",
    "account",
    "partition",
    "pool",
    "provider",
    "currency",
    "corrects",
)
_NUMBERS = ("day", "number", "amount", "milliseconds")
_CHARGE = sa.table(
    "charge",
    *(sa.column(name, sa.Text) for name in _TEXTS),
    *(sa.column(name, sa.BigInteger) for name in _NUMBERS),
)
_DAY_S = 86400


def upgrade() -> None:
    """Writes the rows."""
    connection = op.get_bind()
    closed = connection.execute(sa.text("SELECT max(month) FROM closed_month")).scalar()
    first_open = _end_of(closed) if closed else 0.0
    for row in connection.execute(_BILLED).mappings().all():
        if rows := [*_charges(row, first_open)]:
            op.bulk_insert(_CHARGE, rows)


def _end_of(month: str) -> float:
    year, number = int(month[:4]), int(month[5:])
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC).timestamp()


def _charges(row: Mapping[Any, Any], first_open: float) -> Iterator[dict[str, object]]:
    """A day costs what the cost of the volume grew by in it."""
    begin, end = row["billed_from"], row["billed_until"]
    if row["state"] != "gone":
        end = first_open if end is None else min(end, first_open)
    length = 0 if end is None else round((end - begin) * 1000)
    day, number, before, at = int(begin // _DAY_S), 0, 0, 0
    while at < length:
        to = min(length, round(((day + 1) * _DAY_S - begin) * 1000))
        cost = round(Decimal(row["price"]) * to * 1000 / 3600)
        yield {
            **dict.fromkeys(_TEXTS, ""), "claim_id": row["id"], "kind": "volume", "user": row["user"],
            "account": row["account"], "provider": row["provider"], "currency": row["currency"], "day": day,
            "number": number, "amount": cost - before, "milliseconds": to - at,
        }  # fmt: skip
        day, number, before, at = day + 1, number + 1, cost, to
