"""What jobs used, by when Slurm started the run too: Slurm gives ids of jobs again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"

_BYTEWISE = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_OPEN = sa.text("ended IS NULL")


def upgrade() -> None:
    """Makes the table anew, with its rows. What they have as start is Slurm's, in burstd's time."""
    new = op.create_table(
        "job_use_runs",
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("job", "node")),
        *(sa.Column(name, sa.BigInteger(), nullable=False, autoincrement=False) for name in ("restarts", "run_start")),
        *(sa.Column(name, _BYTEWISE, nullable=False) for name in ("number", "user", "account", "partition")),
        sa.Column("nodes_allocated", sa.BigInteger(), nullable=False),
        sa.Column("started", sa.Float(), nullable=False),
        sa.Column("written", sa.Float(), nullable=False),
        sa.Column("ended", sa.Float()),
        sa.Column("summary", _BYTEWISE, nullable=False),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job", "node", "restarts", "run_start", name="pk_job_use_run"),
    )
    kept = [column.name for column in new.c if column.name != "run_start"]
    before = sa.table("job_use", *map(sa.column, kept))
    rows = sa.select(*before.c, sa.cast(sa.func.round(before.c.started), sa.BigInteger()))
    op.execute(sa.insert(new).from_select([*kept, "run_start"], rows))
    op.drop_table("job_use")
    op.rename_table("job_use_runs", "job_use")
    op.create_index("ix_job_use_written", "job_use", ["written"])
    op.create_index("job_use_open", "job_use", ["job"], sqlite_where=_OPEN, postgresql_where=_OPEN)
