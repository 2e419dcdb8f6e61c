"""``[volumes]``: disks of users in clouds, which stay when their jobs end. Without ``prices`` there are none."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from burstd.settings.fields import RESTART, Name, Section, Size

MonthlyPrice = Annotated[Decimal, Field(ge=0, le=1_000_000, allow_inf_nan=False, strict=False)]


class VolumeSettings(Section):
    """The whole table."""

    prices: dict[Name, MonthlyPrice] = Field(default_factory=dict, json_schema_extra=RESTART)
    """By provider that has volumes: of one GiB for a month of 730 hours, in the currency of its offers."""
    max_size: Size | None = None
    user_size: Size | None = None
