"""What has been spent, and what a machine may cost at most."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Spent:
    """What machines that are gone have cost somebody in one calendar month (UTC)."""

    kind: str
    """``project`` (a Slurm account), ``user``, or empty: all together."""
    name: str
    month: str
    """``2026-11``."""
    currency: str
    amount: Decimal
