"""States of jobs' data, and a field of claims, have new names, in the rows and in the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_STATES = {
    "sending": "uploading", "placing": "fetching", "placed": "fetched", "bringing": "delivering", "home": "delivered",
}  # fmt: skip
_STAGING = sa.table("staging", sa.column("state", sa.Text()), sa.column("resume", sa.Text()))
_EVENT = sa.table("event", *(sa.column(name, sa.Text()) for name in ("subject", "old", "new", "data")))


def upgrade() -> None:
    """Rewrites the values; a remark holds a verdict, no state."""
    op.execute("ALTER TABLE claim RENAME COLUMN alone TO dedicated_by_policy")
    no_remark = ~_EVENT.c.data.contains('"remark":true')
    about_claims = _EVENT.c.subject.startswith("claim:") & no_remark
    about_data = _EVENT.c.subject.startswith("stage:") & no_remark
    for table, column, rows in (
        (_STAGING, _STAGING.c.state, sa.true()),
        (_STAGING, _STAGING.c.resume, sa.true()),
        (_EVENT, _EVENT.c.old, about_data),
        (_EVENT, _EVENT.c.new, about_data),
    ):
        renamed = {column.name: sa.case(_STATES, value=column, else_=column)}
        op.execute(sa.update(table).where(column.in_(_STATES), rows).values(renamed))
    # The JSON has no spaces between key and value, and quotes within a text are escaped: no text matches.
    words = [(about_claims, '"alone":', '"dedicated_by_policy":')]
    for key in ("state", "resume"):
        words += [(about_data, f'"{key}":"{old}"', f'"{key}":"{new}"') for old, new in _STATES.items()]
    for rows, before, after in words:
        data = sa.func.replace(_EVENT.c.data, before, after)
        op.execute(sa.update(_EVENT).where(rows, _EVENT.c.data.contains(before, autoescape=True)).values(data=data))
