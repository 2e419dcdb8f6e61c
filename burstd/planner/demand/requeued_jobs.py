"""The next try of a job whose last run ended with its machine: when it may start, and on what."""

from __future__ import annotations

from collections.abc import Iterable

from burstd.domain.cloud.offer import Offer
from burstd.domain.project import OVER_QUOTA_PREFIX, QUOTA_PREFIX
from burstd.domain.slurm.job import Job, JobState
from burstd.domain.snapshot import Snapshot

_NONE: frozenset[int] = frozenset()
REQUEUE_DELAY_S = 130.0
"""Slurm keeps a job that was requeued from starting for 121 s: a begin time later than this is somebody's wish."""


def restarts_after_interruption(job: Job, snapshot: Snapshot) -> bool:
    """Whether a job waits for nothing but the time for which Slurm keeps it after a run that was cut short.

    A project's job that ran beyond the quota may have been cut short by slurmctld itself.
    """
    return (
        job.state is JobState.PENDING
        and job.reason == "BeginTime"
        and job.eligible <= snapshot.now + REQUEUE_DELAY_S
        and job.restarts > 0
        and (job.restarts - 1 in snapshot.interruptions.get(job.id, ()) or over_quota(job, snapshot))
    )


def over_quota(job: Job, snapshot: Snapshot) -> bool:
    """Whether it may run, or runs, beyond the quota of a project."""
    return _is_in(job, OVER_QUOTA_PREFIX, snapshot)


def within_quota_only(job: Job, snapshot: Snapshot) -> bool:
    """Whether it may run within the quota of a project, and not beyond it."""
    return _is_in(job, QUOTA_PREFIX, snapshot) and not over_quota(job, snapshot)


def _is_in(job: Job, prefix: str, snapshot: Snapshot) -> bool:
    projects = snapshot.projects.projects
    return any(name.startswith(prefix) and name.removeprefix(prefix) in projects for name in job.partitions)


def interruptions_over_limit(snapshot: Snapshot, jobs: Iterable[str], limit: int) -> int:
    """How often machines were taken from under one of these jobs, where that is often enough to avoid spot; else 0."""
    if not limit or not snapshot.interruptions:
        return 0
    cut, not_spot = snapshot.interruptions, snapshot.interruptions_not_spot
    most = max((len(cut.get(job, _NONE) - not_spot.get(job, _NONE)) for job in jobs), default=0)
    return most if most >= limit else 0


def on_demand_first(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """On-demand offers first, else in their order."""
    return tuple(sorted(offers, key=lambda offer: offer.spot))


def on_demand_reason(offers: tuple[Offer, ...], times: int, whose: str = "its nodes") -> str:
    """What is said of the choice for a job, or jobs that share a machine, of which one has lost so many machines."""
    if not times:
        return ""
    found = "on demand" if offers and not offers[0].spot else "spot, no on-demand offer available"
    return f" ({found}: {whose} were interrupted {times} times)"
