"""Times are burstd's own steady count, which the head's clock no longer sets; an older burstd does not read it.

The rows stay as they are: times of before were the system's seconds since 1970, and burstd counts on from the latest.
An older burstd would write the system's time beside them, and bill machines and end them by the difference.
"""

from __future__ import annotations

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Raises the number of the schema alone, so that an older burstd refuses the record."""
