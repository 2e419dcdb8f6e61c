"""Which jobs ran on machines, and what each machine was charged for; claims of before are shared as they were then."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from math import lcm
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_GONE = sa.text(
    "SELECT id, pool, provider, offer, jobs, users, accounts, billed_from, billed_until, in_service_from, reused_from,"
    " error FROM claim WHERE state = 'gone' AND billed_until > billed_from"
)
_DAY_MS = 86_400_000


def upgrade() -> None:
    """Adds the tables."""
    op.create_table(
        "claim_run",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("claim_id", "job")),
        sa.Column("run_start", sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("user", "account", "partition")),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("share", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Float()),
        sa.PrimaryKeyConstraint("claim_id", "job", "run_start", name="pk_claim_run"),
    )
    op.create_index("ix_claim_run_job", "claim_run", ["job"])
    is_open = sa.text("ended IS NULL")
    op.create_index("claim_run_open", "claim_run", ["claim_id"], sqlite_where=is_open, postgresql_where=is_open)
    charge = op.create_table(
        "charge",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("claim_id", _BYTEWISE, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        *(
            sa.Column(name, _BYTEWISE, nullable=False)
            for name in ("kind", "cause", "job", "user", "account", "partition", "pool", "provider", "currency")
        ),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in ("amount", "milliseconds")),
        sa.PrimaryKeyConstraint("day", "claim_id", "number", name="pk_charge"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_charge_claim_id", "charge", ["claim_id"])
    op.create_index("ix_charge_job", "charge", ["job"])
    connection = op.get_bind()
    for row in connection.execute(_GONE).mappings().all():
        if rows := list(_charges(row)):
            op.bulk_insert(charge, rows)


def _charges(row: Mapping[Any, Any]) -> Iterator[dict[str, object]]:
    """The cost of a claim in equal parts, in each day (UTC) what it grew by; nobody pays for one that failed."""
    offer = json.loads(row["offer"])
    was_node = row["in_service_from"] is not None or row["reused_from"]
    failed = row["error"] == "health" or not (was_node or row["error"] in ("", "unwanted", "too_late"))
    payers = [(("",) * 3, 1)] if failed else _payers(*(json.loads(row[name]) for name in ("jobs", "users", "accounts")))
    begin, number, before, at = round(row["billed_from"] * 1000), 0, 0, 0
    length = round((row["billed_until"] - row["billed_from"]) * 1000)
    while at < length:
        day = (begin + at) // _DAY_MS
        to = min(length, (day + 1) * _DAY_MS - begin)
        cost = round(Decimal(offer["price"]) * to / 3600 * 1000)
        parts = [weight for _, weight in payers]
        shares = zip(payers, _split(cost - before, parts), _split(to - at, parts), strict=True)
        for ((job, user, account), _), amount, milliseconds in shares:
            yield {
                "day": day, "claim_id": row["id"], "number": number, "kind": "failed" if failed else "shared",
                "cause": "", "job": job, "user": user, "account": account, "partition": "", "pool": row["pool"],
                "provider": row["provider"], "currency": offer["currency"], "amount": amount,
                "milliseconds": milliseconds,
            }  # fmt: skip
            number += 1
        before, at = cost, to


def _payers(jobs: list[str], users: list[str], accounts: list[str]) -> list[tuple[tuple[str, ...], int]]:
    """With weights by which each list has equal parts; where there are several users none of the jobs is named."""
    lists = [list(dict.fromkeys(some)) or [""] for some in (jobs if len(set(users)) <= 1 else [], users, accounts)]
    whole = lcm(*map(len, lists))
    cuts = sorted({whole * n // len(some) for some in lists for n in range(len(some) + 1)})
    return sorted((tuple(some[at * len(some) // whole] for some in lists), to - at) for at, to in pairwise(cuts))


def _split(whole: int, weights: list[int]) -> list[int]:
    """By largest remainder."""
    parts = [divmod(whole * weight, sum(weights)) for weight in weights]
    order = sorted(range(len(parts)), key=lambda n: -parts[n][1])
    more = set(order[: whole - sum(part for part, _ in parts)])
    return [part + (n in more) for n, (part, _) in enumerate(parts)]
