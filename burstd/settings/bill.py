"""``[bill]``: who is charged for what no job used, and when months are closed."""

from __future__ import annotations

from pydantic import Field

from burstd.domain.billing.use import IdleMode
from burstd.settings.fields import RESTART, Count, Section


class BillSettings(Section):
    """``[bill]``."""

    idle: IdleMode = Field(default=IdleMode.APART, json_schema_extra=RESTART)
    close_after_days: Count = 5
    keep_years: Count = 10
