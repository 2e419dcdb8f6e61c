"""Numbers that clouds say, kept within what can be. Everything that is made of them counts on that."""

from __future__ import annotations

import math

LAST_S = 4e9
"""No time that a cloud says is later, in seconds since 1970: that is in 2096."""
RETRY_AFTER_S = 3600.0
PLACING_S = 86400.0
PRICE = 10**9
"""Of one machine for an hour, in any currency."""
CPUS, MEMORY_MIB, GRES = 10**6, 10**9, 10**5
"""Of one machine."""


def bounded(seconds: float, most: float) -> float:
    """The length of time, between 0 and ``most``; 0 where it is no number."""
    try:
        value = float(seconds)
    except (OverflowError, TypeError, ValueError):
        return 0.0
    return min(max(value, 0.0), most) if not math.isnan(value) else 0.0


def moment(seconds: float) -> float:
    """The time since 1970; 0, which stands for not known, where it cannot be one."""
    try:
        value = float(seconds)
    except (OverflowError, TypeError, ValueError):
        return 0.0
    return value if 0.0 <= value <= LAST_S else 0.0
