"""``[bill]``: who is charged for what no job used."""

from __future__ import annotations

from pydantic import Field

from burstd.domain.billing.use import IdleMode
from burstd.settings.fields import RESTART, Section


class BillSettings(Section):
    """``[bill]``."""

    idle: IdleMode = Field(default=IdleMode.APART, json_schema_extra=RESTART)
