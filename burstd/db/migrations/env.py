"""Run by Alembic for each command. The connection, and its transaction, are burstd.db.migrate's."""

from __future__ import annotations

from alembic import context

from burstd.db.tables import TableRow

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TableRow.metadata,
    # SQLite cannot alter much: Alembic then makes a new table and copies.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
