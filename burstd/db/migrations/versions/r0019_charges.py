"""Which jobs ran on machines, and what each machine was charged for; claims of before are shared as they were then."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from burstd.db.codec import from_json
from burstd.db.repositories.charges import charge_rows
from burstd.domain.billing.use import shared_charges
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.offer import Offer

revision = "0019"
down_revision = "0018"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_GONE = sa.text(
    "SELECT id, pool, offer, jobs, users, accounts, billed_from, billed_until, in_service_from, reused_from, error"
    " FROM claim WHERE state = 'gone' AND billed_until > billed_from"
)


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
        offer = from_json(Offer, json.loads(row["offer"]))
        plain = {
            **row,
            **{name: tuple(json.loads(row[name])) for name in ("jobs", "users", "accounts")},
            "offer": offer,
        }
        claim = Claim(cluster="", slot="", cause=Cause.DEMAND, state=ClaimState.GONE, created=0.0, since=0.0, **plain)
        if rows := charge_rows(claim, shared_charges(claim)):
            op.bulk_insert(charge, rows)
