"""How far the start of a job may be from what is expected of it."""

from __future__ import annotations

from burstd.domain.slurm.outlook import Outlook
from burstd.domain.slurm.quote import TimeRange

EARLY, LATE = 0.25, 2.5
"""Of 10 jobs, one starts before the first of these parts of the wait that was expected, and one after the second."""
LEAST_S = 60.0
"""As long may it take from a node's being free until Slurm starts a job on it."""


def site_start_range(now: float, outlook: Outlook) -> TimeRange:
    """When the site's own nodes start the job; it must be expected to start there."""
    wait = max(0.0, outlook.local_start - now)
    return TimeRange(now + EARLY * wait, now + wait, now + LATE * wait + LEAST_S)
