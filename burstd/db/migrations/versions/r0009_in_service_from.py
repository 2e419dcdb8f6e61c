"""The time at which a claim first came into service has a new name, in the rows and in the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_EVENT = sa.table("event", sa.column("subject", sa.Text()), sa.column("data", sa.Text()))


def upgrade() -> None:
    """Renames the column, and the key in the log's JSON: quotes within a text are escaped, so no text matches."""
    op.execute("ALTER TABLE claim RENAME COLUMN opened TO in_service_from")
    about_claims = _EVENT.c.subject.startswith("claim:") & ~_EVENT.c.data.contains('"remark":true')
    data = sa.func.replace(_EVENT.c.data, '"opened":', '"in_service_from":')
    op.execute(sa.update(_EVENT).where(about_claims, _EVENT.c.data.contains('"opened":')).values(data=data))
