"""Jobs of projects that another limit than their project's keeps back: of their user, their account or their own QOS.

slurmctld gives one reason of several, that of the partition's QOS first: while ``o-NAME`` has nothing left such a job
shows ``QOSGrpGRES``, as one does that waits for its project's share. Taken for that it would have GPUs taken back from
others, not start (``QOSMaxGRESPerUser``), lose the share again, and show ``QOSGrpGRES`` again: a round takes a minute.
So what slurmctld has once said of a job is kept in mind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from burstd.domain.slurm.job import PENDING_STATES, Job
from burstd.domain.slurm.shape import SHARD, gpus_of
from burstd.domain.snapshot import KnownLimit, SlurmView, Snapshot
from burstd.planner.demand.pending_reasons import is_limit
from burstd.planner.demand.requeued_jobs import over_quota

SHARE_REASONS = frozenset({"QOSGrpGRES", "QOSGrpBilling"})
"""Of a project's job: what its share or quota allows is in use now. Slurm shows this or ``Resources``, as it comes."""
LIMIT_TTL_S = 600.0
"""After so long a job is believed anew: the limit may have been raised."""


def limited_jobs(known: Mapping[str, KnownLimit], snapshot: Snapshot) -> dict[str, KnownLimit]:
    """The new ``RuntimeState.limited_jobs`` from the one before. Unchanged where Slurm could not be read.

    A job is forgotten once slurmctld says that it waits for nodes, or a job of its user or account has ended, which the
    limit may be of. What is known of a job is known of those of the same user and account that ask for as many GPUs.
    """
    if not isinstance(snapshot.slurm, SlurmView) or not snapshot.projects.projects:
        return dict(known)
    limits: dict[str, bool] = {}
    told: list[Job] = []
    waiting: list[Job] = []
    running: Counter[str] = Counter()
    for job in snapshot.slurm.jobs:
        if job.state not in PENDING_STATES:
            running.update((job.user, f"account {job.account}"))
        elif job.reason in SHARE_REASONS:
            waiting.append(job)
        elif limits.setdefault(job.reason, is_limit(job.reason)) and over_quota(job, snapshot):
            told.append(job)

    def runs(job: Job) -> tuple[int, int]:
        return running[job.user], running[f"account {job.account}"]

    found = {job.id: KnownLimit(snapshot.now, *runs(job)) for job in told}
    least: dict[tuple[str, str, bool], tuple[int, KnownLimit]] = {}
    for job in told:
        _note_least(least, job, found[job.id])
    for job in waiting:
        limit = known.get(job.id)
        if limit is not None and snapshot.now - limit.since < LIMIT_TTL_S and _still_run(limit, runs(job)):
            found[job.id] = limit
            _note_least(least, job, limit)
    for job in waiting if least else ():
        gpus, limit = least.get(_alike(job), (0, None))
        if limit is not None and _gpus(job) >= gpus:
            found.setdefault(job.id, limit)
    return found


def _still_run(limit: KnownLimit, runs: tuple[int, int]) -> bool:
    return runs[0] >= limit.user_runs and runs[1] >= limit.account_runs


def _note_least(least: dict[tuple[str, str, bool], tuple[int, KnownLimit]], job: Job, limit: KnownLimit) -> None:
    key, gpus = _alike(job), _gpus(job)
    if key not in least or gpus < least[key][0]:
        least[key] = gpus, limit


def _alike(job: Job) -> tuple[str, str, bool]:
    """Jobs that the same limit may be of: shares of a GPU have a limit of their own."""
    return job.user, job.account, any(g.name == SHARD for g in (*job.gres_per_node, *job.gres_per_job))


def _gpus(job: Job) -> int:
    """As a measure of what a limit counts: shares of a GPU as one."""
    return int(gpus_of(job.gres_per_node, 1) * max(1, job.nodes) + gpus_of(job.gres_per_job, 1))
