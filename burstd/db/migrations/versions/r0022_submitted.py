"""When jobs that have ended were submitted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Adds the column; of jobs of before it is not known."""
    op.add_column("ended_job", sa.Column("submitted", sa.Float(), nullable=True))
