"""The data of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")


def _text(name: str, *, key: bool = False) -> sa.Column[str]:
    return sa.Column(name, _BYTEWISE, primary_key=key, nullable=False)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _time(name: str) -> sa.Column[float]:
    return sa.Column(name, sa.Float(), nullable=False)


def upgrade() -> None:
    """Adds a table."""
    op.create_table(
        "staging",
        _text("job_id", key=True),
        _text("user"),
        _whole("uid"),
        _whole("gid"),
        _text("directives"),
        _text("state"),
        _time("since"),
        _time("created"),
        *(_text(n) for n in ("store", "account", "work_dir", "trees", "nodes", "outputs", "job_state", "exit_code")),
        *(_whole(n) for n in ("bytes_in", "bytes_sent", "bytes_out")),
        _time("estimated_ready"),
        _time("staged"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        *(_text(n) for n in ("error", "resume", "reason")),
    )
    for column in ("user", "state", "created"):
        op.create_index(f"ix_staging_{column}", "staging", [column])
