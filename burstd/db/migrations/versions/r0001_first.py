"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_LIVE = sa.text("state <> 'gone'")


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, _BYTEWISE, primary_key=key, nullable=False)


def _number(name: str, *, key: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), primary_key=key, autoincrement=False, nullable=False)


def _time(name: str, *, null: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Float(), nullable=null)


def upgrade() -> None:
    """From nothing."""
    op.create_table(
        "claim",
        _text("id", key=True),
        *(_text(n) for n in ("cluster", "pool", "slot", "provider", "offer", "cause", "state")),
        _time("created"),
        _time("since"),
        *(_text(n) for n in ("reason", "jobs", "users", "gang", "image", "instance_id", "address")),
        *(_time(n, null=True) for n in ("launch_called", "billed_from", "billed_until", "opened")),
        _number("attempts"),
        _text("error"),
    )
    op.create_index("claim_live_slot", "claim", ["slot"], unique=True, sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.create_index("claim_live", "claim", ["state"], sqlite_where=_LIVE, postgresql_where=_LIVE)
    op.create_index("claim_pool_created", "claim", ["pool", "created"])
    for column in ("created", "launch_called", "billed_until"):
        op.create_index(f"ix_claim_{column}", "claim", [column])
    for what in ("job", "user"):
        op.create_table(f"claim_{what}", _text(what, key=True), _text("claim_id", key=True))
        op.create_index(f"ix_claim_{what}_claim_id", f"claim_{what}", ["claim_id"])
    op.create_table("launch_request", _text("claim_id", key=True), _text("body"), _text("user_data"), _time("recorded"))
    op.create_index("ix_launch_request_user_data", "launch_request", ["user_data"])
    op.create_table("user_data", _text("digest", key=True), _text("body"))
    op.create_table(
        "event",
        sa.Column("seq", sa.Integer(), primary_key=True, autoincrement=True, nullable=False),
        _time("time"),
        *(_text(n) for n in ("subject", "old", "new", "reason", "cause", "data")),
        sqlite_autoincrement=True,
    )
    op.create_index("event_subject_seq", "event", ["subject", "seq"])
    op.create_index("ix_event_time", "event", ["time"])
    op.create_table(
        "remark",
        _text("subject", key=True),
        _number("position", key=True),
        *(_text(n) for n in ("by", "verdict", "reason")),
        _time("since"),
        _time("written"),
    )
    op.create_index("ix_remark_written", "remark", ["written"])
    op.create_table(
        "pin",
        _text("pool", key=True),
        _text("kind", key=True),
        _number("nodes"),
        _time("until", null=True),
        _text("by"),
        _time("created"),
    )
    op.create_table("held_slot", _text("slot", key=True), _text("by"), _text("reason"), _time("since"))
    op.create_table(
        "breaker", _text("key", key=True), _text("cause", key=True), _number("failures"), _time("until"), _text("error")
    )
    op.create_table("meta", _text("key", key=True), _text("value"))
