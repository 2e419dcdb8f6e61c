"""Brings a database to the schema of this program, in one transaction; refuses one that is ahead of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from burstd.db.errors import StoreBroken, StoreNewer

if TYPE_CHECKING:
    from alembic.config import Config

SCHEMA_VERSION = "0028"
"""The schema that this program reads and writes."""
_SCRIPTS = Path(__file__).parent / "migrations"


def alembic_config() -> Config:
    """Alembic's configuration; there is no alembic.ini."""
    from alembic.config import Config  # noqa: PLC0415  a start of burstd with a current schema does without Alembic

    made = Config()
    made.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return made


def schema_version(connection: Connection) -> str:
    """The schema that the database has; empty: none yet. Raises StoreBroken for somebody else's tables."""
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" in tables:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "")
    if tables:
        raise StoreBroken(
            f"The database holds tables that are not burstd's ({', '.join(sorted(tables)[:5])}); "
            "set daemon.database to an empty or a new one."
        )
    return ""


def schema_is_current(connection: Connection, location: str) -> bool:
    """True where the schema is this program's. Raises StoreNewer."""
    found = schema_version(connection)
    if found == SCHEMA_VERSION:
        return True
    if not found:
        return False
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    if found not in {s.revision for s in ScriptDirectory.from_config(alembic_config()).walk_revisions()}:
        raise StoreNewer(
            f"The database {location} was written by a newer burstd (schema {found}; this one knows up to "
            f"{SCHEMA_VERSION}); "
            "install that version again, or restore the backup that you made before the upgrade."
        )
    return False


def upgrade_schema(connection: Connection) -> None:
    """Runs the migrations that are missing, in the connection's transaction."""
    from alembic import command  # noqa: PLC0415

    ready = alembic_config()
    ready.attributes["connection"] = connection
    command.upgrade(ready, "head")
