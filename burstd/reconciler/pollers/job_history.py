"""What ended jobs tell: noticed as they leave the queue, kept on record, ready for each decision.

A job that ran at the last look and is not in the queue any more has ended; when, slurmctld tells for MinJobAge, also of
one that came and went between two looks. One that ended while burstd was down is not seen; these are few, and a
prediction is a mean of many. A job that begins anew (its machine was taken, it was preempted) has not ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from burstd.domain.slurm.job import RUNNING_STATES, Job, JobState
from burstd.domain.slurm.job_history import EndedJob, JobHistory, requested_gpus
from burstd.domain.snapshot import SlurmView, Unavailable
from burstd.planner import isolation
from burstd.reconciler.context import LoopContext

log = structlog.get_logger(__name__)

READ_ROWS = 50_000
"""So many of the latest runs on record are read when burstd starts."""
MAX_GAP_S = 60.0
"""After a longer time without a look, when a job ended is not known well, ..."""
MAX_UNCERTAINTY = 0.25
"""... and it is left out where that is more than such a share of its run."""


class JobHistoryRecorder:
    """Used in the deciding thread only. Its methods raise StoreError."""

    def __init__(self, context: LoopContext, slots: Callable[[], Collection[str]]) -> None:
        """``slots`` tells which nodes are burstd's."""
        self._context = context
        self._slots = slots
        self._history: JobHistory | None = None
        self._running: dict[str, Job] = {}
        self._over: frozenset[tuple[str, int]] = frozenset()
        """Runs, by their jobs and ``Job.run_start``, that slurmctld knew to have ended at the last look."""
        self._last_read = 0.0
        self._started: list[Job] = []

    def history(self) -> JobHistory:
        """All that is known; read from the record at the first call."""
        if self._history is None:
            ended = self._context.store.ended_jobs(READ_ROWS)
            log.info("runs of jobs are read for predictions", jobs=len(ended))
            self._history = JobHistory.from_jobs(ended)
        return self._history

    def record_ended_jobs(self, slurm: SlurmView | Unavailable) -> JobHistory:
        """Notes which jobs have ended since the last look; returns all that is known."""
        if isinstance(slurm, Unavailable) or slurm.read_at <= self._last_read:
            return self.history()
        runs = {job.id: job for job in slurm.jobs if job.state in RUNNING_STATES and job.start}
        over = {(job.id, job.run_start): job for job in slurm.ended_runs()}
        left = [over.get((id_, job.run_start), job) for id_, job in self._running.items() if id_ not in runs]
        if self._last_read:
            left += [over[key] for key in over.keys() - self._over if key[0] not in self._running]
        if left:
            here = {job.id for job in slurm.jobs}
            slots = frozenset(self._slots())
            known: list[EndedJob] = []
            for job in left:
                with self._context.quarantine.contain_errors("history", isolation.job_subject(job.id)):
                    if job.id not in here and (ended := self._ended_job(job, slurm.read_at, slots)) is not None:
                        known.append(ended)
            # Kept in mind only once it is on record: a write that fails is tried again at the next look.
            self._context.store.record_ended_jobs(known)
            self._history = self.history().with_ended(known)
        if self._last_read:
            self._started += [runs[id_] for id_ in runs.keys() - self._running.keys()]
        self._running, self._over, self._last_read = runs, frozenset(over), slurm.read_at
        return self.history()

    def take_started(self) -> list[Job]:
        """The jobs that have been seen to start since the last call; none that ran at the first look."""
        started, self._started = self._started, []
        return started

    def _ended_job(self, job: Job, read: float, slots: frozenset[str]) -> EndedJob | None:
        end, uncertainty_s = read, read - self._last_read
        if job.state is not JobState.RUNNING and job.start < job.end <= read:
            end = job.end
        elif uncertainty_s > MAX_GAP_S:
            if uncertainty_s > MAX_UNCERTAINTY * (read - job.start):
                return None
            end = (read + self._last_read) / 2
        return EndedJob(
            id=job.id, user=job.user, account=job.account, name=job.name, partitions=job.partitions, nodes=job.nodes,
            cpus=job.cpus, gpus=requested_gpus(job), time_limit_s=job.time_limit_s,
            eligible=min(max(job.submitted, job.eligible), job.start), started=job.start, ended=max(end, job.start),
            burst=not slots.isdisjoint(job.node_list), submitted=min(job.submitted, job.start),
        )  # fmt: skip
