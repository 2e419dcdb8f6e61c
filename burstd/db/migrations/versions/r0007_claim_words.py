"""States of claims, and causes of their failure, have new names, in the rows and in the log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_STATES = {"proving": "validating", "open": "in_service", "closing": "draining"}
_CAUSES = {"proof": "validation", "proof_timeout": "validation_timeout"}
_CLAIM = sa.table("claim", sa.column("state", sa.Text()), sa.column("error", sa.Text()))
_BREAKER = sa.table("breaker", sa.column("cause", sa.Text()))
_EVENT = sa.table("event", *(sa.column(name, sa.Text()) for name in ("subject", "old", "new", "cause", "data")))


def upgrade() -> None:
    """Rewrites the values; a remark about a claim holds a verdict, no state."""
    about_claims = _EVENT.c.subject.startswith("claim:") & ~_EVENT.c.data.contains('"remark":true')
    about_breakers = _EVENT.c.subject.startswith("breaker:")
    for table, column, names, rows in (
        (_CLAIM, _CLAIM.c.state, _STATES, sa.true()),
        (_CLAIM, _CLAIM.c.error, _CAUSES, sa.true()),
        (_BREAKER, _BREAKER.c.cause, _CAUSES, sa.true()),
        (_EVENT, _EVENT.c.old, _STATES, about_claims),
        (_EVENT, _EVENT.c.new, _STATES, about_claims),
        (_EVENT, _EVENT.c.cause, _CAUSES, about_breakers),
    ):
        renamed = {column.name: sa.case(names, value=column, else_=column)}
        op.execute(sa.update(table).where(column.in_(names), rows).values(renamed))
    for key, names in (("state", _STATES), ("error", _CAUSES)):
        for old, new in names.items():
            # The JSON has no spaces between key and value, and quotes within a text are escaped: no text matches.
            before, after = f'"{key}":"{old}"', f'"{key}":"{new}"'
            holds_it = _EVENT.c.data.contains(before, autoescape=True)
            data = sa.func.replace(_EVENT.c.data, before, after)
            op.execute(sa.update(_EVENT).where(about_claims, holds_it).values(data=data))
