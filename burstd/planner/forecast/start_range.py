"""How far the start of a job may be from what is expected of it."""

from __future__ import annotations

from burstd.domain.slurm.quote import TimeRange

EARLY, LATE = 0.8, 1.5
"""Of the soonest wait, and of the one behind all. Of ten jobs of replayed queues nine started in between, and at least
eight in each queue (tests/bench/bench_quote.py)."""
LEAST_S = 60.0
"""As long may it take from a node's being free until Slurm starts a job on it."""


def site_start_range(now: float, soonest: float, behind_all: float) -> TimeRange:
    """When the site's own nodes start a job, by two looks at the queue.

    ``soonest``: when they would if only those before it that ask for no more than it were there, for small jobs slip
    into gaps before large ones (backfill). ``behind_all``: when they would if all of them start first. Half of the jobs
    have started about where both are as many times apart.
    """
    first, last = max(0.0, min(soonest, behind_all) - now), max(0.0, behind_all - now)
    middle = ((first + LEAST_S) * (last + LEAST_S)) ** 0.5 - LEAST_S
    return TimeRange(now + EARLY * first, now + middle, now + LATE * last + LEAST_S)
